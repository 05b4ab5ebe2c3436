"""The decisions about a pool, without one: load or compute, and when to leave it alone."""

import pytest
import torch

from moonpool.cache.layout import HeadsLayout
from moonpool.cache.pages import PagePool
from moonpool.core.errors import BadConfig
from moonpool.engine.pooling.breaker import FIRST_PAUSE_S, LONGEST_PAUSE_S, Breaker
from moonpool.engine.pooling.cost import EXPLORE_EVERY, CostModel
from moonpool.engine.pooling.page_bytes import PageBytes


def test_what_is_unknown_is_tried() -> None:
    cost = CostModel()
    assert cost.worth_loading(100, 10**9)
    cost.computed(100, 1.0)
    assert cost.worth_loading(100, 10**9)


def test_the_faster_way_is_taken() -> None:
    cost = CostModel()
    cost.computed(64, 0.064)  # a token in 1 ms
    cost.loaded(10**6, 0.001)  # 1 GB/s
    assert cost.worth_loading(64, 10**7)
    assert not cost.worth_loading(64, 10**8)
    assert not cost.worth_loading(1, 2 * 10**6)


def test_a_slow_moment_is_forgotten() -> None:
    cost = CostModel()
    cost.computed(64, 0.064)
    cost.loaded(10**6, 10.0)
    tries = [cost.worth_loading(64, 10**6) for _ in range(2 * EXPLORE_EVERY)]
    assert tries.count(True) == 2
    for _ in range(40):
        cost.loaded(10**6, 0.001)
    assert cost.worth_loading(64, 10**6)


def test_when_a_pass_would_wait() -> None:
    cost = CostModel()
    assert not cost.slower_than_compute(10**9, 1)
    cost.computed(10, 0.010)
    cost.loaded(10**6, 0.001)
    assert cost.slower_than_compute(2 * 10**7, 10)
    assert not cost.slower_than_compute(5 * 10**6, 10)


def test_pauses_grow_and_end() -> None:
    breaker = Breaker()
    now, pauses = 0.0, []
    for _ in range(10):
        assert breaker.may_ask(now)
        breaker.failed(now)
        start = now
        while not breaker.may_ask(now):
            now += 0.25
        pauses.append(now - start)
    assert pauses[:3] == [FIRST_PAUSE_S, 2 * FIRST_PAUSE_S, 4 * FIRST_PAUSE_S]
    assert pauses[-1] == LONGEST_PAUSE_S
    breaker.worked()
    breaker.failed(now)
    assert breaker.may_ask(now + FIRST_PAUSE_S)


def pages_of(layers: int, page_first: bool = True) -> PagePool:
    layout = HeadsLayout(layers=layers, page_size=4, kv_heads=2, head_dim=8, page_first=page_first)
    return PagePool(layout, 6)


@pytest.mark.parametrize(("layers", "groups"), [(1, 1), (3, 3), (30, 6), (32, 8), (31, 1)])
def test_groups_of_layers(layers: int, groups: int) -> None:
    pool = pages_of(layers)
    memory = PageBytes(pool)
    assert memory.groups == groups and memory.size == pool.layout.bytes_per_page
    order = [memory.group_of(layer) for layer in range(layers)]
    assert order == sorted(order) and set(order) == set(range(groups))
    ends = [layer for layer in range(layers) if memory.ends_group(layer)]
    assert [memory.group_of(layer) for layer in ends] == list(range(groups))


def test_a_group_is_its_layers_bytes() -> None:
    pool = pages_of(6)
    pool.storage.copy_(torch.randn(pool.storage.shape))
    memory = PageBytes(pool)
    import numpy as np

    table = np.array([4, 1], np.int32)
    for place, page in enumerate(table.tolist()):
        parts = [memory.group(table, n)[place].tobytes() for n in range(memory.groups)]
        views = b"".join(bytes(view) for view in pool.page_views(page))
        assert b"".join(parts) == views == memory.whole(table)[place].tobytes()
    memory.group(table, 2)[0][:] = 0
    assert not pool.storage[4, 2].any() and pool.storage[4, 1].any()


def test_pages_in_pieces_are_not_connected() -> None:
    with pytest.raises(BadConfig, match="not connected to a pool"):
        PageBytes(pages_of(4, page_first=False))
