"""The same calls, awaitable: `pool = await moonpool.aio.connect("127.0.0.1:7400")`."""

from moonpool.pool.aio import AsyncPool, connect

__all__ = ["AsyncPool", "connect"]
