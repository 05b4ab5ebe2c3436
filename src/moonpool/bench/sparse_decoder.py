"""The small decoder end to end: tokens by placement and buffer, logits compared to the bit, and
what each step beyond the paper is worth on its real choices.

Attention and indexer run in numpy beside the moving of rows, so a token's time is mostly theirs.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from moonpool.bench.runner import Row, Settings, make_row
from moonpool.bench.sparse_parts import node_for
from moonpool.pool.pool import Pool
from moonpool.sparse import HotBuffer, PrefixStore, SparseReader, gather_union
from moonpool.sparse.decoder import Session, conversation, packaged, prefill, put
from moonpool.sparse.decoder.conversation import Conversation, follow, record
from moonpool.sparse.decoder.weights import F32, Weights
from moonpool.sparse.layout import U32
from moonpool.sparse.traces import BUFFERS, summed_up

BENCH: Final = "sparse-decoder"
TOKENS: Final = 8192
STEPS: Final = 48  # fewer in a run of one or two rounds
SHARED: Final = 4
_KEY: Final = "bench/decoder"
_RATIO: Final = 64  # tokens to k


def rows(settings: Settings) -> Iterator[Row]:
    tokens = min(settings.tokens // 4 or TOKENS, TOKENS)  # they are computed, not only moved
    steps = min(STEPS, 10 * settings.rounds)
    weights, talk = packaged(), conversation(tokens, SHARED * steps)
    top_k = tokens // _RATIO
    prefix = prefill(weights, talk.prompt.tolist(), hint_tokens=4 * top_k)
    with node_for(2 * tokens * weights.layout.token_bytes) as (_, _, near, far):
        with PrefixStore(near, weights.layout).writer(_KEY, tokens) as writer:
            put(prefix, writer)
            writer.seal()
        bench = _Decoding(settings.rounds, weights, talk, top_k, {"shm": near, "tcp": far})
        yield bench.trace()
        for transport in ("shm", "tcp"):
            yield from bench.steps(transport)
            yield bench.hint(transport)
            yield bench.keys_ahead(transport)
            yield bench.union(transport)


class _Decoding:
    def __init__(
        self,
        rounds: int,
        weights: Weights,
        talk: Conversation,
        top_k: int,
        pools: dict[str, Pool],
    ) -> None:
        self._rounds = rounds
        self._weights = weights
        self._whole = talk
        self._steps = len(talk.asked) // SHARED
        self._talk = self._part(0)
        self._top_k = top_k
        self._pools = pools
        self._last = int(talk.prompt[-1])
        self._wanted = np.empty(0, np.float32)

    def trace(self) -> Row:
        """What is chosen, and how much of it is right, beside dense attention."""
        trace, sparse = record(self._weights, self._talk, self._top_k)
        self._wanted = sparse.logits
        with self._session("shm", top_k=None) as session:
            dense = follow(session, self._talk)
        summary = summed_up(trace)
        figures: Row = {
            "steps": summary.steps,
            "top_k": summary.top_k,
            "step_overlap": summary.overlap,
            "touched_share": summary.touched,
            "looked_up": sparse.right,
            "looked_up_dense": dense.right,
        }
        for times, miss, recall in zip(BUFFERS, summary.miss, summary.hint_recall, strict=True):
            figures |= {f"miss_{times}k": miss, f"hint_recall_{times}k": recall}
        return self._row("trace", figures)

    def steps(self, transport: str) -> Iterator[Row]:
        """Time of a token with no buffer, and with each size of one."""
        for times in (0, *BUFFERS):
            hot = self._hot(times) if times else None
            laps: list[float] = []
            with self._session(transport, hot=hot) as session:
                logits = _timed_steps(session, self._talk, laps)
                moved = session.reader.counters.row_bytes
            figures: Row = {
                "buffer_rows": times * self._top_k,
                "token_ms": statistics.median(laps) * 1e3,
                "pool_bytes_a_token": moved / self._steps,
                "ok": bool(np.array_equal(logits, self._wanted)),
            }
            if hot is not None:
                figures["miss_ratio"] = hot.counters.fetched / hot.counters.rows
            yield self._row(f"{transport}-buffer-{times}k", figures)

    def hint(self, transport: str) -> Row:
        """The first token with a buffer that is empty, and with one filled from the prefill's
        hint (2k positions a layer, one frame) before it. Keys are there already."""
        figures: Row = {}
        ok = True
        for name, use_hint in (("cold", False), ("hinted", True)):
            laps, missed, filled = [], 0, []
            for _ in range(3 * self._rounds):
                hot = self._hot(2)
                begin = time.perf_counter()
                with self._session(transport, hot=hot, use_hint=use_hint) as session:
                    filled.append(time.perf_counter() - begin)
                    before = hot.counters.misses
                    begin = time.perf_counter()
                    logits = session.step(int(self._talk.asked[0]))
                    laps.append(time.perf_counter() - begin)
                    missed = hot.counters.misses - before
                ok = ok and bool(np.array_equal(logits, self._wanted[0]))
            figures[f"{name}_open_ms"] = statistics.median(filled) * 1e3
            figures[f"{name}_first_token_ms"] = statistics.median(laps) * 1e3
            figures[f"{name}_misses"] = missed
        both = [
            float(str(figures[f"{name}_open_ms"])) + float(str(figures[f"{name}_first_token_ms"]))
            for name in ("cold", "hinted")
        ]
        return self._row(f"{transport}-hint", {"hint_gain": both[0] / both[1], **figures, "ok": ok})

    def keys_ahead(self, transport: str) -> Row:
        """From opening to the first logits: index keys of a layer when it is reached, and one
        layer ahead of the arithmetic."""
        laps: dict[bool, list[float]] = {False: [], True: []}
        ok = True
        for _ in range(3 * self._rounds):
            for ahead, found in laps.items():
                begin = time.perf_counter()
                with self._session(transport, keys_ahead=ahead) as session:
                    logits = session.step(int(self._talk.asked[0]))
                    found.append(time.perf_counter() - begin)
                ok = ok and bool(np.array_equal(logits, self._wanted[0]))
        after, beside = (statistics.median(laps[ahead]) * 1e3 for ahead in (False, True))
        figures: Row = {"ahead_gain": after / beside, "in_turn_ms": after, "ahead_ms": beside}
        return self._row(f"{transport}-keys-ahead", {**figures, "ok": ok})

    def union(self, transport: str) -> Row:
        """SHARED answers to one prompt, each with its own text: every step's rows gathered apart,
        and as one union."""
        chosen = [self._choices(number) for number in range(SHARED)]
        out = np.empty((self._top_k, self._weights.layout.entry_bytes), np.uint8)
        apart: list[float] = []
        together: list[float] = []
        asked, moved, ok = 0, 0, True
        with self._reader(transport) as reader:
            for step in zip(*chosen, strict=True):
                layer = len(apart) % self._weights.shape.layers
                begin = time.perf_counter()
                for positions in step:
                    reader.gather(layer, positions, out)
                middle = time.perf_counter()
                union = gather_union(reader, layer, step)
                together.append(time.perf_counter() - middle)
                apart.append(middle - begin)
                asked, moved = asked + union.asked, moved + union.moved
                ok = ok and bool(np.array_equal(union.rows[union.at[-1]], out))
        one, other = statistics.median(apart) * 1e6, statistics.median(together) * 1e6
        figures: Row = {"requests": SHARED, "union_gain": one / other, "rows_ratio": asked / moved}
        figures |= {"apart_us": one, "union_us": other, "ok": ok}
        return self._row(f"{transport}-union-{SHARED}", figures)

    # --- inside -----------------------------------------------------------------------------------

    def _choices(self, number: int) -> list[U32]:
        """Of one answer, step after step and layer after layer."""
        found: list[U32] = []
        with self._session("shm", on_choice=lambda layer, at: found.append(at)) as session:
            follow(session, self._part(number))
        return found

    def _part(self, number: int) -> Conversation:
        """A share of what is asked, behind the same prompt."""
        talk, part = self._whole, slice(number * self._steps, (number + 1) * self._steps)
        return Conversation(talk.prompt, talk.asked[part], talk.wanted[part], talk.answers[part])

    def _hot(self, times: int) -> HotBuffer:
        return HotBuffer(self._weights.layout, times * self._top_k)

    def _reader(self, transport: str) -> SparseReader:
        return PrefixStore(self._pools[transport], self._weights.layout).reader(_KEY, transport)

    def _session(self, transport: str, **options: object) -> Session:
        options = {"top_k": self._top_k, **options}
        opened: Callable[[], SparseReader] = lambda: self._reader(transport)  # noqa: E731
        return Session(self._weights, opened, self._last, **options)  # type: ignore[arg-type]

    def _row(self, case: str, figures: Row) -> Row:
        tokens = len(self._whole.prompt)
        shared: Row = {"tokens": tokens, "layers": self._weights.shape.layers}
        return make_row(BENCH, case, self._rounds, {**shared, "ok": True, **figures})


def _timed_steps(session: Session, talk: Conversation, laps: list[float]) -> F32:
    logits = []
    for token in talk.asked.tolist():
        begin = time.perf_counter()
        logits.append(session.step(token))
        laps.append(time.perf_counter() - begin)
    return np.stack(logits)
