"""A node that cannot have its segment says why, in one typed error."""

import socket
from pathlib import Path

import msgspec
import pytest

from moonpool import Pool
from moonpool.core.clock import SystemClock
from moonpool.core.errors import BadConfig, MoonpoolError, SegmentLocked, SegmentSpace
from moonpool.core.sections import NodeConfig
from moonpool.pool.cluster import local_directory
from moonpool.pool.node import NodeServer
from moonpool.pool.node_segments import open_segment
from moonpool.pool.tier_open import open_tiers

MEMORY = 1 << 20


def config(directory: Path, *, name: str = "n", memory: int = MEMORY) -> NodeConfig:
    return NodeConfig(name=name, memory=memory, headroom=MEMORY, dir=str(directory))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "segments"
    made.mkdir(mode=0o700)
    return made


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadConfig, match=r"node\.dir"):
        open_segment(config(tmp_path / "file" / "below"))


def test_a_folder_that_is_open_to_others(folder: Path) -> None:
    folder.chmod(0o777)
    with pytest.raises(MoonpoolError, match="closed to others"):
        open_segment(config(folder))


def test_more_memory_than_there_is() -> None:
    """Asked before it is taken: else the kernel kills somebody for it."""
    with local_directory("test") as folder:
        with pytest.raises(SegmentSpace, match="are free"):
            open_segment(config(folder, memory=1 << 45))
        assert list(folder.iterdir()) == []
    for memory in (1 << 45, 1 << 62):
        with pytest.raises(SegmentSpace, match="are free"):
            Pool.local(memory)


def test_more_memory_than_a_segment_can_have() -> None:
    with pytest.raises(BadConfig):
        Pool.local("1MiB", headroom=1 << 47, slots=-1)


def test_two_nodes_of_one_name(folder: Path) -> None:
    first, _ = open_segment(config(folder))
    with pytest.raises(SegmentLocked, match="n.seg"):
        open_segment(config(folder))
    first.close()


def test_another_size_than_before(folder: Path) -> None:
    first, _ = open_segment(config(folder))
    first.close()
    with pytest.raises(BadConfig, match="asked for 2 MiB"):
        open_segment(config(folder, memory=2 * MEMORY))
    open_segment(config(folder))[0].close()


@pytest.mark.parametrize(("was", "asked"), [("", "a"), ("a", ""), ("a", "b")])
def test_a_segment_that_served_others(folder: Path, was: str, asked: str) -> None:
    """Who may map it would read what they left there."""
    settings = config(folder)
    open_segment(msgspec.structs.replace(settings, tenant=was))[0].close()
    with pytest.raises(BadConfig, match=r"n\.seg .*remove it to start empty"):
        open_segment(msgspec.structs.replace(settings, tenant=asked))
    open_segment(msgspec.structs.replace(settings, tenant=was))[0].close()


@pytest.mark.parametrize(("was", "asked"), [("", "a"), ("a", ""), ("a", "b")])
def test_a_disk_that_served_others(folder: Path, was: str, asked: str) -> None:
    settings = msgspec.structs.replace(config(folder), disk=str(folder), disk_size=1 << 26)

    def open_(tenant: str) -> None:
        for tier in open_tiers(
            msgspec.structs.replace(settings, tenant=tenant), "n", SystemClock()
        ):
            tier.agent.close()

    open_(was)
    with pytest.raises(BadConfig, match=r"n\.tier .*remove it to start empty"):
        open_(asked)
    open_(was)


@pytest.mark.parametrize("text", [b"", b"x" * 100_000])
def test_a_file_that_is_no_segment(folder: Path, text: bytes) -> None:
    (folder / "n.seg").write_bytes(text)
    with pytest.raises(MoonpoolError, match="n.seg"):
        open_segment(config(folder))
    assert (folder / "n.seg").read_bytes() == text


def test_a_socket_path_that_is_too_long(folder: Path) -> None:
    deep = folder / ("d" * 60)
    deep.mkdir(mode=0o700)
    with pytest.raises(BadConfig, match=r"\.sock"):
        NodeServer(config(deep, name="n" * 64))


def test_a_socket_that_cannot_be_made_leaves_no_new_segment(folder: Path) -> None:
    in_the_way = folder / "n.sock"
    in_the_way.mkdir()
    with pytest.raises(BadConfig, match=r"n\.sock"):
        NodeServer(config(folder))
    assert list(folder.iterdir()) == [in_the_way]


def test_an_error_names_the_segment_once(folder: Path) -> None:
    (folder / "n.seg").write_bytes(b"x" * 100_000)
    with pytest.raises(MoonpoolError) as damaged:
        open_segment(config(folder))
    (folder / "n.seg").unlink()
    first, _ = open_segment(config(folder))
    with pytest.raises(SegmentLocked) as locked:
        open_segment(config(folder))
    first.close()
    assert [str(caught.value).count("n.seg") for caught in (damaged, locked)] == [1, 1]


def test_a_port_that_is_taken_leaves_no_new_segment(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        how = msgspec.structs.replace(config(folder), port=taken.getsockname()[1])
        with pytest.raises(MoonpoolError, match="port"):
            NodeServer(how)
        assert list(folder.iterdir()) == []


def test_a_port_that_is_taken_leaves_an_old_segment_as_it_is(folder: Path) -> None:
    before, _ = open_segment(config(folder))
    before.raise_term(1, bytes(16))
    before.close()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        how = msgspec.structs.replace(config(folder), port=taken.getsockname()[1])
        with pytest.raises(MoonpoolError, match="port"):
            NodeServer(how)
    after, _ = open_segment(config(folder))
    assert (after.incarnation, after.term) == (before.incarnation, 1)
    after.close()
