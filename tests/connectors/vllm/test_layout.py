"""Every layout that vLLM 0.32 names, moved byte for byte through pool objects and back."""

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from moonpool._core import LayerGate, crc32c
from moonpool.connectors.vllm.layout import GroupLayout, LayerBlocks, group_layouts
from moonpool.core.errors import BadConfig

# Physical order of the axes layer, block, head, token, content; the view is always [B, H, N, C].
LAYOUTS = ["LBHNC", "LBNHC", "LHBNC", "BLHNC", "BLNHC", "BHLNC"]
SIZES = {"L": 3, "B": 7, "H": 2, "N": 4, "C": 6}


def caches_of(layout: str, sizes: dict[str, int] = SIZES) -> dict[str, torch.Tensor]:
    """Per layer the view [B, H, N, C] on one allocation in this physical order."""
    total = int(np.prod([sizes[axis] for axis in layout]))
    whole = torch.arange(total, dtype=torch.int64).to(torch.int16)
    whole = whole.reshape([sizes[axis] for axis in layout])
    order = [layout.index(axis) for axis in "LBHNC"]
    return {f"layer.{i}": whole.permute(order)[i] for i in range(sizes["L"])}


def objects_for(group: GroupLayout, count: int) -> list[npt.NDArray[np.uint8]]:
    return list(np.zeros((count, group.object_bytes), np.uint8))


def sums_of(objects: list[npt.NDArray[np.uint8]]) -> list[int]:
    return [crc32c(data) for data in objects]


def moved(group: GroupLayout, source: list[int], target: list[int], layers: bool) -> None:
    """Blocks `source` into objects, and those into blocks `target`."""
    objects = objects_for(group, len(source))
    for layer in range(len(group)):
        group.gather(layer, source, objects)
    gate = LayerGate() if layers else None
    assert group.scatter(target, objects, sums_of(objects), gate) == [True] * len(source)
    if gate is not None:
        gate.wait_for(len(group) - 1)


@pytest.mark.parametrize("layers", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_blocks_travel_whole_and_touch_no_others(layout: str, layers: bool) -> None:
    caches = caches_of(layout)
    (group,) = group_layouts([list(caches)], caches, SIZES["B"])
    before = {name: cache.clone() for name, cache in caches.items()}
    moved(group, [1, 5], [3, 2], layers)
    for name, cache in caches.items():
        expected = before[name].clone()
        expected[3], expected[2] = before[name][1], before[name][5]
        assert torch.equal(cache, expected), name


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_object_holds_the_layers_in_order(layout: str) -> None:
    """Two engines of one layout pack alike, whatever else lies in their memory."""
    one, other = caches_of(layout), caches_of(layout, {**SIZES, "B": 9})
    for name in one:
        other[name][8] = one[name][4]
    packed = []
    for caches, block, blocks in ((one, 4, 7), (other, 8, 9)):
        (group,) = group_layouts([list(caches)], caches, blocks)
        objects = objects_for(group, 1)
        for layer in range(len(group)):
            group.gather(layer, [block], objects)
        packed.append(objects[0].tobytes())
    assert packed[0] == packed[1] and len(set(packed[0])) > 10


def test_contiguous_blocks_are_one_piece() -> None:
    layer = LayerBlocks.of_tensor("layer.0", caches_of("LBHNC")["layer.0"], SIZES["B"])
    size = 2 * 4 * 6 * 2
    assert layer.native()[1:] == (SIZES["B"], size, [0], size)


def test_kernel_blocks_smaller_than_the_engines() -> None:
    """vLLM splits a block of its scheduler into several of its kernels."""
    caches = caches_of("LBHNC", {**SIZES, "B": 8})
    (group,) = group_layouts([["layer.1"]], caches, 4)
    before = caches["layer.1"].clone()
    moved(group, [0], [3], layers=False)
    assert torch.equal(caches["layer.1"][6:8], before[0:2])
    assert torch.equal(caches["layer.1"][:6], before[:6])


def test_a_layer_that_shares_anothers_cache_counts_once() -> None:
    caches = caches_of("LBHNC")
    caches["shared"] = caches["layer.0"]
    (group,) = group_layouts([["layer.0", "shared", "layer.1"]], caches, SIZES["B"])
    assert group.names == ["layer.0", "layer.1"]


@pytest.mark.parametrize("bad", [-1, 7])
def test_a_block_outside_moves_nothing(bad: int) -> None:
    caches = caches_of("BLHNC")
    (group,) = group_layouts([list(caches)], caches, SIZES["B"])
    before = caches["layer.0"].clone()
    with pytest.raises(IndexError):
        group.scatter([0, bad], objects_for(group, 2))
    with pytest.raises(IndexError):
        group.scatter([0, bad], objects_for(group, 2), gate=LayerGate())
    with pytest.raises(IndexError):
        group.gather(0, [0, bad], objects_for(group, 2))
    assert torch.equal(caches["layer.0"], before)


@pytest.mark.parametrize("layers", [False, True])
def test_it_is_told_which_objects_have_another_sum(layers: bool) -> None:
    """The others are in place; those that came without a sum are taken as they are."""
    caches = caches_of("LBHNC")
    (group,) = group_layouts([list(caches)], caches, SIZES["B"])
    before = {name: cache.clone() for name, cache in caches.items()}
    objects = objects_for(group, 4)
    sums = sums_of(objects)[:3]
    objects[1][7] ^= 1
    objects[3][7] ^= 1
    gate = LayerGate() if layers else None
    assert group.scatter([2, 4, 6, 0], objects, sums, gate) == [True, False, True, True]
    for name, cache in caches.items():
        assert torch.equal(cache[1], before[name][1])
        assert not cache[2].any() and not cache[6].any()


def test_more_sums_than_objects_are_refused() -> None:
    caches = caches_of("LBHNC")
    (group,) = group_layouts([list(caches)], caches, SIZES["B"])
    with pytest.raises(ValueError, match="more than objects"):
        group.scatter([2], objects_for(group, 1), [1, 2])


@pytest.mark.parametrize("sizes", [[1], [0, 0], []])
def test_objects_of_another_size_or_number_are_refused(sizes: list[int]) -> None:
    caches = caches_of("LBHNC")
    (group,) = group_layouts([list(caches)], caches, SIZES["B"])
    objects = [np.zeros(group.object_bytes + more, np.uint8) for more in sizes]
    with pytest.raises(ValueError, match=r"an object of \d+ bytes|as many objects"):
        group.scatter([3], objects)


@pytest.mark.parametrize(
    ("caches", "blocks", "text"),
    [
        ({}, 7, "is missing"),
        ({"layer.0": [torch.zeros(1)]}, 7, "several tensors"),
        ({"layer.0": torch.zeros(7, 2)}, 3, "no multiple of the engine's 3 blocks"),
        ({"layer.0": torch.zeros(7, 2, device="meta")}, 7, "CPU memory only"),
    ],
)
def test_what_cannot_be_stored_is_said(caches: dict[str, object], blocks: int, text: str) -> None:
    with pytest.raises(BadConfig, match=text):
        group_layouts([["layer.0"]], caches, blocks)


@given(
    layout=st.permutations("LBHNC").map("".join),
    sizes=st.fixed_dictionaries({axis: st.integers(1, 5) for axis in "LHNC"}),
    data=st.data(),
)
def test_any_strides(layout: str, sizes: dict[str, int], data: st.DataObject) -> None:
    caches = caches_of(layout, {**sizes, "B": 6})
    (group,) = group_layouts([list(caches)], caches, 6)
    blocks = data.draw(st.permutations(range(6)))
    before = {name: cache.clone() for name, cache in caches.items()}
    moved(group, blocks[:3], blocks[3:], layers=data.draw(st.booleans()))
    for name, cache in caches.items():
        expected = before[name].clone()
        for source, target in zip(blocks[:3], blocks[3:], strict=True):
            expected[target] = before[name][source]
        assert torch.equal(cache, expected)


def test_strides_in_elements_become_bytes() -> None:
    memory = np.arange(64, dtype=np.uint8)
    layer = LayerBlocks.of_strides(memory, (2, 2, 3), (8, 4, 1), 1, 4, 2)
    assert layer.block_bytes == 24
    assert layer.native()[1:] == (2, 8 * 4, [1 * 4, (1 + 4) * 4], 12)
