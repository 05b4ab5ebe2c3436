"""Every section of the configuration. One page, so that names and defaults stay of one piece."""

from pathlib import Path
from typing import Annotated, ClassVar, Literal

from moonpool.core.address import check_master
from moonpool.core.admin_section import AdminConfig
from moonpool.core.config import Schema, Section, setting
from moonpool.core.engine_section import EngineConfig
from moonpool.core.errors import BadConfig, did_you_mean
from moonpool.core.master_section import HOST, HOST_ID, TOKEN, TRACING
from moonpool.core.master_section import MasterConfig as MasterConfig
from moonpool.core.master_section import PolicyName as PolicyName
from moonpool.core.node_section import DEFAULT_MASTER as DEFAULT_MASTER
from moonpool.core.node_section import DIR, MASTER, PERSIST, check_host_id, directory_of
from moonpool.core.node_section import NodeConfig as NodeConfig
from moonpool.core.node_section import default_directory as default_directory
from moonpool.core.open_door import refuse_open_door
from moonpool.core.router_section import RouterConfig
from moonpool.core.serve_section import ServeConfig
from moonpool.core.tls_section import TlsSection
from moonpool.core.units import BYTES_MAX

RAIL_POLICIES = ("affinity", "spread", "single")


class ClientConfig(TlsSection, frozen=True, kw_only=True):
    """A process that puts and gets."""

    SECTION: ClassVar[str] = "client"

    master: Annotated[str, MASTER] = DEFAULT_MASTER
    token: Annotated[str, TOKEN] = ""
    timeout_ms: Annotated[
        int,
        setting("Deadline of a call that names none.", unit="ms", minimum=1, maximum=86_400_000),
    ] = 5000
    cache_entries_max: Annotated[
        int,
        setting(
            "Placements remembered; 0 asks the master each time.", minimum=0, maximum=2**31 - 1
        ),
    ] = 1_000_000
    touch_flush_ms: Annotated[
        int,
        setting(
            "Reads are reported for recency at the latest after this time.",
            unit="ms",
            minimum=1,
            maximum=60_000,
        ),
    ] = 1000
    pinned_bytes_max: Annotated[
        int,
        setting("Bytes of open views at most.", unit="bytes", minimum=0, maximum=BYTES_MAX),
    ] = 1 << 30
    verify: Annotated[bool, setting("Check the CRC-32C of every whole object read.")] = True
    tracing: Annotated[bool, TRACING] = False
    shared_memory: Annotated[
        bool, setting("Map segments of the same host; otherwise their bytes travel over TCP, too.")
    ] = True

    hedge_ms: Annotated[
        int,
        setting(
            "A read from another host that is silent for so long is begun on the next copy, too; "
            "0: what earlier reads took says how long, -1: never.",
            unit="ms",
            minimum=-1,
            maximum=60_000,
        ),
    ] = 0
    labels: Annotated[
        dict[str, str],
        setting(
            "Where it runs, as 'rack=a,zone=b': of several copies those on nodes that share more "
            "of these are read first. Empty: the labels of the nodes on its host. On its own host "
            "it compares nodes, too ('numa=0')."
        ),
    ] = {}
    host_id: Annotated[str, HOST_ID] = ""

    def check(self) -> None:
        super().check()
        check_host_id(self.SECTION, self.host_id)
        check_master(self.master)


class TransferConfig(Section, frozen=True, kw_only=True):
    """Moving bytes between registered memory of two processes."""

    SECTION: ClassVar[str] = "transfer"

    deadline_ms: Annotated[
        int,
        setting("Deadline of an op that names none.", unit="ms", minimum=1, maximum=86_400_000),
    ] = 5000
    connect_timeout_ms: Annotated[
        int,
        setting("Deadline of a connect and its hello.", unit="ms", minimum=1, maximum=600_000),
    ] = 2000
    checksum: Annotated[bool, setting("CRC-32C over raw reads and writes.")] = True
    token: Annotated[str, TOKEN] = ""
    dir: Annotated[str, DIR] = ""
    shared_memory: Annotated[
        bool, setting("Move bytes between processes of one host through shared memory.")
    ] = True
    share_cpu: Annotated[
        bool,
        setting(
            "Over TCP on one host, small reads waited for one by one keep both ends on one CPU."
        ),
    ] = True
    file_backend: Annotated[
        Literal["auto", "io_uring", "threads"],
        setting("Moves blocks of files: io_uring, threads, or auto (the first if possible)."),
    ] = "auto"
    file_depth: Annotated[
        int,
        setting("Pieces of file ops that io_uring has at once.", minimum=1, maximum=4096),
    ] = 32
    file_threads: Annotated[
        int, setting("Threads that move file blocks without io_uring.", minimum=1, maximum=256)
    ] = 4
    inline_bytes: Annotated[
        int,
        setting(
            "Copies up to here run on the submitting thread, larger ones on a worker.",
            unit="bytes",
            minimum=0,
            maximum=BYTES_MAX,
        ),
    ] = 2 << 20
    queue_ops_max: Annotated[
        int,
        setting("Ops that may wait for the worker or for a reconnect.", minimum=1, maximum=65_536),
    ] = 1024
    notifications_max: Annotated[
        int,
        setting(
            "Notifications of peers that may wait to be taken; 0: none is taken in.",
            minimum=0,
            maximum=65_536,
        ),
    ] = 1024
    stripe_bytes: Annotated[
        int,
        setting(
            "Ops from here on are cut into slices when a peer has several rails.",
            unit="bytes",
            minimum=4096,
            maximum=BYTES_MAX,
        ),
    ] = 4 << 20
    slice_bytes: Annotated[
        int,
        setting("What a slice carries at most.", unit="bytes", minimum=4096, maximum=BYTES_MAX),
    ] = 1 << 20
    striped_ops_max: Annotated[
        int, setting("Ops in slices that may be open at once.", minimum=1, maximum=65_536)
    ] = 1024
    nixl: Annotated[
        bool,
        setting("Also offer memory to peers, and reach theirs, through NIXL (moonpool[nixl])."),
    ] = False
    heartbeat_ms: Annotated[
        int,
        setting(
            "How often a peer is asked whether it lives; 0: never.",
            unit="ms",
            minimum=0,
            maximum=60_000,
        ),
    ] = 200
    hang_ms: Annotated[
        int,
        setting(
            "A peer that stops is given up within this time, and its ops end.",
            unit="ms",
            minimum=1,
            maximum=600_000,
        ),
    ] = 1000

    rail_policy: Annotated[
        str,
        setting(
            "Which rails an op takes: 'affinity' those whose cards are on the NUMA nodes of its "
            "memory, 'spread' all alike, 'single' the first one that is up."
        ),
    ] = "affinity"
    rail_pin: Annotated[
        str,
        setting("Our interfaces, and peers' hosts or addresses, that may carry data; empty: all."),
    ] = ""
    rail_forbid: Annotated[
        str, setting("Interfaces, hosts or addresses that may not, separated by commas.")
    ] = ""
    etcd: Annotated[
        str,
        setting("Directory of engines, as etcd://HOST:PORT/PREFIX; empty: peers by address only."),
    ] = ""
    name: Annotated[
        str, setting("Name of this engine in the directory; empty: it is not announced.")
    ] = ""
    name_ttl_s: Annotated[
        int,
        setting(
            "An engine that died leaves the directory after it.", unit="s", minimum=1, maximum=3600
        ),
    ] = 5

    @property
    def directory(self) -> Path:
        """`dir`, or the default one of this user."""
        return directory_of(self.dir)

    def check(self) -> None:
        if self.name and not self.etcd:
            raise BadConfig("transfer.name is for a directory: set transfer.etcd, too")
        if self.rail_policy not in RAIL_POLICIES:
            hint = did_you_mean(self.rail_policy, RAIL_POLICIES)
            raise BadConfig(
                f"transfer.rail_policy = {self.rail_policy!r} is none of "
                f"{', '.join(RAIL_POLICIES)}.{hint}"
            )
        if self.heartbeat_ms and self.hang_ms < 3 * self.heartbeat_ms:
            raise BadConfig(
                f"transfer.hang_ms = {self.hang_ms} leaves no time for an answer when the peer is "
                f"asked every {self.heartbeat_ms} ms; give at least three times as much"
            )


class HandoffConfig(Section, frozen=True, kw_only=True):
    """Prefill on one engine, decode on another: the side channel between the two."""

    SECTION: ClassVar[str] = "handoff"

    host: Annotated[str, HOST] = "127.0.0.1"
    port: Annotated[
        int,
        setting(
            "TCP port of the prefill worker's side channel, plus its tensor-parallel rank; 0 takes "
            "any free one.",
            minimum=0,
            maximum=65535,
        ),
    ] = 0
    token: Annotated[str, TOKEN] = ""
    beat_ms: Annotated[
        int, setting("How often each side says that it lives.", unit="ms", minimum=10, maximum=5000)
    ] = 200
    lease_ms: Annotated[
        int,
        setting(
            "A peer not heard for so long is gone, and a transfer it no longer names is over.",
            unit="ms",
            minimum=50,
            maximum=60_000,
        ),
    ] = 800
    expect_ms: Annotated[
        int,
        setting(
            "Prefill waits so long for the request that a decode worker came for.",
            unit="ms",
            minimum=50,
            maximum=600_000,
        ),
    ] = 10_000
    hold_ms: Annotated[
        int,
        setting(
            "Prefill keeps a prompt's blocks so long for a decode worker that never came.",
            unit="ms",
            minimum=50,
            maximum=600_000,
        ),
    ] = 10_000
    push_ms: Annotated[
        int, setting("Deadline of one push.", unit="ms", minimum=10, maximum=60_000)
    ] = 2000
    fence_ms: Annotated[
        int,
        setting(
            "Decode waits so long to hear that pushes have ended, then withdraws its memory.",
            unit="ms",
            minimum=10,
            maximum=60_000,
        ),
    ] = 300
    verify: Annotated[
        bool, setting("Compare a CRC-32C of all that arrived with one of what was sent.")
    ] = False

    def check(self) -> None:
        refuse_open_door(self.SECTION, self.host, self.token)
        if self.lease_ms < 2 * self.beat_ms:
            raise BadConfig(
                f"handoff.lease_ms = {self.lease_ms} is less than two beats of "
                f"{self.beat_ms} ms; a beat a little late would end every transfer"
            )


class UpConfig(Section, frozen=True, kw_only=True):
    """`moonpool up`: a master and nodes on this machine, in one command."""

    SECTION: ClassVar[str] = "up"

    nodes: Annotated[int, setting("Node processes.", minimum=1, maximum=64)] = 2
    memory: Annotated[
        int,
        setting("Memory of each node.", unit="bytes", minimum=4096, maximum=BYTES_MAX),
    ] = 1 << 30
    host: Annotated[str, HOST] = "127.0.0.1"
    port: Annotated[
        int,
        setting("TCP port of the master; 0 takes any free one.", minimum=0, maximum=65535),
    ] = 7400
    dir: Annotated[str, DIR] = ""
    persist: Annotated[bool, PERSIST] = False
    token: Annotated[str, TOKEN] = ""
    admin_port: Annotated[
        int,
        setting(
            "Port of the web page, metrics and HTTP API; 0 takes any free one, -1: none.",
            minimum=-1,
            maximum=65535,
        ),
    ] = -1

    @property
    def directory(self) -> Path:
        """`dir`, or the default one of this user."""
        return directory_of(self.dir)

    def check(self) -> None:
        refuse_open_door(self.SECTION, self.host, self.token)


SCHEMA = Schema(
    MasterConfig,
    NodeConfig,
    ClientConfig,
    TransferConfig,
    HandoffConfig,
    UpConfig,
    EngineConfig,
    ServeConfig,
    RouterConfig,
    AdminConfig,
)
