"""What a disk tier finds when it starts: an object counts if index and data say the same of it.

torn tail of the index     cut off
damaged inside             the rest is read on; what lost its removal is marked in the data
data header differs        not believed
other incarnation          file set aside
machine crashed            empty, unless every write had reached the medium before it counted
away for too long          empty
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path

from moonpool.pool.tiers.base import Notes
from moonpool.pool.tiers.bucket_file import BucketFile
from moonpool.pool.tiers.index_file import INDEX_NAME, read_index
from moonpool.pool.tiers.log_format import (
    BUCKET_MAGIC,
    FILE_HEADER_BYTES,
    HEAD_BYTES_MAX,
    FileHeader,
    Kind,
    Record,
    parse_file_header,
    parse_object_header,
)
from moonpool.pool.tiers.log_index import BucketUse, LogIndex

BUCKET_SUFFIX = ".bucket"
QUARANTINE = "quarantine"
QUARANTINE_MAX = 8


@dataclass(slots=True)
class Found:
    """`why_empty` says why nothing was believed, where something was there."""

    index: LogIndex = field(default_factory=LogIndex)
    incarnation: bytes = b""
    files: dict[int, BucketFile] = field(default_factory=dict)
    aligns: dict[int, int] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    why_empty: str = ""

    def count(self, name: str, number: int = 1) -> None:
        self.counts[name] = self.counts.get(name, 0) + number


def bucket_path(directory: Path, number: int) -> Path:
    return directory / f"{number:08d}{BUCKET_SUFFIX}"


def set_aside(path: Path, directory: Path) -> None:
    """Out of the way, for a person to look at; the oldest of QUARANTINE_MAX goes."""
    home = directory / QUARANTINE
    home.mkdir(mode=0o700, exist_ok=True)
    old = sorted(home.iterdir(), key=lambda one: one.stat().st_mtime)
    for one in old[: max(0, len(old) - QUARANTINE_MAX + 1)]:
        one.unlink()
    number = 0
    while (target := home / f"{path.name}.{number}").exists():
        number += 1
    path.rename(target)


def recover(directory: Path, direct: bool, boot_id: str, wall_ms: int) -> Found:
    """Raises OSError."""
    found = recover_index(directory, boot_id, wall_ms)
    if not found.incarnation:
        if found.why_empty:
            _forget_all(directory)
        else:
            _set_all_aside(directory, found)
        return found
    _open_buckets(directory, found, direct)
    _believe(found)
    return found


def recover_index(directory: Path, boot_id: str, wall_ms: int) -> Found:
    """What the index says, if it may be believed: else no incarnation."""
    found = Found()
    read = read_index(directory)
    if read is None:
        return found
    found.incarnation, told = read
    if told.lost:
        found.count("index_damaged")
    if told.torn:
        found.count("index_torn_bytes", told.torn)
    found.index.apply(told.records, found.incarnation)
    found.why_empty = _distrust(told.records, found.index.notes, boot_id, wall_ms)
    if found.why_empty:
        found.index, found.incarnation = LogIndex(), b""
    return found


def _distrust(records: list[Record], notes: Notes, boot_id: str, wall_ms: int) -> str:
    if notes.heard_ms and notes.forget_ms and wall_ms - notes.heard_ms > notes.forget_ms:
        return "away for too long"
    last = next((one for one in reversed(records) if one.kind is Kind.OPENED), None)
    closed = bool(records) and records[-1].kind is Kind.CLOSED
    if closed or not records:
        return ""
    if last is None:
        return "the index does not say on which boot of the machine it was written"
    if last.payload[:1] == b"\1":
        return ""
    return "" if last.payload[1:] == boot_id.encode() else "the machine went down under it"


def _forget_all(directory: Path) -> None:
    for path in directory.glob("*" + BUCKET_SUFFIX):
        path.unlink()
    (directory / INDEX_NAME).unlink(missing_ok=True)


def _set_all_aside(directory: Path, found: Found) -> None:
    """Buckets without an index are nobody's."""
    stray = [*directory.glob("*" + BUCKET_SUFFIX)]
    if (directory / INDEX_NAME).exists():
        stray.append(directory / INDEX_NAME)
    for path in stray:
        found.count("quarantined_files")
        found.why_empty = "there is no index"
        set_aside(path, directory)


def _open_buckets(directory: Path, found: Found, direct: bool) -> None:
    for path in sorted(directory.glob("*" + BUCKET_SUFFIX)):
        with path.open("rb") as file:
            header = parse_file_header(file.read(FILE_HEADER_BYTES), BUCKET_MAGIC)
        if not _fits(header, path, found.incarnation):
            found.count("quarantined_files")
            set_aside(path, directory)
            continue
        assert header is not None
        if found.index.buckets.get(header.number, BucketUse(0)).objects == 0:
            path.unlink()  # nothing in it counts
            continue
        file_ = found.files[header.number] = BucketFile(path, direct and header.align > 64)
        found.aligns[header.number] = header.align
        found.index.buckets[header.number].end = file_.size


def _fits(header: FileHeader | None, path: Path, incarnation: bytes) -> bool:
    if header is None or header.incarnation != incarnation:
        return False
    with contextlib.suppress(ValueError):
        return header.number == int(path.name.removesuffix(BUCKET_SUFFIX))
    return False


def _believe(found: Found) -> None:
    """Only what the data's header repeats, key, version and all."""
    index = found.index
    for located in sorted(index.objects.values(), key=lambda one: one.place):
        place = located.place
        file = found.files.get(place.bucket)
        said = None
        if file is not None and place.offset + place.length <= file.size:
            raw = file.read(place.offset, min(HEAD_BYTES_MAX, place.length))
            said = parse_object_header(raw, found.incarnation)
        if said != located.entry:
            index.remove(located.entry.slot, located.entry.generation)
            found.count("disbelieved_objects")
    for number in [n for n, use in index.buckets.items() if use.objects == 0]:
        del index.buckets[number]
        file = found.files.pop(number, None)
        if file is not None:
            file.give_up()
            file.path.unlink()
