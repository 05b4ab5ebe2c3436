"""From what a caller asks to a checked Transfer; everything that can be wrong is found here."""

import time
from typing import Any, Final

import numpy as np

from moonpool.core.errors import BadInput
from moonpool.transfer.base import Blocks, Transfer
from moonpool.transfer.file_segment import FileSegment
from moonpool.transfer.layout import Layout, resolve
from moonpool.transfer.segment import RemoteSegment, Segment
from moonpool.transfer.vram_segment import VramSegment

DEADLINE_MAX_S: Final = 3600.0
PRIORITY_MAX: Final = 1000

_SEGMENTS = (Segment, RemoteSegment, FileSegment, VramSegment)

LocalTarget = Layout | Segment
Target = Layout | RemoteSegment | Segment | FileSegment | VramSegment
_AnySegment = Segment | RemoteSegment | FileSegment | VramSegment
_WHOSE = {FileSegment: "a file", VramSegment: "a device's"}


def checked_transfer(
    kind: str,
    local: LocalTarget,
    local_ids: Any,
    remote: Target,
    remote_ids: Any,
    deadline_s: float,
    checksum: bool,
) -> Transfer:
    """The request with all ids resolved; `deadline_s` counts from now. Raises BadInput, Closed."""
    near_segment, far_segment = _segment_of(local), _segment_of(remote)
    if not isinstance(near_segment, Segment):
        whose = _WHOSE.get(type(near_segment), "a peer's")
        raise BadInput(f"{near_segment!r} is {whose}; the local end must be our own memory")
    _check_ends(kind, near_segment, far_segment)
    _check_planes(local, remote)
    near, far = resolve(local, local_ids), resolve(remote, remote_ids)
    if len(near.offsets) != len(far.offsets):
        raise BadInput(f"{len(near.offsets)} local blocks but {len(far.offsets)} remote ones")
    if not _equally_long(local, remote) and not np.array_equal(near.lengths, far.lengths):
        first = int(np.argmax(near.lengths != far.lengths))
        raise BadInput(
            f"block {first} has {near.lengths[first]} bytes here and {far.lengths[first]} at "
            f"the other end; blocks must be equally long"
        )
    _check_apart(*((near_segment, near) if kind == "read" else (far_segment, far)))
    if isinstance(far_segment, FileSegment):
        far_segment.check_aligned(near_segment, near, far)
    return Transfer(
        kind,
        near_segment,
        near.offsets,
        far_segment,
        far.offsets,
        near.lengths,
        near.nbytes,
        time.monotonic() + deadline_s,
        checksum,
    )


def checked_deadline(seconds: float) -> float:
    """A finite number of seconds from 0 to DEADLINE_MAX_S; raises BadInput."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float | np.number):
        raise BadInput(f"deadline {seconds!r} is a {type(seconds).__name__}; give seconds")
    if not 0 <= seconds <= DEADLINE_MAX_S:
        raise BadInput(f"deadline {seconds!r} s is outside 0..{DEADLINE_MAX_S:.0f} s")
    return float(seconds)


def checked_priority(priority: int) -> int:
    """A whole number from -PRIORITY_MAX to PRIORITY_MAX; raises BadInput."""
    if isinstance(priority, bool) or not isinstance(priority, int | np.integer):
        raise BadInput(f"priority {priority!r} is a {type(priority).__name__}; give a whole number")
    if not -PRIORITY_MAX <= priority <= PRIORITY_MAX:
        raise BadInput(f"priority {priority} is outside -{PRIORITY_MAX}..{PRIORITY_MAX}")
    return int(priority)


def _segment_of(target: Any) -> _AnySegment:
    segment = target.segment if isinstance(target, Layout) else target
    if not isinstance(segment, _SEGMENTS):
        raise BadInput(f"give a segment or a layout, not a {type(target).__name__}")
    return segment


def require_open(near: Segment, far: _AnySegment) -> None:
    """Raises Closed for memory of ours that was given back."""
    near.require_open()
    if not isinstance(far, RemoteSegment):
        far.require_open()


def _check_ends(kind: str, near: Segment, far: _AnySegment) -> None:
    require_open(near, far)
    if near.flush is not None and not isinstance(far, Segment):
        raise BadInput(
            f"segment '{near.name}' needs a flush around each copy, which only copies inside this "
            f"process do: go through a plain segment"
        )
    if kind == "read" and not near.array.flags.writeable:
        raise BadInput(f"cannot read into segment '{near.name}': its memory is read-only")
    if kind == "write" and not far.writable:
        raise BadInput(f"cannot write to segment '{far.name}': it was registered read-only")


def _check_apart(segment: _AnySegment, blocks: Blocks) -> None:
    """Destinations that overlap would hold whatever came last. Ascending ones, as most are, are
    seen to be apart in one pass; others are sorted."""
    offsets, lengths = blocks.offsets, blocks.lengths
    if len(offsets) < 2 or (offsets[1:] >= offsets[:-1] + lengths[:-1]).all():
        return
    full = np.flatnonzero(lengths)
    order = full[np.argsort(offsets[full], kind="stable")]
    starts, ends = offsets[order], offsets[order] + lengths[order]
    overlapping = np.flatnonzero(starts[1:] < ends[:-1])
    if len(overlapping):
        first, second = sorted(order[overlapping[0] : overlapping[0] + 2].tolist())
        raise BadInput(
            f"blocks {first} and {second} overlap in their destination '{segment.name}'; give each "
            f"byte once"
        )


def _check_planes(local: LocalTarget, remote: Target) -> None:
    if isinstance(local, Layout) and isinstance(remote, Layout) and local.planes != remote.planes:
        raise BadInput(
            f"a block here has {local.planes} planes and one at the other end {remote.planes}; "
            f"take equally many with range()"
        )


def _equally_long(local: LocalTarget, remote: Target) -> bool:
    """True if that is plain without looking at the blocks."""
    if not isinstance(local, Layout) or not isinstance(remote, Layout):
        return False
    return local.block_bytes == remote.block_bytes
