"""A small real engine: Llama-family models over Moonpool's own paged cache and the pool."""

from moonpool.engine.engine import Engine
from moonpool.engine.request import Request, Reuse, Sampling, Step

__all__ = ["Engine", "Request", "Reuse", "Sampling", "Step"]
