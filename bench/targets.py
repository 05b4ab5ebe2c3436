"""What Moonpool has to reach, as ratios of rows of one run, and whether a run reached it.

Pure: rows in, verdicts out. A ratio is ours divided by theirs; a target without a rival is on the
figure itself; a line without a target is there to be seen.
"""

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from bench.rows import Name, Row, name_of, short


class Side(NamedTuple):
    """A row, and what of it counts."""

    subject: str
    bench: str
    case: str


class Target(NamedTuple):
    """One line of the table: at most or at least, or neither."""

    work: str
    figure: str
    ours: Side
    theirs: Side | None = None
    at_most: float | None = None
    at_least: float | None = None


class Verdict(NamedTuple):
    """A target met with a run's rows; None where a row or the target is missing."""

    target: Target
    ours: float | None
    theirs: float | None
    value: float | None  # the ratio, or the figure itself without a rival
    reached: bool | None
    versions: tuple[str, str]


def _ours(bench: str, case: str) -> Side:
    return Side("moonpool", bench, case)


def _mooncake(bench: str, case: str) -> Side:
    return Side("mooncake", bench, case)


def _nixl(case: str) -> Side:
    return Side("nixl", "transfer", case)


def _dynamo(case: str) -> Side:
    return Side("dynamo", "router", case)


def _tcp_targets() -> Iterator[Target]:
    read = "TCP read 32 x 4 KiB"
    ours = _ours("transfer", "tcp read 32 x 4 KiB")
    theirs = _mooncake("transfer", "tcp read 32 x 4 KiB")
    yield Target(read, "ops_per_s", ours, theirs, at_least=7)
    yield Target(read, "cpu_s_per_gb", ours, theirs, at_most=1 / 8)
    yield Target(read, "gb_per_s", ours, Side("limit", "limits", "tcp_read_32x4KiB_crc"))
    ahead = ", 4 in flight"
    ours = _ours("transfer", f"tcp read 32 x 4 KiB{ahead}")
    theirs = _mooncake("transfer", f"tcp read 32 x 4 KiB{ahead}")
    limit = Side("limit", "limits", "tcp_read_32x4KiB_crc_4_in_flight")
    yield Target(f"{read}{ahead}", "ops_per_s", ours, theirs)
    yield Target(f"{read}{ahead}", "cpu_s_per_gb", ours, theirs)
    yield Target(f"{read}{ahead}", "gb_per_s", ours, limit)
    for size in ("1 MiB", "16 MiB"):
        plain = f"tcp_read_{size.replace(' ', '')}"
        ours = _ours("transfer", f"tcp read {size}")
        bare = _ours("transfer", f"tcp read {size}, no CRC")
        theirs = _mooncake("transfer", f"tcp read {size}")
        yield Target(f"TCP read {size}", "gb_per_s", ours, theirs, at_least=1.2)
        limit = Side("limit", "limits", f"{plain}_crc")
        yield Target(f"TCP read {size}", "gb_per_s", ours, limit, at_least=0.85)
        yield Target(f"TCP read {size}, no CRC", "gb_per_s", bare, theirs)
        limit = Side("limit", "limits", f"{plain}_no_crc")
        yield Target(f"TCP read {size}, no CRC", "gb_per_s", bare, limit)
        yield Target(f"TCP read {size}", "cpu_s_per_gb", ours, theirs)


def _nixl_targets() -> Iterator[Target]:
    """On one host NIXL has one process read the other's memory; over TCP it is UCX's own."""
    for size in ("64 KiB", "1 MiB"):
        ours, theirs = _ours("transfer", f"shm read {size}"), _nixl(f"cma read {size}")
        yield Target(f"same host read {size}", "p50_us", ours, theirs)
        yield Target(f"same host read {size}", "cpu_s_per_gb", ours, theirs)
    for size, figure in (("32 x 4 KiB", "ops_per_s"), ("1 MiB", "gb_per_s")):
        ours, theirs = _ours("transfer", f"tcp read {size}"), _nixl(f"ucx-tcp read {size}")
        yield Target(f"TCP read {size}", figure, ours, theirs)


def _exists_targets() -> Iterator[Target]:
    objects = "1,000,000 objects"
    for keys in ("the same", "random"):
        yield Target(
            f"exists, 128 keys a call, {keys}, of {objects}",
            "ops_per_s",
            _ours("exists", f"128 keys a call, {keys}, of {objects}"),
            _mooncake("exists", f"batch_is_exist 128 keys, {keys}, of {objects}"),
            at_least=1,
        )


def _pressure_targets() -> Iterator[Target]:
    """A pool that is full: what nobody should notice of evictions, and what they cost."""
    asked = "30,000 keys"
    ours = _ours("pressure", f"exists, {asked} a call, while evicting")
    theirs = _mooncake("pressure", f"batch_is_exist {asked}, while evicting")
    yield Target(f"exists, {asked} a call, while evicting", "p99_us", ours, theirs, at_most=0.5)
    yield Target("the same", "p50_us", ours, theirs)
    case = "evict, 100,000 objects, puts of 1,024"
    ours, theirs = _ours("pressure", case), _mooncake("pressure", case)
    yield Target("the master's CPU for an object evicted", "evict_us_per_object", ours, theirs)
    yield Target("puts of 1,024 that evict", "p99_us", ours, theirs, at_most=1)
    for count, size in ((32, "4 KiB"), (4, "256 KiB")):
        work = f"put_many {count} x {size}, 90% full"
        ours = _ours("pressure", work)
        theirs = _mooncake("pressure", f"put_batch {count} x {size}, 90% full")
        yield Target(work, "ops_per_s", ours, theirs, at_least=1)
    work = "get_many 32 x 4 KiB, 90% full"
    theirs = _mooncake("pressure", "get_batch 32 x 4 KiB, 90% full")
    yield Target(work, "ops_per_s", _ours("pressure", work), theirs, at_least=1)
    spread = "32 x 4 KiB, 3 replicas over 16 segments"
    ours = _ours("pressure", f"put_many {spread}")
    theirs = _mooncake("pressure", f"put_batch {spread}")
    yield Target(f"put_many {spread}", "ops_per_s", ours, theirs, at_least=1)


def _router_targets() -> Iterator[Target]:
    for blocks, workers, at_most in ((512, 8, 5), (8192, 64, 10)):
        for kind in ("each another part", "all hold all"):
            case = f"find {blocks} blocks, {workers} workers, {kind}"
            work = f"router: {case}"
            yield Target(work, "p50_us", _ours("router", case), at_most=at_most)
        case = f"find {blocks} blocks, {workers} workers, each another part"
        yield Target(f"router: {case}", "p50_us", _ours("router", case), _dynamo(case))
    choice = "131,072 tokens to 64 scores and a choice, block 16"
    yield Target(f"router: {choice}", "p50_us", _ours("router", choice), at_most=200)
    case = "events of 16 blocks, 64 a message, over ZeroMQ"
    yield Target(f"router: {case}", "blocks_per_s", _ours("router", case), at_least=1e6)
    ingest = _ours("router", case)
    yield Target(f"router: {case}", "blocks_per_s", ingest, _dynamo(case), at_least=3)
    for workers in (8, 64):
        case = f"events of 16 blocks, {workers} workers"
        ours = _ours("router", case)
        for figure in ("store_blocks_per_s", "remove_blocks_per_s"):
            yield Target(f"router: {case}", figure, ours, _dynamo(case), at_least=3)
        yield Target(f"router: {case}", "drop_us", ours, at_most=200)
        yield Target(f"router: {case}", "bytes_per_item", ours, at_most=45)


_GET = _ours("store", "shm get_into 64 KiB, placement cached")
_PUTS = _ours("store", "shm put_many 32 x 4 KiB")
_GETS = _ours("store", "shm get_many 32 x 4 KiB")
_RESTART = _ours("restart", "master killed, 1,000,000 objects on one node, until all are readable")
_MEMORY = _ours("memory", "master, 1,000,000 one-replica objects, 80-byte keys, with parents")

TARGETS: Final = (
    Target(
        "shm get_into 64 KiB, one key, placement cached",
        "p50_us",
        _GET,
        _mooncake("store", "get_into 64 KiB"),
        at_most=1 / 8,
    ),
    Target("the same, of a redis get", "p50_us", _GET, Side("redis", "store", "unix get 64 KiB")),
    Target(
        "shm view 1 MiB, placement cached",
        "p50_us",
        _ours("store", "shm view 1 MiB, placement cached, generation checked"),
        at_most=5,
    ),
    Target(
        "shm batch get 128 x 64 KiB",
        "gb_per_s",
        _ours("store", "shm get_many_into 128 x 64 KiB"),
        _mooncake("store", "batch_get_into 128 x 64 KiB"),
        at_least=3,
    ),
    *(
        Target(
            f"catalog alone, reserve + commit, batches of 128, {keys}",
            "ops_per_s",
            _ours("catalog", f"reserve and commit, 128 keys a call, {keys}"),
            at_least=1e6,
        )
        for keys in ("no parents", "chains of 32")
    ),
    Target("master restart with 1 M objects", "seconds", _RESTART, at_most=3),
    Target(
        "put_many 32 x 4 KiB",
        "ops_per_s",
        _PUTS,
        _mooncake("store", "put_batch 32 x 4 KiB"),
        at_least=3,
    ),
    Target(
        "the same, of a redis pipeline",
        "ops_per_s",
        _PUTS,
        Side("redis", "store", "unix set 32 x 4 KiB"),
    ),
    Target(
        "get_many 32 x 4 KiB",
        "ops_per_s",
        _GETS,
        _mooncake("store", "get_batch 32 x 4 KiB"),
        at_least=2,
    ),
    Target(
        "the same, of a redis pipeline",
        "ops_per_s",
        _GETS,
        Side("redis", "store", "unix get 32 x 4 KiB"),
    ),
    *_tcp_targets(),
    *_nixl_targets(),
    *_exists_targets(),
    *_pressure_targets(),
    *_router_targets(),
    Target("master memory per object", "bytes_per_item", _MEMORY, at_most=600),
    Target(
        "the same, of Mooncake's master",
        "bytes_per_item",
        _MEMORY,
        _mooncake("exists", "batch_is_exist 128 keys, the same, of 1,000,000 objects"),
    ),
)


def verdicts(rows: Iterable[Row], targets: Iterable[Target] = TARGETS) -> list[Verdict]:
    """Each target against merged rows, in the order of the targets."""
    by_name = {name_of(row): row for row in rows}
    return [_verdict(target, by_name) for target in targets]


def verdict_row(verdict: Verdict) -> Row:
    """A verdict as one JSON object of the bench "ratios"."""
    target = verdict.target
    return {
        "bench": "ratios",
        "case": target.work,
        "subject": "moonpool",
        "version": verdict.versions[0],
        "rounds": 0,
        "figure": target.figure,
        "against": against(verdict),
        "ours": verdict.ours,
        "theirs": verdict.theirs,
        "ratio": verdict.value if target.theirs else None,
        "target": reach(target),
        "reached": verdict.reached,
    }


def reach(target: Target) -> str:
    """The target in words, "" for none."""
    if target.at_most is not None:
        return f"at most {target.at_most:,.10g}"
    return f"at least {target.at_least:,.10g}" if target.at_least is not None else ""


def against(verdict: Verdict) -> str:
    """The rival with its version, "" for none."""
    theirs = verdict.target.theirs
    return f"{theirs.subject} {verdict.versions[1]}".strip() if theirs else ""


def _verdict(target: Target, rows: dict[Name, Row]) -> Verdict:
    ours_row = rows.get(target.ours, {})
    theirs_row = rows.get(target.theirs, {}) if target.theirs else {}
    ours, theirs = _figure(ours_row, target), _figure(theirs_row, target)
    value = ours
    if target.theirs:
        value = short(ours / theirs) if ours is not None and theirs else None
    versions = str(ours_row.get("version", "")), str(theirs_row.get("version", ""))
    return Verdict(target, ours, theirs, value, _reached(target, value), versions)


def _figure(row: Row, target: Target) -> float | None:
    """What counts of a row; nothing where a byte was wrong."""
    value = row.get(target.figure)
    good = isinstance(value, int | float) and row.get("ok") is not False
    return float(value) if good and isinstance(value, int | float) else None


def _reached(target: Target, value: float | None) -> bool | None:
    if value is None:
        return None
    if target.at_most is not None:
        return value <= target.at_most
    return value >= target.at_least if target.at_least is not None else None
