"""What the performance model must not fit: costs of a machine, each measured on its own.

    touch_ns          one cache line somewhere in a layer of the prefix: it grows with what is
                      scattered over, since fewer page-table entries and lines are in the caches
    private_touch_ns  the same in private memory, which lies in large pages where there are any:
                      what it takes less, finding the page took
    position_ns       a position named over TCP: put into a frame, sent, looked at by the node. Rows
                      of 8 bytes, so that their own bytes count for little
    call_us           a call over TCP that names a row of every object

None of these moves a row or a key of the bench's own cases.
"""

from __future__ import annotations

import statistics
import time
from typing import Final

import numpy as np

from moonpool import _core
from moonpool.bench.runner import Row
from moonpool.bench.sparse_parts import KEY, U32
from moonpool.pool.gathering import RowsWanted
from moonpool.pool.inputs import as_key
from moonpool.pool.pool import Pool
from moonpool.sparse import SparseReader
from moonpool.sparse.source import TableSource, check_told
from moonpool.sparse.stored_format import Manifest, unit_keys

LINE: Final = 64
TINY_ROW: Final = 8
LAPS: Final = 9
_LINES: Final = 2048  # as many as rows of a step
_TOUCH_LAPS: Final = 60


def touch_s(*readers: SparseReader) -> list[float]:
    """Seconds for one line at random in a layer of a prefix that is read in place, for each of
    these readers, in turns."""
    random = np.random.default_rng(5)
    out = np.ones(_LINES * LINE, np.uint8)
    size = np.array([_LINES], np.uint32)
    tables = [_lines_of(reader) for reader in readers]
    laps: list[list[float]] = [[] for _ in readers]
    for lap in range(_TOUCH_LAPS):
        for (table, lines, layers), times in zip(tables, laps, strict=True):
            at = random.integers(0, lines, _LINES).astype(np.uint32)
            layer = np.array([lap % layers], np.uint32)
            begin = time.perf_counter()
            told = table.gather(layer, size, at, out)
            times.append(time.perf_counter() - begin)
            check_told(*told)
    return [statistics.median(times) / _LINES for times in laps]


def _lines_of(reader: SparseReader) -> tuple[_core.RowTable, int, int]:
    """The rows of a prefix as lines: their table, how many a layer has, how many layers."""
    source = reader.source
    assert isinstance(source, TableSource)
    units, layout = source.units, reader.layout
    per_unit = units.unit_tokens * layout.entry_bytes // LINE
    count = len(units.which)
    last = reader.length - (count - 1) * units.unit_tokens
    lines = (count - 1) * per_unit + last * layout.entry_bytes // LINE
    table = _core.RowTable(
        LINE,
        per_unit,
        layout.layers,
        lines,
        units.buffers,
        units.which,
        units.offsets,
        units.strides,
    )
    return table, lines, layout.layers


def tcp_s(pool: Pool, manifest: Manifest) -> tuple[float, float]:
    """Seconds of a call that names a row of every object of the bench's prefix, and of each
    position more."""
    tokens, unit_tokens, units = manifest.tokens, manifest.unit_tokens, manifest.units
    out = np.ones(tokens * TINY_ROW, np.uint8)
    zeros = np.zeros(units, np.uint64)

    def lap(positions: U32) -> float:
        wanted = RowsWanted(
            TINY_ROW,
            unit_tokens,
            zeros,
            zeros,
            np.zeros(1, np.uint32),
            np.array([len(positions)], np.uint32),
            positions,
        )
        room = out[: len(positions) * TINY_ROW]
        begin = time.perf_counter()
        arrived = session.read_rows(wanted, room)
        seconds = time.perf_counter() - begin
        if not arrived:
            raise AssertionError("an object of the bench's prefix is gone")
        return seconds

    few = np.arange(0, tokens, unit_tokens, dtype=np.uint32)
    every = np.arange(tokens, dtype=np.uint32)
    with pool.read_session(unit_keys(as_key(KEY), manifest)) as session:
        laps = [(lap(few), lap(every)) for _ in range(LAPS)]
    call, all_of_them = (statistics.median(lap) for lap in zip(*laps, strict=True))
    return call, max(0.0, all_of_them - call) / max(1, tokens - units)


def costs(reader: SparseReader, here: SparseReader, far: Pool) -> Row:
    """`reader` reads the bench's prefix in place, `here` as many rows of private memory, `far` asks
    for the same objects by TCP."""
    source = reader.source
    assert isinstance(source, TableSource)
    manifest = Manifest(reader.layout, reader.length, source.units.unit_tokens)
    call, position = tcp_s(far, manifest)
    in_place, private = touch_s(reader, here)
    return {
        "touch_ns": in_place * 1e9,
        "private_touch_ns": private * 1e9,
        "call_us": call * 1e6,
        "position_ns": position * 1e9,
        "ok": True,
    }
