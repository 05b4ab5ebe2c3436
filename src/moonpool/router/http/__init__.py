"""HTTP/1.1 at protocol level: a server, a client with kept connections, and nothing of routing."""
