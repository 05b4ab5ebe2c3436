"""The demo's story: who is asked what in which order, and what it shows in numbers.

    engine A, cold      the document is computed, and its blocks go to the pool
    engine B, pool      another question: the document comes out of the pool
    engine B, local     a third one: the document is in the engine's own pages by now
    engine A again      killed and started anew: the document is still in the pool
    engine C, no pool   the same questions, everything computed: the answers must be the same

Each round uses a salt of its own, so that its first question is cold again.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final

from moonpool.cli.demo import document
from moonpool.cli.demo.asking import Answer, ask, figures
from moonpool.cli.demo.engines import EngineProcess
from moonpool.core.errors import DeadlineExceeded

ROUNDS: Final = 5
ANSWER_TOKENS: Final = 24
LATER_TOKENS: Final = 8  # of answers in the rounds that are only there for the medians
SETTLE_S: Final = 30.0
COLD, POOL, LOCAL, AGAIN, OFF = "cold", "pool", "local", "after restart", "pool off"
QUIET_S: Final = 0.25
_WAITING: Final = "moonpool_engine_pool_stores_waiting"
_STORED: Final = "moonpool_engine_pool_blocks_stored"


@dataclass(frozen=True)
class Row:
    """One question and its answer. `round` 0 is the one that is shown."""

    engine: str
    how: str
    question: int
    round: int
    answer: Answer

    def record(self) -> dict[str, Any]:
        """For --json."""
        answer = self.answer
        return {
            "engine": self.engine,
            "how": self.how,
            "question": document.QUESTIONS[self.question],
            "round": self.round,
            "prompt_tokens": answer.prompt_tokens,
            "local_tokens": answer.local_tokens,
            "pool_tokens": answer.pool_tokens,
            "ttft_ms": answer.ttft_ms,
            "token_ms": answer.token_ms,
            "answer": answer.text,
            "token_ids": answer.tokens,
        }


@dataclass(frozen=True)
class Cast:
    """The engines' command lines, without the port: `pool` joins them to the pool."""

    words: Sequence[str]
    pool: str
    document: str
    rounds: int = ROUNDS

    def engine(self, name: str, *, pooled: bool = True) -> EngineProcess:
        """An engine that is not started yet."""
        return EngineProcess(name, [*self.words, *(["--pool", self.pool] if pooled else [])])

    def ask(self, engine: EngineProcess, how: str, question: int, number: int) -> Row:
        """One question in the given round."""
        conversation = document.messages(self.document, document.QUESTIONS[question])
        shown = number == 0 or how == OFF
        answer = ask(
            engine.port,
            conversation,
            salt=f"round {number}",
            max_tokens=ANSWER_TOKENS if shown else LATER_TOKENS,
        )
        return Row(engine.name, how, question, number, answer)

    def warm_up(self, engine: EngineProcess) -> None:
        """The first long prompts of a process are slower, hit or not; theirs are not counted."""
        for question in document.QUESTIONS[:2]:
            self._uncounted(engine, question)
        _settle(engine)

    def wake(self, engine: EngineProcess) -> None:
        """After seconds of idleness an engine is slow, wherever the document lies: what it is asked
        from the pool comes right after another question, as what it has in its own pages does."""
        self._uncounted(engine, document.QUESTIONS[1])

    def _uncounted(self, engine: EngineProcess, question: str) -> None:
        conversation = document.messages(self.document, question)
        ask(engine.port, conversation, salt="warm up", max_tokens=2)


def tell(cast: Cast, note: Callable[[str], None]) -> Generator[Row, None, None]:
    """Each answer as it comes. Everything it started is gone when it is over or closed."""
    with ExitStack() as stack:
        note("two engines come up and load the model")
        a, b = (stack.enter_context(cast.engine(name)) for name in "AB")
        cast.warm_up(a)
        cast.warm_up(b)
        for number in range(cast.rounds):
            yield cast.ask(a, COLD, 0, number)
            _settle(a)
            cast.wake(b)
            yield cast.ask(b, POOL, 1, number)
            yield cast.ask(b, LOCAL, 2, number)
        note("engine A is killed and started again")
        a.restart()
        cast.warm_up(a)
        for question in range(len(document.QUESTIONS)):
            yield cast.ask(a, AGAIN, question, 0)
    with cast.engine("C", pooled=False) as c:
        note("an engine without a pool answers the same questions")
        for question in range(len(document.QUESTIONS)):
            yield cast.ask(c, OFF, question, question)


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """The medians, and whether every answer to a question had the same token ids."""
    cold, pool, local = (_median(rows, how) for how in (COLD, POOL, LOCAL))
    answers = [[r.answer.tokens for r in rows if r.question == q] for q in _questions(rows)]
    return {
        "cold_ttft_ms": cold,
        "pool_ttft_ms": pool,
        "local_ttft_ms": local,
        "moonpool_share": (pool - local) / pool,
        "pool_speedup": cold / pool,
        "answers_equal": all(_equal(same) for same in answers),
        "answers": len(rows),
        "prompt_tokens": max(r.answer.prompt_tokens for r in rows),
        "pool_tokens": max(r.answer.pool_tokens for r in rows),
        "rounds": sum(r.how == COLD for r in rows),
    }


def _settle(engine: EngineProcess) -> None:
    """Blocks are stored in the background: wait until none waits and none has come for a moment."""
    deadline = time.monotonic() + SETTLE_S
    before, since = -1.0, time.monotonic()
    while True:
        seen, now = figures(engine.port), time.monotonic()
        stored = seen.get(_STORED, 0.0)
        if seen.get(_WAITING, 0.0) or stored != before:
            before, since = stored, now
        elif now - since >= QUIET_S:
            return
        if now > deadline:
            raise DeadlineExceeded(f"engine {engine.name} still stores after {SETTLE_S:.0f} s")
        time.sleep(QUIET_S / 5)


def _equal(answers: Sequence[tuple[int, ...]]) -> bool:
    """Whether all are the longest one's beginning, and none ends before it was cut."""
    longest = max(answers, key=len)
    return all(
        answer == longest[: len(answer)] and len(answer) >= min(len(longest), LATER_TOKENS)
        for answer in answers
    )


def _median(rows: Sequence[Row], how: str) -> float:
    return statistics.median(row.answer.ttft_ms for row in rows if row.how == how)


def _questions(rows: Sequence[Row]) -> list[int]:
    return sorted({row.question for row in rows})
