"""The master's section of the configuration."""

from typing import Annotated, ClassVar, Literal

from moonpool.core.address import check_master, is_etcd, parse_address
from moonpool.core.config import setting
from moonpool.core.errors import BadConfig
from moonpool.core.open_door import refuse_open_door
from moonpool.core.tls_section import TlsSection
from moonpool.core.units import BYTES_MAX

PolicyName = Literal["lru", "lfu", "fifo", "s3fifo", "sieve", "arc", "horizon"]
PlacementName = Literal["local", "preferred", "free-ratio", "random"]
HOST_ID = setting(
    "Host that this process counts as; empty: this machine. Memory is mapped between processes of "
    "one host, copies lie on several hosts, and readers of several make an object hot.",
    env="MOONPOOL_HOST_ID",
)
HOST = setting("Interface to listen on; anything but loopback needs a token.")
TOKEN = setting(
    "Secret of the cluster. Better given as MOONPOOL_TOKEN: command lines are seen by others.",
    env="MOONPOOL_TOKEN",
    secret=True,
)
TENANTS = setting(
    "TOML file of the tenants, the same on master and nodes; empty: there are none.",
    env="MOONPOOL_TENANTS",
)
TRACING = setting(
    "Send OpenTelemetry spans of what it does (moonpool[otel]).", env="MOONPOOL_TRACING"
)


class MasterConfig(TlsSection, frozen=True, kw_only=True):
    """The process that decides placement."""

    SECTION: ClassVar[str] = "master"

    host: Annotated[str, HOST] = "127.0.0.1"
    port: Annotated[int, setting("TCP port; 0 takes any free one.", minimum=0, maximum=65535)] = (
        7400
    )
    token: Annotated[str, TOKEN] = ""
    tenants: Annotated[str, TENANTS] = ""
    tracing: Annotated[bool, TRACING] = False
    connections_per_peer_max: Annotated[
        int,
        setting("Connections from one IP address at most.", minimum=1, maximum=65_536),
    ] = 2048
    inflight_bytes_max: Annotated[
        int,
        setting(
            "Where there are tenants: while writers were promised more than this, puts wait and "
            "take turns by their tenants' weights.",
            unit="bytes",
            minimum=4096,
            maximum=BYTES_MAX,
        ),
    ] = 256 << 20
    node_lease_ms: Annotated[
        int,
        setting(
            "A node not heard for so long is lost and its objects are misses.",
            unit="ms",
            minimum=50,
            maximum=600_000,
        ),
    ] = 3000
    clock_slack_ms: Annotated[
        int,
        setting(
            "Added to a node's lease before its memory counts as unreadable.",
            unit="ms",
            minimum=0,
            maximum=60_000,
        ),
    ] = 200
    reservation_ms: Annotated[
        int,
        setting(
            "A put not committed within this time is aborted.",
            unit="ms",
            minimum=50,
            maximum=3_600_000,
        ),
    ] = 10_000
    rows_max: Annotated[
        int,
        setting("Objects the catalog holds at most.", minimum=1024, maximum=2**31 - 1),
    ] = 16_777_216
    events_max: Annotated[
        int,
        setting("Events kept for followers to resume from.", minimum=16, maximum=2**24),
    ] = 65_536
    grace_ms: Annotated[
        int,
        setting(
            "After its start the master lets puts and removals wait so long for nodes to report; "
            "at least a lease and the slack, so that nobody reads from a node it does not know. "
            "0: an embedded pool, no other node can exist.",
            unit="ms",
            minimum=0,
            maximum=600_000,
        ),
    ] = 3200
    policy: Annotated[
        PolicyName,
        setting("Which objects go first when a segment is full."),
    ] = "lru"
    repair_delay_s: Annotated[
        float,
        setting(
            "Objects of a node away longer get other copies, if they were put with several.",
            unit="s",
            minimum=0.1,
            maximum=86_400,
        ),
    ] = 10.0
    hot_reads_per_s: Annotated[
        float,
        setting(
            "An object read so often by hot_hosts hosts gets a copy more, where one of them is if "
            "it can be. 0: never.",
            minimum=0,
            maximum=1e9,
        ),
    ] = 0.0
    hot_hosts: Annotated[
        int, setting("Hosts that must read an object for it to be hot.", minimum=1, maximum=1024)
    ] = 3
    cold_after_s: Annotated[
        float,
        setting(
            "So long after it was hot last an object loses the additional copy.",
            unit="s",
            minimum=0.1,
            maximum=86_400,
        ),
    ] = 60.0
    placement: Annotated[
        PlacementName,
        setting(
            "Where new objects go: near their writer, where the writer prefers, by the share that "
            "is free, or anywhere."
        ),
    ] = "local"
    failure_domain: Annotated[
        str,
        setting(
            "Label of nodes that names what fails together, as 'rack'; copies lie in different "
            "ones where there are enough. Empty, and for nodes without it: the host."
        ),
    ] = ""
    slow_start_s: Annotated[
        float,
        setting(
            "An empty node that joins others is filled slowly for so long.",
            unit="s",
            minimum=0,
            maximum=3600,
        ),
    ] = 10.0
    high_watermark: Annotated[
        float,
        setting(
            "Share of a segment beyond which it is emptied to low_watermark after a put; 1: never, "
            "room is made only for who needs it.",
            minimum=0.01,
            maximum=1,
        ),
    ] = 1.0
    low_watermark: Annotated[
        float, setting("See high_watermark; at most as much.", minimum=0.01, maximum=1)
    ] = 1.0
    offload: Annotated[
        Literal["evict", "write", "off"],
        setting(
            "What is copied to tiers below memory: what a full segment would give up next, every "
            "put, or nothing more."
        ),
    ] = "evict"
    offload_watermark: Annotated[
        float,
        setting(
            "With offload = evict: share of a segment beyond which its coldest is copied down.",
            minimum=0,
            maximum=1,
        ),
    ] = 0.8
    promote_reads: Annotated[
        int,
        setting(
            "Reads within promote_window_s that bring an object back to memory. 0: none do.",
            minimum=0,
            maximum=255,
        ),
    ] = 2
    promote_window_s: Annotated[
        float,
        setting("See promote_reads.", unit="s", minimum=1, maximum=86_400),
    ] = 60.0
    nodes_expected: Annotated[
        int,
        setting(
            "Nodes of this pool: once as many have reported, nothing waits any longer. 0: unknown.",
            minimum=0,
            maximum=65_535,
        ),
    ] = 0
    forget_after_s: Annotated[
        int,
        setting(
            "A node away longer comes back empty.",
            unit="s",
            minimum=1,
            maximum=30 * 86_400,
        ),
    ] = 3600

    snapshot: Annotated[
        str,
        setting(
            "File that the catalog is written to now and then, so that after a restart nodes tell "
            "only what changed, and what was read last is known. Empty: none is written."
        ),
    ] = ""
    snapshot_interval_s: Annotated[
        float,
        setting("How often the snapshot is written.", unit="s", minimum=0.1, maximum=86_400),
    ] = 60.0
    ha: Annotated[
        str,
        setting(
            "Masters that share this 'etcd://host:2379,.../prefix' elect a leader, the others "
            "stand by. Empty: one master alone."
        ),
    ] = ""
    election_lease_ms: Annotated[
        int,
        setting(
            "A leader that has not renewed for so long is replaced.",
            unit="ms",
            minimum=200,
            maximum=600_000,
        ),
    ] = 1000
    advertise: Annotated[
        str,
        setting("Address that others are told in etcd; empty: host and port as they are."),
    ] = ""

    def check(self) -> None:
        super().check()
        if self.ha:
            if not is_etcd(self.ha):
                raise BadConfig(f"master.ha = {self.ha!r}: write 'etcd://host:2379/prefix'")
            check_master(self.ha)
            if self.snapshot:
                raise BadConfig(
                    f"master.snapshot = {self.snapshot!r} and master.ha: of several masters, those "
                    "that stand by know everything; drop one of the two"
                )
        if self.advertise:
            parse_address(self.advertise)
        refuse_open_door(self.SECTION, self.host, self.token)
        if self.low_watermark > self.high_watermark:
            raise BadConfig(
                f"master.low_watermark = {self.low_watermark} is above high_watermark = "
                f"{self.high_watermark}; give at most that"
            )
        least = self.node_lease_ms + self.clock_slack_ms
        if self.grace_ms and self.grace_ms < least:
            raise BadConfig(
                f"master.grace_ms = {self.grace_ms} is shorter than a node's lease and the clock "
                f"slack ({least} ms): a node not heard yet could still be read from; raise it"
            )
