"""The prefix tree of an engine's own cache: match, insert and evict, beside the reference tree.

Each round goes through both in turn. `reference_ratio` of our rows is the reference's median over
ours; the reference is left out where torch is missing.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

import moonpool
from moonpool.bench.radix_reference import NAME, ReferenceTree
from moonpool.bench.runner import Row, Settings, make_row
from moonpool.cache import RadixCache

BENCH: Final = "radix"
PAGE_SIZE: Final = 16
CACHED_TOKENS: Final = 1 << 20
FAMILIES: Final = 4
VOCABULARY: Final = 128_000
PROMPT_TOKENS: Final = (8192,)
PROMPT_TOKENS_FULL: Final = (1024, 8192, 32_768)
EVICTING_TOKENS: Final = 512
EVICTING_PROMPTS: Final = (256, 1024, 4096, 16_384)
EVICTIONS: Final = {"moonpool": 1000, NAME: 10}

I32 = np.ndarray[tuple[int], np.dtype[np.int32]]
Laps = list[int]


class Subject(NamedTuple):
    """One tree: how it is made, and its calls on prompts as it takes them."""

    name: str
    make: Callable[[], Any]
    prompt: Callable[[I32], Any]
    insert: Callable[[Any, Any, int], object]
    match: Callable[[Any, Any], int]
    evict: Callable[[Any], int]


def rows(settings: Settings) -> Iterator[Row]:
    """Match in full and in half, insert after a cached half, evict one page of many prompts."""
    subjects = _subjects()
    for size in PROMPT_TOKENS_FULL if settings.full else PROMPT_TOKENS:
        yield from _of_prompts(subjects, size, settings.rounds)
    for prompts in EVICTING_PROMPTS:
        yield from _of_evictions(subjects, prompts, settings.rounds)


def _of_prompts(subjects: Sequence[Subject], size: int, rounds: int) -> Iterator[Row]:
    prompts = _prompts(max(8, CACHED_TOKENS // size), size)
    halves = [np.concatenate([p[: size // 2], p[: size // 2] + 1]) for p in prompts]
    laps: dict[tuple[str, str], list[Laps]] = {}
    for _ in range(rounds + 1):
        for subject in subjects:
            tree = subject.make()
            whole = [subject.prompt(one) for one in prompts]
            half = [subject.prompt(one) for one in halves]
            found = {
                f"insert {size} tokens, the first half cached": _timed(
                    _inserting(subject, tree, whole), len(whole)
                )[FAMILIES:],
                f"match {size} tokens, all cached": _timed(
                    _matching(subject, tree, whole, size), len(whole)
                ),
                f"match {size} tokens, the first half cached": _timed(
                    _matching(subject, tree, half, size // 2), len(half)
                ),
            }
            for case, times in found.items():
                laps.setdefault((case, subject.name), []).append(times)
    yield from _rows(laps, rounds)


def _of_evictions(subjects: Sequence[Subject], count: int, rounds: int) -> Iterator[Row]:
    prompts = _prompts(count, EVICTING_TOKENS)
    laps: dict[tuple[str, str], list[Laps]] = {}
    for subject in subjects:
        tree = subject.make()
        for i, one in enumerate(prompts):
            subject.insert(tree, subject.prompt(one), i)
        for _ in range(rounds + 1):
            times = _timed(_evicting(subject, tree), EVICTIONS[subject.name] // rounds)
            laps.setdefault((f"evict one page, {count} prompts", subject.name), []).append(times)
    yield from _rows(laps, rounds)


def _rows(laps: dict[tuple[str, str], list[Laps]], rounds: int) -> Iterator[Row]:
    """Medians over the rounds, the first one left out; ours with the ratio to the reference."""
    medians = {key: _medians(found[1:]) for key, found in laps.items()}
    for (case, name), figures in medians.items():
        rival = medians.get((case, NAME))
        if name == "moonpool" and rival is not None:
            figures = figures | {"reference_ratio": rival["p50_us"] / figures["p50_us"]}
        version = moonpool.__version__ if name == "moonpool" else "1"
        yield make_row(BENCH, case, rounds, figures | {"ok": True}, subject=name, version=version)


def _medians(found: list[Laps]) -> dict[str, float]:
    p50, p99 = zip(*(np.percentile(laps, [50, 99]) / 1e3 for laps in found), strict=True)
    return {"p50_us": float(statistics.median(p50)), "p99_us": float(statistics.median(p99))}


def _timed(call: Callable[[int], object], calls: int) -> Laps:
    clock, laps = time.perf_counter_ns, []
    gc.collect()
    gc.disable()
    try:
        for number in range(calls):
            start = clock()
            call(number)
            laps.append(clock() - start)
    finally:
        gc.enable()
    return laps


def _inserting(subject: Subject, tree: object, prompts: list[object]) -> Callable[[int], object]:
    return lambda number: subject.insert(tree, prompts[number], number)


def _matching(
    subject: Subject, tree: object, prompts: list[object], wanted: int
) -> Callable[[int], object]:
    def match(number: int) -> None:
        found = subject.match(tree, prompts[number])
        assert found == wanted, f"{found} tokens found, not {wanted}"

    return match


def _evicting(subject: Subject, tree: object) -> Callable[[int], object]:
    return lambda _: subject.evict(tree)


def _prompts(count: int, size: int) -> list[I32]:
    """Prompts in a few families; those of one share their first half."""
    draw = np.random.default_rng(size + count).integers
    heads = [draw(0, VOCABULARY, size // 2, np.int32) for _ in range(FAMILIES)]
    tails = (draw(0, VOCABULARY, size - size // 2, np.int32) for _ in range(count))
    return [np.concatenate([heads[i % FAMILIES], tail]) for i, tail in enumerate(tails)]


def _subjects() -> list[Subject]:
    try:
        import torch
    except ImportError:
        return [_ours()]
    slots = torch.arange(max(PROMPT_TOKENS_FULL), dtype=torch.int32)
    reference = Subject(
        NAME,
        lambda: ReferenceTree(PAGE_SIZE),
        torch.from_numpy,
        lambda tree, prompt, number: tree.insert(prompt, slots[: len(prompt)]),
        lambda tree, prompt: len(tree.match(prompt)),
        lambda tree: len(tree.evict(PAGE_SIZE)),
    )
    return [_ours(), reference]


def _ours() -> Subject:
    def insert(tree: RadixCache, prompt: I32, number: int) -> None:
        pages = len(prompt) // PAGE_SIZE
        first = number * pages
        tree.insert(prompt, np.arange(first, first + pages, dtype=np.int32)).lease.release()

    def match(tree: RadixCache, prompt: I32) -> int:
        lease = tree.match(prompt, keep=0)
        pages = len(lease.pages)
        lease.release()
        return pages * PAGE_SIZE

    return Subject(
        "moonpool",
        lambda: RadixCache(PAGE_SIZE),
        lambda prompt: prompt,
        insert,
        match,
        lambda tree: len(tree.evict(1)),
    )
