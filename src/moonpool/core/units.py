"""Sizes, durations and counts as people write them. Inside, sizes are bytes, durations seconds."""

import math
import re
from fractions import Fraction

from moonpool.core.errors import BadDuration, BadSize

BYTES_MAX = 2**63 - 1
DURATION_MAX_S = 10 * 365 * 86_400.0

_NUMBER = re.compile(r"\s*([0-9][0-9_]*(?:\.[0-9]+)?|\.[0-9]+)\s*([A-Za-zµ]*)\s*")
_BYTE_UNITS: dict[str, int] = {
    "": 1,
    "b": 1,
    **{f"{letter}b": 1000**power for power, letter in enumerate("kmgtpe", start=1)},
    **{f"{letter}ib": 1024**power for power, letter in enumerate("kmgtpe", start=1)},
}
_SECOND_UNITS: dict[str, Fraction] = {
    "ns": Fraction(1, 10**9),
    "us": Fraction(1, 10**6),
    "µs": Fraction(1, 10**6),
    "ms": Fraction(1, 1000),
    "s": Fraction(1),
    "m": Fraction(60),
    "min": Fraction(60),
    "h": Fraction(3600),
    "d": Fraction(86_400),
}


def parse_bytes(value: str | int) -> int:
    """Bytes of `value`: 1024, "1024", "16KiB", "1.5GB", "1 GiB" (any case; GiB 1024^3, GB 1000^3).

    Raises BadSize for anything else, for a fraction of a byte, and past 2^63 - 1.
    """
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise BadSize(
            f"size {value!r} is a {type(value).__name__}; give an int or a text as '1GiB'"
        )
    if isinstance(value, int):
        size = Fraction(value)
    else:
        size = _parse_size_text(value)
    if size.denominator != 1:
        raise BadSize(
            f"size {value!r} is not a whole number of bytes; write it with a smaller unit"
        )
    if not 0 <= size <= BYTES_MAX:
        raise BadSize(f"size {value!r} is outside 0..2^63-1 bytes")
    return int(size)


def _parse_size_text(text: str) -> Fraction:
    match = _NUMBER.fullmatch(text)
    unit = match.group(2).lower() if match else ""
    if match is None or unit not in _BYTE_UNITS:
        hint = "write a number and B, KiB, MiB, GiB, TiB (1024) or KB, MB, GB, TB (1000)"
        raise BadSize(f"size {text!r} is not understood; {hint}")
    return Fraction(match.group(1).replace("_", "")) * _BYTE_UNITS[unit]


def format_bytes(size_bytes: int) -> str:
    """`size_bytes` for people: "16 KiB", "1.5 GiB"; at most two decimals."""
    sign, rest = ("-", -size_bytes) if size_bytes < 0 else ("", size_bytes)
    power = min(max(rest.bit_length() - 1, 0) // 10, 6)
    unit = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")[power]
    return f"{sign}{_short(rest / 1024**power)} {unit}"


def counted(count: int, noun: str) -> str:
    """ "1 node", "2 nodes": for nouns that take an s."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def parse_duration(value: str | float, unit: str = "s") -> float:
    """Seconds of `value`: "500ms", "2s", "1.5m", "1h", 2.5; a bare number counts in `unit`.

    Units are ns, us, ms, s, m (min), h, d. Raises BadDuration for anything else, for negative
    and for infinite values: no duration of Moonpool is infinite.
    """
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        kind = type(value).__name__
        raise BadDuration(f"duration {value!r} is a {kind}; give a number or a text as '500ms'")
    if isinstance(value, str):
        seconds = float(_parse_duration_text(value, unit))
    else:
        seconds = value * float(_SECOND_UNITS[unit])
    if not math.isfinite(seconds) or not 0 <= seconds <= DURATION_MAX_S:
        raise BadDuration(f"duration {value!r} is outside 0 s..10 years; no wait is infinite")
    return seconds


def _parse_duration_text(text: str, unit: str) -> Fraction:
    match = _NUMBER.fullmatch(text)
    written = (match.group(2) or unit) if match else ""
    if match is None or written not in _SECOND_UNITS:
        raise BadDuration(
            f"duration {text!r} is not understood; write a number and ns, us, ms, s, m, h or d"
        )
    return Fraction(match.group(1).replace("_", "")) * _SECOND_UNITS[written]


def format_duration(seconds: float) -> str:
    """`seconds` for people: "250 us", "1.5 s", "2 h"; at most two decimals."""
    if seconds == 0:
        return "0 s"
    for unit in ("d", "h", "m", "s", "ms", "us"):
        scale = float(_SECOND_UNITS[unit])
        if abs(seconds) >= scale:
            return f"{_short(seconds / scale)} {unit}"
    return f"{_short(seconds * 1e9)} ns"


def _short(number: float) -> str:
    return f"{number:.2f}".rstrip("0").rstrip(".")
