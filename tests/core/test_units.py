"""Sizes and durations as people write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moonpool.core.errors import BadDuration, BadSize
from moonpool.core.units import (
    counted,
    format_bytes,
    format_duration,
    parse_bytes,
    parse_duration,
)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (1024, 1024),
        ("1024", 1024),
        ("0", 0),
        ("1_000", 1000),
        ("16KiB", 16 << 10),
        ("1GiB", 1 << 30),
        ("1 gib", 1 << 30),
        ("1.5GB", 1_500_000_000),
        ("512gb", 512 * 10**9),
        (".5MiB", 1 << 19),
        ("3B", 3),
    ],
)
def test_parse_bytes(text: str | int, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    "bad", ["", "GiB", "1G", "1 2", "-1", "1e3", "1.5B", "0.3KiB", "8EiB", -1, 2**63, "NaN"]
)
def test_bad_sizes(bad: str | int) -> None:
    with pytest.raises(BadSize, match="size"):
        parse_bytes(bad)


@pytest.mark.parametrize("bad", [True, 1.0, None, b"1"])
def test_sizes_of_another_type(bad: object) -> None:
    with pytest.raises(BadSize, match=type(bad).__name__):
        parse_bytes(bad)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1 << 14, "16 KiB"), (3 << 29, "1.5 GiB"), (-2048, "-2 KiB")],
)
def test_format_bytes(size: int, text: str) -> None:
    assert format_bytes(size) == text


@given(st.integers(0, 2**40), st.sampled_from(["B", "KiB", "MiB"]))
def test_whole_units_parse_exactly(count: int, unit: str) -> None:
    scale = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20}[unit]
    assert parse_bytes(f"{count}{unit}") == count * scale


@given(st.integers(0, 2**63 - 1))
def test_format_bytes_is_readable_and_close(size: int) -> None:
    number, unit = format_bytes(size).split(" ")
    scale = {"B": 0, "KiB": 1, "MiB": 2, "GiB": 3, "TiB": 4, "PiB": 5, "EiB": 6}[unit]
    assert abs(float(number) * 1024**scale - size) <= 0.005 * 1024**scale + size * 1e-12


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("2s", 2.0), ("1.5m", 90.0), ("1h", 3600.0), ("250us", 0.00025), (3, 3.0)],
)
def test_parse_duration(text: str | float, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


def test_bare_number_counts_in_the_given_unit() -> None:
    assert parse_duration("3000", "ms") == 3.0
    assert parse_duration(3000, "ms") == 3.0
    assert parse_duration("3s", "ms") == 3.0


@pytest.mark.parametrize("bad", ["", "s", "1 fortnight", "-1s", "inf", "1e9d", "99999d", -1])
def test_bad_durations(bad: str | float) -> None:
    with pytest.raises(BadDuration, match="duration"):
        parse_duration(bad)


@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_no_duration_is_infinite(bad: float) -> None:
    with pytest.raises(BadDuration, match="no wait is infinite"):
        parse_duration(bad)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (0.5, "500 ms"), (1.5, "1.5 s"), (90, "1.5 m"), (7200, "2 h"), (2e-9, "2 ns")],
)
def test_format_duration(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_one_of_a_kind_has_no_s() -> None:
    assert [counted(n, "node") for n in (0, 1, 1000)] == ["0 nodes", "1 node", "1,000 nodes"]
