"""`moonpool stat` on values as a master gives them."""

from moonpool.cli.stat import _tables


def test_values_and_families_of_records_are_tables() -> None:
    values: dict[str, object] = {
        "objects": 1_000_000,
        "table_bytes": 1536,
        "recovering": False,
        "segments": {"0": {"node": "a", "capacity_bytes": 1 << 30, "usage": {"x": 1}}},
    }
    plain, segments = _tables(values)
    assert plain.split() == "objects 1,000,000 table_bytes 1.5 KiB recovering no".split()
    words = [word for word in segments.split() if not word.startswith("─")]
    assert words == ["segments", "node", "capacity", "0", "a", "1", "GiB"]
