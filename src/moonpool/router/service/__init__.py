"""The router as a process: a proxy, a brain over HTTP, and what keeps both informed."""
