"""Making and checking the files of a sparse pool: all of one pool, whole, in order."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path

import msgspec

from moonpool.core.errors import BadInput, SegmentDamaged
from moonpool.sparse.mapping import Mapping, create_file, read_header, write_header
from moonpool.sparse.segment_format import Geometry, decode, encode
from moonpool.sparse.tables import Tables

Place = str | PathLike[str]


def create_devices(paths: Sequence[Path], geometry: Geometry) -> None:
    """Fresh devices; what was made is removed again when one cannot be. The headers come last, the
    first device's at the very end: before it there is no pool."""
    made: list[Path] = []
    try:
        for path in paths:
            create_file(path, geometry.file_bytes)
            made.append(path)
        tables = Mapping(paths[0], geometry.index_offset, writable=True)
        Tables(geometry, tables.array).format()
        tables.close()
        for number in reversed(range(len(paths))):
            write_header(paths[number], encode(msgspec.structs.replace(geometry, device=number)))
    except BaseException:
        for path in made:
            if path.is_file():
                path.unlink()
        raise


def as_paths(devices: Place | Sequence[Place]) -> list[Path]:
    """The files of a pool's devices, in order."""
    places = [devices] if isinstance(devices, str | PathLike) else list(devices)
    paths = [Path(place) for place in places]
    if not paths or len(set(paths)) < len(paths):
        raise BadInput("a sparse pool needs one file a device, each another")
    return paths


def geometry_of(paths: Sequence[Path]) -> Geometry:
    """Of the pool whose devices these are, all of them, in order. Raises SegmentDamaged."""
    first: Geometry | None = None
    for number, path in enumerate(paths):
        geometry = decode(*read_header(path), str(path))
        first = first or geometry
        if geometry.pool_id != first.pool_id or geometry.device != number:
            raise SegmentDamaged(
                f"{path} is device {geometry.device} of pool {geometry.pool_id.hex()[:8]}, not "
                f"device {number} of {first.pool_id.hex()[:8]}"
            )
    assert first is not None
    if first.devices != len(paths):
        raise SegmentDamaged(
            f"the pool at {paths[0]} has {first.devices} devices, {len(paths)} were named"
        )
    return first
