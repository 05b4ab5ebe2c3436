"""The engine's OpenAI-compatible HTTP server."""

from moonpool.engine.server.app import Application, Served
from moonpool.engine.server.serving import listen, serve

__all__ = ["Application", "Served", "listen", "serve"]
