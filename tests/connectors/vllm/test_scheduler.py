"""What is loaded and stored, step by step, with a set of keys as the pool."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moonpool.connectors.vllm.counters import Counters
from moonpool.connectors.vllm.keys import KeySpaces, Shard
from moonpool.connectors.vllm.metadata import Namespace, StepPlan, WorkerReport
from moonpool.connectors.vllm.scheduler import GroupShape, Options, PoolScheduler
from tests.connectors.vllm.engine_shapes import BLOCK, Request, chain, identity


class World:
    """A scheduler, and the pool it looks into. `answers` False: the pool is away."""

    def __init__(
        self, block_sizes: tuple[int, ...] = (BLOCK,), tp_size: int = 1, **options: object
    ) -> None:
        self.spaces = KeySpaces(identity(tp_size=tp_size, block_sizes=block_sizes))
        self.keys: set[bytes] = set()
        self.asked = 0
        self.answers = True
        self.counters = Counters()
        self.namespace = Namespace()
        hash_tokens = min(block_sizes)
        self.scheduler = PoolScheduler(
            self.spaces,
            [GroupShape(size, size // hash_tokens) for size in block_sizes],
            hash_tokens,
            self.lookup,
            self.counters,
            Options(**options),  # type: ignore[arg-type]
            lambda request: self.namespace,
        )

    def lookup(self, keys: list[bytes]) -> list[bool] | None:
        self.asked += 1
        return [key in self.keys for key in keys] if self.answers else None

    def hold(self, digests: Sequence[bytes], group: int = 0, tp_rank: int = 0) -> None:
        self.keys |= set(self.spaces.keys(group, Shard(tp_rank), self.namespace, digests))

    def step(
        self, request: Request, computed: int, ids: Sequence[Sequence[int]], now: float = 0.0
    ) -> StepPlan:
        return self.scheduler.plan([(request.request_id, computed)], lambda _: ids, now)


def ids(count: int, first: int = 1) -> list[list[int]]:
    return [list(range(first, first + count))]


@pytest.mark.parametrize(
    ("tokens", "held", "hit"),
    [
        (10 * BLOCK + 5, 10, 10 * BLOCK),
        (10 * BLOCK, 10, 9 * BLOCK),  # one token is left to compute
        (10 * BLOCK + 1, 10, 10 * BLOCK),
        (10 * BLOCK, 3, 3 * BLOCK),
        (BLOCK, 1, 0),
        (BLOCK - 1, 0, 0),
        (1, 0, 0),
    ],
)
def test_a_hit_is_whole_blocks_and_never_the_whole_prompt(tokens: int, held: int, hit: int) -> None:
    world, request = World(), Request("a", tokens)
    world.hold(request.block_hashes[:held])
    assert world.scheduler.matched(request, 0, 0.0) == (hit, hit > 0)


def test_the_leading_run_counts() -> None:
    world, request = World(), Request("a", 10 * BLOCK)
    world.hold([*request.block_hashes[:4], *request.block_hashes[5:]])
    assert world.scheduler.matched(request, 0, 0.0)[0] == 4 * BLOCK


def test_a_load_begins_where_the_engines_own_blocks_end() -> None:
    world, request = World(), Request("a", 10 * BLOCK)
    world.hold(request.block_hashes)
    assert world.scheduler.matched(request, 3 * BLOCK, 0.0) == (6 * BLOCK, True)
    world.scheduler.allocated(request, ids(10), 6 * BLOCK)
    (job,) = world.step(request, 10 * BLOCK, ids(10)).loads
    assert job.runs[0].block_ids == [4, 5, 6, 7, 8, 9]
    assert job.runs[0].digests == request.block_hashes[3:9]


def test_a_hit_that_the_engine_does_not_take_is_not_loaded() -> None:
    world, request = World(), Request("a", 10 * BLOCK)
    world.hold(request.block_hashes)
    world.scheduler.matched(request, 0, 0.0)
    world.scheduler.allocated(request, ids(10), 0)
    assert world.step(request, 2 * BLOCK, ids(10)).loads == []


def test_asking_again_changes_nothing_and_costs_no_call() -> None:
    world, request = World(), Request("a", 10 * BLOCK)
    world.hold(request.block_hashes[:4])
    answers = [world.scheduler.matched(request, 0, now / 100) for now in range(20)]
    assert len(set(answers)) == 1 and world.asked == 1
    world.hold(request.block_hashes)
    assert world.scheduler.matched(request, 0, 1.0)[0] == 9 * BLOCK, "asked anew after a while"


def test_a_pool_that_does_not_answer_is_a_miss() -> None:
    world, request = World(), Request("a", 10 * BLOCK)
    world.hold(request.block_hashes)
    world.answers = False
    assert world.scheduler.matched(request, 0, 0.0) == (0, False)


def test_synchronous_loads_are_said_to_be() -> None:
    world, request = World(load="sync"), Request("a", 5 * BLOCK)
    world.hold(request.block_hashes)
    assert world.scheduler.matched(request, 0, 0.0) == (4 * BLOCK, False)
    world.scheduler.allocated(request, ids(5), 4 * BLOCK)
    (job,) = world.step(request, 5 * BLOCK, ids(5)).loads
    assert job.synchronous


def test_a_request_that_is_alone_waits_in_its_step_and_holds_up_no_other() -> None:
    world = World(load="auto")
    first, second = Request("a", 5 * BLOCK), Request("b", 5 * BLOCK)
    world.hold([*first.block_hashes, *second.block_hashes])
    assert world.scheduler.matched(first, 0, 0.0) == (4 * BLOCK, False)
    world.scheduler.allocated(first, ids(5), 4 * BLOCK)
    assert world.scheduler.matched(second, 0, 0.0) == (4 * BLOCK, True)
    world.scheduler.allocated(second, ids(5), 4 * BLOCK)
    loads = world.step(first, 5 * BLOCK, ids(5)).loads
    assert [job.synchronous for job in loads] == [True, False]
    world.scheduler.finished(first.request_id)
    assert world.scheduler.matched(second, 0, 1.0)[1] is False, "the other one is over"


def test_how_a_request_loads_goes_by_the_last_answer() -> None:
    """vLLM may ask again before it has room for the request."""
    world = World(load="auto")
    first, second = Request("a", 5 * BLOCK), Request("b", 5 * BLOCK)
    world.hold([*first.block_hashes, *second.block_hashes])
    assert world.scheduler.matched(first, 0, 0.0)[1] is False
    world.scheduler.matched(second, 0, 0.0)
    assert world.scheduler.matched(first, 0, 0.1)[1] is True
    world.scheduler.allocated(first, ids(5), 4 * BLOCK)
    assert [job.synchronous for job in world.step(first, 0, ids(5)).loads] == [False]


def test_small_hits_can_be_left() -> None:
    world, request = World(load_tokens_min=3 * BLOCK), Request("a", 5 * BLOCK)
    world.hold(request.block_hashes[:2])
    assert world.scheduler.matched(request, 0, 0.0) == (0, False)
    assert world.counters.take()["lookups_skipped/too_small"] == 1


def test_roles() -> None:
    producer, consumer = World(loads=False), World(saves=False)
    request = Request("a", 5 * BLOCK)
    for world in (producer, consumer):
        world.hold(request.block_hashes[:3])
    assert producer.scheduler.matched(request, 0, 0.0) == (0, False)
    assert producer.step(request, 5 * BLOCK, ids(5)).saves
    assert consumer.scheduler.matched(request, 0, 0.0)[0] == 3 * BLOCK
    assert not consumer.step(request, 5 * BLOCK, ids(5)).saves


# --- storing --------------------------------------------------------------------------------------


def test_each_chunk_stores_the_blocks_it_makes_whole() -> None:
    world, request = World(), Request("a", 10 * BLOCK + 7)
    world.scheduler.matched(request, 0, 0.0)
    jobs = [world.step(request, computed, ids(11)).saves for computed in (100, 110, 300, 327, 327)]
    runs = [job[0].runs[0].block_ids if job else [] for job in jobs]
    assert runs == [[1, 2, 3], [], [4, 5, 6, 7, 8, 9], [10], []]
    assert [job[0].parents for job in jobs if job] == [
        [None],
        [request.block_hashes[2]],
        [request.block_hashes[8]],
    ]
    assert sum((job[0].runs[0].digests for job in jobs if job), []) == request.block_hashes


def test_what_the_pool_has_is_not_stored_again() -> None:
    world, request = World(), Request("a", 10 * BLOCK)
    world.hold(request.block_hashes[:4])
    world.scheduler.matched(request, 0, 0.0)
    world.scheduler.allocated(request, ids(10), 4 * BLOCK)
    (job,) = world.step(request, 10 * BLOCK, ids(10)).saves
    assert job.runs[0].block_ids == [5, 6, 7, 8, 9, 10]
    assert job.parents == [request.block_hashes[3]]


def test_a_prompt_that_is_all_the_engines_own_is_asked_for_before_it_is_stored() -> None:
    world, request = World(), Request("a", 4 * BLOCK)
    world.hold(request.block_hashes[:3])
    assert world.scheduler.matched(request, 3 * BLOCK, 0.0) == (0, False)
    assert world.asked == 0
    (job,) = world.step(request, 4 * BLOCK, ids(4)).saves
    assert world.asked == 1 and job.runs[0].block_ids == [4]


@pytest.mark.parametrize(("save_decode", "stored"), [(True, 5), (False, 3)])
def test_blocks_of_answers(save_decode: bool, stored: int) -> None:
    world, request = World(save_decode=save_decode), Request("a", 3 * BLOCK + 4)
    world.scheduler.matched(request, 0, 0.0)
    runs = []
    for computed in range(3 * BLOCK + 4, 5 * BLOCK + 1):
        runs += [job.runs[0] for job in world.step(request, computed, ids(6)).saves]
        request.grow(1)
    assert sum(len(each) for each in runs) == stored


def test_a_block_whose_hash_is_not_known_yet_waits() -> None:
    """Asynchronous scheduling computes a token before the scheduler has heard of it."""
    world, request = World(), Request("a", 2 * BLOCK)
    world.scheduler.matched(request, 0, 0.0)
    request.block_hashes.pop()
    assert world.step(request, 2 * BLOCK, ids(2)).saves[0].runs[0].block_ids == [1]
    request.block_hashes = chain("a", 2)
    assert world.step(request, 2 * BLOCK, ids(2)).saves[0].runs[0].block_ids == [2]


def test_an_ended_request_leaves_nothing() -> None:
    world, request = World(), Request("a", 2 * BLOCK)
    world.scheduler.matched(request, 0, 0.0)
    world.scheduler.finished(request.request_id)
    world.scheduler.finished("never heard of")
    assert len(world.scheduler) == 0
    assert world.step(request, 2 * BLOCK, ids(2)) == StepPlan([], [])


# --- failures -------------------------------------------------------------------------------------


def test_a_block_that_failed_is_not_promised_again_for_a_while() -> None:
    """Else vLLM asks, we promise, the load fails, vLLM asks: for ever."""
    world, request = World(failed_block_s=10.0), Request("a", 6 * BLOCK)
    world.hold(request.block_hashes)
    assert world.scheduler.matched(request, 0, 0.0)[0] == 5 * BLOCK
    world.scheduler.reported(WorkerReport(failed=((0, request.block_hashes[2]),)), now=1.0)
    assert world.scheduler.matched(request, 0, 1.0)[0] == 2 * BLOCK
    other = Request("a", 6 * BLOCK, request_id="other")
    assert world.scheduler.matched(other, 0, 2.0)[0] == 2 * BLOCK
    assert world.scheduler.matched(other, 0, 11.5)[0] == 5 * BLOCK


def test_after_a_failed_load_the_blocks_are_offered_again() -> None:
    world, request = World(), Request("a", 6 * BLOCK)
    world.hold(request.block_hashes[:4])
    world.scheduler.matched(request, 0, 0.0)
    world.scheduler.allocated(request, ids(6), 4 * BLOCK)
    assert world.step(request, 6 * BLOCK, ids(6)).failures_known == 0
    world.scheduler.reported(WorkerReport(1, ((0, request.block_hashes[1]),)), now=1.0)
    plan = world.step(request, 6 * BLOCK, ids(6))
    assert plan.failures_known == 1
    assert plan.saves[0].runs[0].block_ids == [1, 2, 3, 4, 5, 6] and plan.saves[0].parents == [None]


def test_blocks_without_their_parents_are_offered_from_the_first_on_but_not_for_ever() -> None:
    world, request = World(), Request("a", 4 * BLOCK)
    world.scheduler.matched(request, 0, 0.0)
    world.step(request, 4 * BLOCK, ids(4))
    offered = 0
    for _ in range(10):
        world.scheduler.reported(WorkerReport(orphans=(request.request_id, "gone")), now=1.0)
        offered += len(world.step(request, 4 * BLOCK, ids(4)).saves)
    assert 1 <= offered <= 3


# --- groups and shards ----------------------------------------------------------------------------


def test_all_groups_must_have_it_in_blocks_of_their_own() -> None:
    world = World(block_sizes=(32, 64))
    request = Request("a", 10 * 32)
    world.hold(request.block_hashes, group=0)
    world.hold(request.block_hashes[1::2][:3], group=1)
    assert world.scheduler.matched(request, 0, 0.0)[0] == 3 * 64
    world.scheduler.allocated(request, [list(range(1, 11)), list(range(21, 26))], 3 * 64)
    plan = world.step(request, 10 * 32, [list(range(1, 11)), list(range(21, 26))])
    assert [r.block_ids for r in plan.loads[0].runs] == [[1, 2, 3, 4, 5, 6], [21, 22, 23]]
    assert [r.block_ids for r in plan.saves[0].runs] == [[24, 25]]
    assert plan.saves[0].parents == [request.block_hashes[5]]


def test_blocks_a_window_has_passed_are_neither_loaded_nor_stored() -> None:
    world, request = World(block_sizes=(32, 32)), Request("a", 6 * 32)
    for group in (0, 1):
        world.hold(request.block_hashes[:4], group=group)
    world.scheduler.matched(request, 0, 0.0)
    tables = [[1, 2, 3, 4, 5, 6], [0, 0, 13, 14, 15, 16]]
    world.scheduler.allocated(request, tables, 4 * 32)
    plan = world.step(request, 6 * 32, tables)
    assert [r.block_ids for r in plan.loads[0].runs] == [[1, 2, 3, 4], [13, 14]]
    assert plan.loads[0].runs[1].digests == request.block_hashes[2:4]
    passed, late = [[1, 2, 3], [0, 0, 13]], Request("b", 3 * 32)
    world.scheduler.matched(late, 0, 0.0)
    assert [r.group for r in world.step(late, 3 * 32, passed).saves[0].runs] == [0]


def test_all_shards_must_have_it() -> None:
    world, request = World(tp_size=2), Request("a", 6 * BLOCK)
    world.hold(request.block_hashes, tp_rank=0)
    assert world.scheduler.matched(request, 0, 0.0)[0] == 0
    world.hold(request.block_hashes[:2], tp_rank=1)
    assert world.scheduler.matched(request, 0, 1.0)[0] == 2 * BLOCK


def test_namespaces_do_not_meet() -> None:
    world, request = World(), Request("a", 6 * BLOCK)
    world.hold(request.block_hashes)
    world.namespace = Namespace(adapter="x")
    assert world.scheduler.matched(request, 0, 0.0)[0] == 0


@given(st.data())
def test_whatever_the_chunks_every_block_is_stored_once_in_order(data: st.DataObject) -> None:
    total = data.draw(st.integers(1, 400))
    known = data.draw(st.integers(0, total // BLOCK))
    world, request = World(), Request("a", total)
    world.hold(request.block_hashes[:known])
    hit, _ = world.scheduler.matched(request, 0, 0.0)
    world.scheduler.allocated(request, ids(13), hit)
    computed, stored = hit, []
    while computed < total:
        computed = min(total, computed + data.draw(st.integers(1, 200)))
        for job in world.step(request, computed, ids(13)).saves:
            stored += list(zip(job.runs[0].block_ids, job.runs[0].digests, strict=True))
            assert job.runs[0].block_ids[-1] * BLOCK <= computed
    expected = list(zip(ids(13)[0], request.block_hashes, strict=False))
    assert stored == expected[known:]
