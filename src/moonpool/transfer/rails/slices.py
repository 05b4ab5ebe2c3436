"""How a transfer is cut: whole blocks together up to a slice, larger blocks into equal parts."""

from typing import NamedTuple

import numpy as np

from moonpool.transfer.base import U64, Transfer


class Cut(NamedTuple):
    """Blocks `start` to `stop`; of a single block maybe only `nbytes` from `offset` on."""

    start: int
    stop: int
    offset: int
    nbytes: int


def cut(lengths: U64, slice_bytes: int, blocks_max: int) -> list[Cut]:
    """Slices of at most `slice_bytes` and `blocks_max` blocks, in order, that cover each byte
    once. Blocks of no bytes go with their neighbours."""
    ends = np.cumsum(lengths)
    cuts, start, count = list[Cut](), 0, len(lengths)
    while start < count:
        before = int(ends[start - 1]) if start else 0
        length = int(lengths[start])
        if length > slice_bytes:
            parts = -(-length // slice_bytes)
            edges = [length * part // parts for part in range(parts + 1)]
            cuts += [
                Cut(start, start + 1, edges[part], edges[part + 1] - edges[part])
                for part in range(parts)
            ]
            start += 1
            continue
        fit = int(np.searchsorted(ends, np.uint64(before + slice_bytes), side="right"))
        stop = min(fit, start + blocks_max)
        cuts.append(Cut(start, stop, 0, int(ends[stop - 1]) - before))
        start = stop
    return cuts


def part_of(whole: Transfer, part: Cut) -> Transfer:
    """The slice as a transfer of its own, due when the whole is."""
    blocks = slice(part.start, part.stop)
    near, far, lengths = (
        whole.local_offsets[blocks],
        whole.remote_offsets[blocks],
        whole.lengths[blocks],
    )
    if part.stop - part.start == 1:
        near, far = near + np.uint64(part.offset), far + np.uint64(part.offset)
        lengths = np.array([part.nbytes], dtype=np.uint64)
    return whole._replace(
        local_offsets=near, remote_offsets=far, lengths=lengths, nbytes=part.nbytes
    )
