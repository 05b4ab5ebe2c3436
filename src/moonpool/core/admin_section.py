"""The section of the admin service: the pool as people, Prometheus and small programs see it."""

from typing import Annotated, ClassVar, Literal

from moonpool.core.address import check_master
from moonpool.core.config import setting
from moonpool.core.open_door import refuse_open_door
from moonpool.core.tls_section import TlsSection
from moonpool.core.units import BYTES_MAX


class AdminConfig(TlsSection, frozen=True, kw_only=True):
    """The web page, the metrics and the HTTP API of a pool; a client of its master."""

    SECTION: ClassVar[str] = "admin"

    master: Annotated[
        str, setting("Address of the master, 'host:port'.", env="MOONPOOL_MASTER")
    ] = "127.0.0.1:7400"
    host: Annotated[
        str, setting("Interface to listen on; anything but loopback needs a token.")
    ] = "127.0.0.1"
    port: Annotated[
        int, setting("Port of the HTTP server; 0 takes any free one.", minimum=0, maximum=65535)
    ] = 7480
    token: Annotated[
        str,
        setting(
            "Secret of the cluster, asked of HTTP callers, too. Better given as MOONPOOL_TOKEN: "
            "command lines are seen by others.",
            env="MOONPOOL_TOKEN",
            secret=True,
        ),
    ] = ""
    poll_ms: Annotated[
        int, setting("Time between two looks at the master.", unit="ms", minimum=50, maximum=60_000)
    ] = 1000
    history_s: Annotated[
        int, setting("The page shows so much of the past.", unit="s", minimum=10, maximum=86_400)
    ] = 600
    object_bytes_max: Annotated[
        int,
        setting(
            "An object put or got over HTTP has so many bytes at most.",
            unit="bytes",
            minimum=1024,
            maximum=BYTES_MAX,
        ),
    ] = 64 << 20
    requests_max: Annotated[
        int, setting("Requests for objects under way at most.", minimum=1, maximum=65_536)
    ] = 64

    events: Annotated[
        bool,
        setting("Publish which blocks the pool holds over ZeroMQ, as vLLM publishes its own."),
    ] = False
    events_port: Annotated[
        int,
        setting("Port of these events; 0 takes any free one.", minimum=0, maximum=65535),
    ] = 5557
    replay_port: Annotated[
        int,
        setting(
            "Port where followers ask for events they missed; 0 takes any free one.",
            minimum=0,
            maximum=65535,
        ),
    ] = 5558
    events_form: Annotated[
        Literal["map", "array"],
        setting("'map' as vLLM since June 2026, 'array' as before and as SGLang."),
    ] = "map"
    events_prefix: Annotated[
        str,
        setting("Only of keys that begin so, as the prefix of a KeySpec; empty: of all blocks."),
    ] = ""
    events_block_size: Annotated[
        int, setting("Tokens a block, as told in the events.", minimum=1, maximum=1 << 20)
    ] = 16
    events_kept: Annotated[
        int,
        setting(
            "Messages kept for followers beside an account of the whole pool.",
            minimum=16,
            maximum=1 << 20,
        ),
    ] = 4096

    def check(self) -> None:
        super().check()
        check_master(self.master)
        refuse_open_door(self.SECTION, self.host, self.token)
