"""`moonpool bench WHAT`: our own rows, as JSON lines. Rivals live in the top folder bench/."""

from moonpool.bench.runner import BENCHES, Row, Settings, rows_of

__all__ = ["BENCHES", "Row", "Settings", "rows_of"]
