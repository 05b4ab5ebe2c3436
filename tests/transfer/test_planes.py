"""Layouts with planes: one op moves a range of layers of many pages, over every transport."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moonpool.core.errors import BadInput
from moonpool.transfer import Engine, Layout, Segment
from tests.transfer.conftest import segment, stamped

PAGES, LAYERS, PART = 9, 5, 256
NBYTES = PAGES * LAYERS * PART


def by_page(memory: Any) -> Layout:
    """[page][layer][PART]: a page's layers lie side by side."""
    made = memory.blocks(PART, stride=LAYERS * PART, planes=LAYERS, plane_stride=PART)
    assert isinstance(made, Layout)
    return made


def by_layer(memory: Any) -> Layout:
    """[layer][page][PART]: a layer's pages lie side by side."""
    made = memory.blocks(PART, planes=LAYERS, plane_stride=PAGES * PART)
    assert isinstance(made, Layout)
    return made


def test_both_orders_have_the_same_blocks() -> None:
    memory = segment(NBYTES)
    for layout in (by_page(memory), by_layer(memory)):
        assert (layout.count, layout.planes, layout.nbytes) == (PAGES, LAYERS, NBYTES)
        assert "5 planes" in repr(layout)
    offsets = by_layer(memory).range(1, 2).resolve([3, 0]).offsets
    assert offsets.tolist() == [PART * n for n in (12, 21, 9, 18)]
    offsets = by_page(memory).range(1, 2).resolve([3, 0]).offsets
    assert offsets.tolist() == [PART * n for n in (16, 17, 1, 2)]


@pytest.fixture
def ends(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[tuple[Engine, Any, Any, str]]:
    """An engine, the far end, its bytes to look at, and the transport between."""
    via = str(request.param)
    with Engine(dir=str(tmp_path / "one")) as owner, Engine(dir=str(tmp_path / "two")) as engine:
        if via == "file":
            path = tmp_path / "blocks"
            path.write_bytes(stamped(NBYTES, 7).tobytes())
            yield engine, engine.open_file(path), lambda: np.fromfile(path, np.uint8), via
            return
        far = owner.allocate(NBYTES, "kv")
        far.array[:] = stamped(NBYTES, 7)
        if via == "local":
            yield engine, far, lambda: far.array, via
        else:
            peer = engine.connect(owner.listen())
            yield engine, peer.segment("kv"), lambda: far.array, via


@pytest.mark.parametrize("ends", ["local", "shm", "tcp", "file"], indirect=True)
@pytest.mark.parametrize("kind", ["read", "write"])
def test_a_range_of_layers_changes_its_order(ends: tuple[Engine, Any, Any, str], kind: str) -> None:
    engine, far, far_bytes, via = ends
    mine = engine.register(stamped(NBYTES, 3))
    near_pages = mine.array.reshape(LAYERS, PAGES, PART).copy()
    far_pages = np.array(far_bytes()).reshape(PAGES, LAYERS, PART)
    here, there = by_layer(mine).range(1, 3), by_page(far).range(1, 3)
    near_ids, far_ids = np.array([0, 4, 8, 2]), np.array([3, 1, 0, 7])
    submit = engine.read if kind == "read" else engine.write
    op = submit(here, near_ids, there, far_ids, transport=via)
    assert op.wait()
    assert op.check().nbytes == 4 * 3 * PART and len(op.result.status) == 12
    for near_id, far_id in zip(near_ids.tolist(), far_ids.tolist(), strict=True):
        for layer in (1, 2, 3):
            if kind == "read":
                near_pages[layer, near_id] = far_pages[far_id, layer]
            else:
                far_pages[far_id, layer] = near_pages[layer, near_id]
    assert np.array_equal(mine.array, near_pages.reshape(-1))
    assert np.array_equal(far_bytes(), far_pages.reshape(-1))


def test_a_peer_publishes_planes() -> None:
    with Engine() as owner, Engine() as engine:
        owner.allocate(NBYTES, "kv").blocks(
            PART, planes=LAYERS, plane_stride=PAGES * PART, name="pages"
        )
        seen = engine.connect(owner.listen()).layout("pages")
        assert (seen.planes, seen.plane_stride, seen.count) == (LAYERS, PAGES * PART, PAGES)


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ({"planes": 0}, "planes 0"),
        ({"planes": 2, "plane_stride": PART - 1}, "overlap"),
        ({"planes": 3, "plane_stride": PART, "stride": 2 * PART}, "run into the next block"),
        ({"planes": LAYERS + 1, "plane_stride": PAGES * PART}, "no room"),
        ({"planes": 2.0}, "planes 2.0"),
    ],
)
def test_bad_planes(shape: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        segment(NBYTES).blocks(PART, **shape)


def test_planes_one_after_the_other_end_where_the_next_begins() -> None:
    whole = segment(NBYTES)
    assert whole.blocks(PART, planes=2, plane_stride=3 * PART).count == 3
    assert whole.blocks(PART, planes=2, plane_stride=PART, stride=PART).count == 1


def test_bad_ranges_and_mixed_layouts() -> None:
    layout = by_page(segment(NBYTES))
    with pytest.raises(BadInput, match=r"planes 3..5 are outside 0..4"):
        layout.range(3, 3)
    with pytest.raises(BadInput, match="first -1"):
        layout.range(-1, 1)
    with Engine() as engine:
        one, two = engine.allocate(NBYTES), engine.allocate(NBYTES)
        with pytest.raises(BadInput, match="has 5 planes and one at the other end 2"):
            engine.read(by_page(one), [0], by_page(two).range(0, 2), [0])
        with pytest.raises(BadInput, match="equally long"):
            engine.read(one.blocks(64), [0], two.blocks(128), [0])
        with pytest.raises(BadInput, match=r"block id 9 is outside 0..8"):
            engine.read(by_page(one), [9], by_page(two), [0])
        with pytest.raises(BadInput, match="give a segment or a layout"):
            engine.read(np.zeros(4), None, two, None)  # type: ignore[arg-type]
        with pytest.raises(BadInput, match="Did you mean 'file'"):
            engine.read(one, None, two, None, transport="flie")


def test_an_unregistered_buffer_is_no_end() -> None:
    with Engine() as engine:
        mine = engine.allocate(NBYTES)
        for stranger in (bytearray(NBYTES), memoryview(mine.buffer), "kv", None):
            with pytest.raises(BadInput, match="give a segment or a layout"):
                engine.write(mine, None, stranger, None)  # type: ignore[arg-type]
        assert isinstance(mine, Segment)
