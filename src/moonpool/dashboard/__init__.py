"""A pool seen from outside: web page, metrics, health, an HTTP API, and why a key is a miss."""

from moonpool.dashboard.server import run_admin
from moonpool.dashboard.story import explain_key
from moonpool.dashboard.watch import Look, Rates, Watch, rates

__all__ = ["Look", "Rates", "Watch", "explain_key", "rates", "run_admin"]
