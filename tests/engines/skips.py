"""Tests of this folder that may be skipped, each with its reason; a run with others fails.

None: an engine that cannot be installed or started is a failure.
"""

EXPECTED: dict[str, str] = {}
