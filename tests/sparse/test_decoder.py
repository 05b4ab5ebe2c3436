"""A model's logits do not know where its cache lies (P12): equal to the bit for each pool,
transport, hot buffer and interleaving; sparse attention over everything is dense; a prefix that
goes away is opened again or computed anew."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import moonpool
from moonpool.core.errors import BadInput, Closed, LayoutMismatch, PrefixGone
from moonpool.sparse import HotBuffer, PrefixStore, SparsePool, SparseReader
from moonpool.sparse.decoder import Prefix, Session, follow, packaged, prefill, prefix_key, put
from moonpool.sparse.decoder.conversation import conversation
from moonpool.sparse.decoder.weights import F32
from moonpool.sparse.indexers import RecencyIndexer
from tests.faults.pool_rig import MIB, Rig, running
from tests.sparse.small_decoder import STEPS, TOKENS, TOP_K, Spoken, spoken

UNIT = 128


@pytest.fixture(scope="module")
def said() -> Spoken:
    return spoken()


@pytest.fixture(scope="module")
def want(said: Spoken) -> F32:
    """From local memory, with no buffer."""
    return said.answer(said.local)


@pytest.fixture
def pool(said: Spoken, tmp_path: Path) -> Iterator[SparsePool]:
    with stored(said, tmp_path) as opened:
        yield opened


def stored(said: Spoken, folder: Path, devices: int = 1, **options: object) -> SparsePool:
    options = {"hint_tokens": 2 * TOP_K, **options}
    paths = [folder / f"device{number}" for number in range(devices)]
    pool = SparsePool.create(paths, said.weights.layout, 1024, **options)  # type: ignore[arg-type]
    with pool.writer("a", TOKENS) as writer:
        put(said.prefix, writer)
        writer.seal(TOKENS)
    return pool


def buffers(said: Spoken) -> Iterator[HotBuffer]:
    """Of each size and policy, with and without a second level."""
    for rows in (TOP_K, TOP_K + 7, 3 * TOP_K, TOKENS):
        for policy in ("lru", "fifo", "random"):
            for second in (0, TOP_K):
                yield HotBuffer(said.weights.layout, rows, policy, second_rows=second)


@pytest.mark.parametrize("devices", [1, 3])
@pytest.mark.parametrize("interleave", ["page", "request", "none"])
def test_logits_do_not_know_of_devices(
    said: Spoken, want: F32, tmp_path: Path, devices: int, interleave: str
) -> None:
    with stored(said, tmp_path, devices, interleave=interleave) as pool:
        assert np.array_equal(said.answer(lambda: pool.reader("a")), want)


def test_logits_do_not_know_of_buffers(said: Spoken, want: F32, pool: SparsePool) -> None:
    for hot in buffers(said):
        assert np.array_equal(said.answer(lambda: pool.reader("a"), hot=hot), want)
        counted = hot.counters
        assert counted.rows == STEPS * said.weights.shape.layers * TOP_K
        assert counted.hits > 0 and counted.rows == counted.hits + counted.misses


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with running(nodes=1, memory=32 * MIB) as rig:
        yield rig


@pytest.mark.parametrize("transport", ["shm", "tcp", "full"])
def test_logits_do_not_know_of_transports(
    said: Spoken, want: F32, rig: Rig, transport: str
) -> None:
    """Objects in a node's memory: read in place, packed into frames, or fetched whole."""
    objects = rig.connect(shared_memory=transport == "shm")
    check_transport(said, want, objects, transport)


def test_logits_do_not_know_of_an_embedded_pool(said: Spoken, want: F32) -> None:
    with moonpool.Pool.local("64MiB") as objects:
        check_transport(said, want, objects, "auto")


def check_transport(said: Spoken, want: F32, objects: moonpool.Pool, transport: str) -> None:
    store = PrefixStore(objects, said.weights.layout, UNIT)
    with store.writer("a", TOKENS) as writer:
        put(said.prefix, writer)
        writer.seal()
    assert np.array_equal(said.answer(lambda: store.reader("a", transport)), want)
    for hot in buffers(said):
        got = said.answer(
            lambda: store.reader("a", transport), hot=hot, use_hint=True, keys_ahead=True
        )
        assert np.array_equal(got, want)
    store.remove("a")


@pytest.mark.parametrize("top_k", [TOKENS, TOKENS + 1, 10 * TOKENS])
def test_sparse_over_everything_is_dense(said: Spoken, pool: SparsePool, top_k: int) -> None:
    dense = said.answer(said.local, top_k=None)
    hot = HotBuffer(said.weights.layout, max(top_k, TOKENS))
    assert np.array_equal(said.answer(lambda: pool.reader("a"), top_k=top_k), dense)
    assert np.array_equal(said.answer(lambda: pool.reader("a"), top_k=top_k, hot=hot), dense)
    assert np.array_equal(said.answer(lambda: pool.reader("a"), top_k=None), dense)
    assert not np.array_equal(said.answer(said.local, top_k=TOKENS - 1), dense)


def test_decoding_goes_on_where_the_prompt_ended(said: Spoken) -> None:
    """What steps compute is what a longer prompt computes, but for the rounding of wider passes."""
    whole = [*said.talk.prompt.tolist(), *said.talk.asked.tolist()]
    dense = said.answer(said.local, top_k=None)
    assert np.allclose(dense[-1], prefill(said.weights, whole).logits, atol=2e-3)


def test_a_removed_prefix_is_opened_again(said: Spoken, want: F32, tmp_path: Path) -> None:
    """It went and came back under the session: another generation, the same bits."""
    with stored(said, tmp_path, lease_s=0.0) as pool:
        hot = HotBuffer(said.weights.layout, 2 * TOP_K)
        with Session(
            said.weights, lambda: pool.reader("a"), said.last, top_k=TOP_K, hot=hot
        ) as session:
            logits = []
            for token in said.talk.asked.tolist():
                pool.remove("a")
                with pool.writer("a", TOKENS) as writer:
                    put(said.prefix, writer)
                    writer.seal(TOKENS)
                logits.append(session.step(token))
            assert np.array_equal(np.stack(logits), want)
            assert session.counts == (STEPS, 0)


def test_a_prefix_that_goes_while_it_is_opened_leaves_no_reader_open(
    said: Spoken, want: F32, tmp_path: Path
) -> None:
    """Neither at the start, nor later, when the session goes on over rows of its own; one that
    cannot go on is closed."""
    opened: list[SparseReader] = []

    def write() -> None:
        with rows.writer("a", TOKENS) as writer:
            put(said.prefix, writer)
            writer.seal(TOKENS)

    def vanishing() -> SparseReader:
        opened.append(rows.reader("a"))
        if len(opened) != 2:
            rows.remove("a")
            write()
        return opened[-1]

    with stored(said, tmp_path, lease_s=0.0) as rows:
        with pytest.raises(PrefixGone):
            Session(said.weights, vanishing, said.last, top_k=None)
        hot = HotBuffer(said.weights.layout, 2 * TOP_K)
        with Session(
            said.weights,
            vanishing,
            said.last,
            top_k=TOP_K,
            hot=hot,
            use_hint=True,
            recompute=lambda: said.prefix,
        ) as session:
            rows.remove("a")
            write()
            assert np.array_equal(follow(session, said.talk).logits, want)
            assert session.counts == (0, 1) and len(opened) == 3
        for reader in opened:
            with pytest.raises(Closed):
                reader.gather(0, [0])
        with pytest.raises(Closed, match="begin another one"):
            session.step(0)


@pytest.mark.parametrize("at", range(STEPS))
def test_an_evicted_prefix_is_computed_anew(
    said: Spoken, want: F32, tmp_path: Path, at: int
) -> None:
    """Others needed the room; the session goes on with rows of its own, to the bit."""
    with stored(said, tmp_path, lease_s=0.0) as pool:
        again: list[Prefix] = []

        def recompute() -> Prefix:
            again.append(prefill(said.weights, said.talk.prompt.tolist()))
            return again[-1]

        with Session(
            said.weights, lambda: pool.reader("a"), said.last, top_k=TOP_K, recompute=recompute
        ) as session:
            logits = []
            for number, token in enumerate(said.talk.asked.tolist()):
                if number == at:
                    pool.writer("b", 1024).close()
                    assert not pool.exists("a")
                logits.append(session.step(token))
            assert np.array_equal(np.stack(logits), want)
            assert session.counts == (0, 1) and session.reader.kind == "local"
        assert np.array_equal(again[0].rows, said.prefix.rows)


def test_objects_that_go_are_computed_anew(said: Spoken, want: F32) -> None:
    for transport, recomputed in (("tcp", 1), ("shm", 0), ("full", 0)):
        with moonpool.Pool.local("64MiB") as objects:
            store = PrefixStore(objects, said.weights.layout, UNIT)
            with store.writer("a", TOKENS) as writer:
                put(said.prefix, writer)
                writer.seal()
            with Session(
                said.weights,
                lambda: store.reader("a", transport),  # noqa: B023
                said.last,
                top_k=TOP_K,
                recompute=lambda: said.prefix,
            ) as session:
                first = session.step(int(said.talk.asked[0]))
                store.remove("a")
                rest = [session.step(token) for token in said.talk.asked[1:].tolist()]
                assert np.array_equal(np.stack([first, *rest]), want)
                # Views and copies outlive a removal.
                assert session.counts == (0, recomputed)


def test_a_prefix_that_is_gone_for_good_is_the_callers(said: Spoken, tmp_path: Path) -> None:
    with stored(said, tmp_path, lease_s=0.0) as pool:
        with Session(said.weights, lambda: pool.reader("a"), said.last, top_k=TOP_K) as session:
            pool.remove("a")
            pool.reap()
            with pytest.raises(PrefixGone):
                session.step(1)
            assert session.decoded == 0


def test_a_hint_brings_the_first_rows_in_one_go(said: Spoken, want: F32, pool: SparsePool) -> None:
    cold, warm = (HotBuffer(said.weights.layout, 2 * TOP_K) for _ in range(2))
    for hot, use_hint in ((cold, False), (warm, True)):
        got = said.answer(lambda: pool.reader("a"), hot=hot, use_hint=use_hint)
        assert np.array_equal(got, want)
    with pool.reader("a") as reader:
        assert [len(column) for column in reader.hint()] == [2 * TOP_K] * 3


def test_other_indexers_are_as_exact(said: Spoken, pool: SparsePool) -> None:
    recent = RecencyIndexer(2)
    here = said.answer(said.local, indexer=recent)
    assert np.array_equal(said.answer(lambda: pool.reader("a"), indexer=recent), here)


def test_what_cannot_be_is_said(said: Spoken, pool: SparsePool) -> None:
    layout = said.weights.layout
    for options, says in (
        ({"top_k": 0}, "top_k is at least 1"),
        ({"hot": HotBuffer(layout, TOP_K - 1)}, "the hot buffer has 39"),
    ):
        with pytest.raises(BadInput, match=says):
            said.answer(lambda: pool.reader("a"), **options)
    with pytest.raises(LayoutMismatch, match="layers 3, not 4"):
        Session(packaged(), lambda: pool.reader("a"), 1, top_k=8)
    with pytest.raises(LayoutMismatch, match="another model"):
        SparsePool.open(pool.paths, spoken(64, seed=1).weights.layout)
    with Session(said.weights, said.local, said.last, top_k=8) as session:
        for token in (-1, said.weights.shape.vocabulary):
            with pytest.raises(BadInput, match="tokens are 0 to"):
                session.step(token)
    for prompt in ([], [-1], [said.weights.shape.vocabulary]):
        with pytest.raises(BadInput, match="a prompt has tokens 0 to"):
            prefill(said.weights, prompt)


def test_keys_name_tokens_and_weights(said: Spoken) -> None:
    other = spoken(64, seed=1).weights
    keys = {prefix_key(w, t) for w in (said.weights, other) for t in ([1, 2], [1, 3])}
    assert len(keys) == 4


def test_the_trained_decoder_looks_up_what_it_was_told(tmp_path: Path) -> None:
    """Dense, and with the 64 tokens that its indexer chooses; the newest 64 are not enough."""
    weights, talk = packaged(), conversation(1024, 400)
    prefix = prefill(weights, talk.prompt.tolist())
    layout = weights.layout
    with SparsePool.create(tmp_path / "pool", layout, 1024) as pool:
        with pool.writer("a", 1024) as writer:
            put(prefix, writer)
            writer.seal(1024)

        def right(**options: object) -> float:
            with Session(
                weights,
                lambda: pool.reader("a"),
                int(talk.prompt[-1]),
                **options,  # type: ignore[arg-type]
            ) as session:
                return follow(session, talk).right

        assert right(top_k=None) > 0.65
        sparse = right(top_k=64, hot=HotBuffer(layout, 128))
        assert sparse > 0.65
        assert right(top_k=64, indexer=RecencyIndexer()) < sparse - 0.1
