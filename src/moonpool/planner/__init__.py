"""What-if answers from traces: loading them, and the accounting of a replay. No I/O to a pool."""

from moonpool.planner.traces import Request, Trace, TraceSummary, load, read_requests

__all__ = ["Request", "Trace", "TraceSummary", "load", "read_requests"]
