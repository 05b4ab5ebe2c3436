"""A node's section of the configuration, and what other sections say in the same words."""

import os
import re
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from moonpool.core.address import check_master
from moonpool.core.config import setting
from moonpool.core.errors import BadConfig
from moonpool.core.master_section import HOST, HOST_ID, TENANTS, TOKEN, TRACING
from moonpool.core.open_door import refuse_open_door
from moonpool.core.tls_section import TlsSection
from moonpool.core.units import BYTES_MAX

HOST_ID_CHARS_MAX = 128
DEFAULT_MASTER = "127.0.0.1:7400"
_NODE_NAME = re.compile(r"(\w[\w.-]{0,63})?", re.ASCII)  # also the name of files


MASTER = setting(
    "Address of the master, 'host:port', or 'etcd://host:2379/prefix' where its leader is found.",
    env="MOONPOOL_MASTER",
)
DIR = setting("Folder for segment files and sockets; empty: /dev/shm/moonpool-<uid>.")
PERSIST = setting("Keep the segment file when the node ends, for its next start to adopt.")


def check_host_id(section: str, host_id: str) -> None:
    """It goes into a hello and into every list of segments. Raises BadConfig."""
    if len(host_id) > HOST_ID_CHARS_MAX or not host_id.isprintable():
        raise BadConfig(
            f"{section}.host_id = {host_id[:40]!r} names no host; give at most "
            f"{HOST_ID_CHARS_MAX} printable characters"
        )


def default_directory() -> Path:
    """Where this user's segments live: memory, and nobody else's."""
    return Path(f"/dev/shm/moonpool-{os.getuid()}")


def directory_of(text: str) -> Path:
    """`text` as given in a section, absolute because other processes are told it."""
    return Path(text).expanduser().absolute() if text else default_directory()


class NodeConfig(TlsSection, frozen=True, kw_only=True):
    """A process that lends a segment of memory."""

    SECTION: ClassVar[str] = "node"

    master: Annotated[str, MASTER] = DEFAULT_MASTER
    name: Annotated[
        str, setting("Name of the node and its files; empty: made from the host's name.")
    ] = ""
    memory: Annotated[
        int,
        setting("Memory lent, as '8GiB'.", unit="bytes", minimum=4096, maximum=BYTES_MAX),
    ] = 1 << 30
    headroom: Annotated[
        int | Literal["auto"],
        setting("Memory on top for writes in flight and pinned views, or 'auto'.", unit="bytes"),
    ] = "auto"
    slots: Annotated[
        int,
        setting("Objects the segment holds at most; 0: by its size.", minimum=0, maximum=2**31 - 1),
    ] = 0
    rows: Annotated[
        int,
        setting("Client processes that can map the segment at once.", minimum=1, maximum=65_536),
    ] = 1024
    host: Annotated[str, HOST] = "127.0.0.1"
    port: Annotated[
        int,
        setting("TCP port of the data plane; 0 takes any free one.", minimum=0, maximum=65535),
    ] = 0
    host_id: Annotated[str, HOST_ID] = ""
    dir: Annotated[str, DIR] = ""
    persist: Annotated[bool, PERSIST] = True
    labels: Annotated[
        dict[str, str],
        setting("Failure domains and classes, as 'rack=a,zone=b'."),
    ] = {}
    token: Annotated[str, TOKEN] = ""
    tenants: Annotated[str, TENANTS] = ""
    tracing: Annotated[bool, TRACING] = False
    tenant: Annotated[
        str,
        setting(
            "The one tenant whose objects the segment takes, so that its clients on this host may "
            "map it; empty: all, and where there are tenants only the operator maps it."
        ),
    ] = ""
    heartbeat_ms: Annotated[
        int,
        setting("Time between reports to the master.", unit="ms", minimum=10, maximum=60_000),
    ] = 500

    vram: Annotated[
        int,
        setting(
            "Memory of a device lent as a tier below the host's, as '8GiB'; 0: none. Needs torch.",
            unit="bytes",
            minimum=0,
            maximum=BYTES_MAX,
        ),
    ] = 0
    vram_device: Annotated[
        str, setting("Whose: 'cuda', 'cuda:1', or 'cpu' to try it without one.")
    ] = "cuda"

    disk: Annotated[str, setting("Folder on a disk for a tier below memory; empty: none.")] = ""
    disk_size: Annotated[
        int,
        setting(
            "Bytes that the disk tier's files may take, as '200GiB'.",
            unit="bytes",
            minimum=1 << 20,
            maximum=BYTES_MAX,
        ),
    ] = 10 << 30
    disk_direct: Annotated[
        bool, setting("Write and read the disk tier past the page cache (O_DIRECT).")
    ] = False
    disk_sync: Annotated[
        bool,
        setting(
            "Each object reaches the disk before it counts; without it a crash of the whole "
            "machine empties the disk tier."
        ),
    ] = False

    remote: Annotated[
        str,
        setting(
            "Object store for a tier below memory and disk, as 's3://bucket/prefix' or "
            "'file:///folder'; empty: none. Its index lies in `disk`, or else beside the segment."
        ),
    ] = ""
    remote_size: Annotated[
        int,
        setting(
            "Bytes that the remote tier may hold.", unit="bytes", minimum=4096, maximum=BYTES_MAX
        ),
    ] = 100 << 30

    @property
    def directory(self) -> Path:
        """`dir`, or the default one of this user."""
        return directory_of(self.dir)

    def check(self) -> None:
        super().check()
        check_master(self.master)
        if not _NODE_NAME.fullmatch(self.name):
            allowed = "letters, digits, '.', '_' and '-', at most 64, the first no sign"
            raise BadConfig(f"node.name = {self.name!r} cannot name a file; use {allowed}")
        if isinstance(self.headroom, int) and self.headroom < 0:
            raise BadConfig(f"node.headroom = {self.headroom} is negative; give a size or 'auto'")
        check_host_id(self.SECTION, self.host_id)
        refuse_open_door(self.SECTION, self.host, self.token)
