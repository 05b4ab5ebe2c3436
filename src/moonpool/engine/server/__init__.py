"""The engine's OpenAI-compatible HTTP server."""

from moonpool.engine.server.app import Application, Served
from moonpool.engine.server.backend import Asked, Backend, Reuse, Step
from moonpool.engine.server.serving import listen, serve

__all__ = ["Application", "Asked", "Backend", "Reuse", "Served", "Step", "listen", "serve"]
