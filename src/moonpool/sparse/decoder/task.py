"""What the small decoder is trained on: a stream that binds values to keys and asks for them again.

    key value [filler ...] key value ...

A stream speaks of one subject for some twenty records, then of another, and comes back to earlier
ones; a key has one value in one stream and another in the next, so it can only be looked up. What
is asked at prefill and what is asked later are the same kind of thing: a stream is cut anywhere.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

SUBJECTS: Final = 64
KEYS: Final = 16  # of a subject
VALUES: Final = 64
FILLERS: Final = 64
FIRST_VALUE: Final = SUBJECTS * KEYS
FIRST_FILLER: Final = FIRST_VALUE + VALUES
VOCABULARY: Final = FIRST_FILLER + FILLERS
_LEAVE: Final = 0.05  # a subject, after a record
_LEAVE_SOON: Final = 0.3
_FILL: Final = 0.25


class Stream(NamedTuple):
    """`tokens` i64[n]; `answers` bool[n]: values of keys that were bound before."""

    tokens: NDArray[np.int64]
    answers: NDArray[np.bool_]


def stream(
    random: np.random.Generator,
    tokens: int,
    subjects: int = SUBJECTS,
    *,
    restless_from: int | None = None,
) -> Stream:
    """`tokens` tokens about at most so many subjects. From token `restless_from` on a subject lasts
    three records, so that most of what is asked was said long ago."""
    active = random.permutation(SUBJECTS)[: max(1, min(subjects, SUBJECTS))]
    values = random.integers(0, VALUES, SUBJECTS * KEYS) + FIRST_VALUE
    out = np.empty(tokens + 4, np.int64)
    answers = np.zeros(tokens + 4, np.bool_)
    seen: set[int] = set()
    records = tokens // 2 + 1
    leaves, fills = random.random(records), random.random(records) < _FILL
    keys, moves = random.integers(0, KEYS, records), random.integers(0, len(active), records)
    fillers = random.integers(0, FILLERS, (records, 2)) + FIRST_FILLER
    subject, at, number = int(active[0]), 0, 0
    while at < tokens:
        restless = restless_from is not None and at >= restless_from
        if leaves[number] < (_LEAVE_SOON if restless else _LEAVE):
            subject = int(active[moves[number]])
        key = subject * KEYS + int(keys[number])
        out[at], out[at + 1] = key, values[key]
        answers[at + 1] = key in seen
        seen.add(key)
        at += 2
        if fills[number]:
            out[at : at + 2] = fillers[number]
            at += 2
        number += 1
    return Stream(out[:tokens].copy(), answers[:tokens].copy())
