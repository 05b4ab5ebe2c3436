"""The model against our own measurements: a link's figures from rows of one length, every other row
predicted. Pure: rows are what `moonpool bench sparse --json` printed.

What each figure of a row costs, as a sum over a Link's five figures:

    full_s           layers calls, all row bytes in bulk          keys_s   the same of keys
    step_s           layers calls, top_k rows a layer gathered    step_one_call_s   one call
    step_s (steady)  one call, every row resolved, the misses gathered

Two costs are not fitted but taken from the bench's own measurements of them (rows `...-costs`,
`bench/sparse_costs.py`), where there are any: a line touched at random, which grows with what is
scattered over, for each row gathered; and over TCP a position put into a frame and looked at, for
each row gathered or fetched whole, and each page of keys.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from moonpool.core.errors import BadInput
from moonpool.sparse.model.links import Link

KINDS: Final = ("resident", "fetched", "steady")
COSTS: Final = "costs"
_PAGE_TOKENS: Final = 64  # of the layout that the bench uses
ERROR_MAX: Final = 0.20


class Observation(NamedTuple):
    """One measured time and the work in it."""

    case: str
    figure: str
    transport: str
    tokens: int
    seconds: float
    calls: float
    rows: float
    gather_bytes: float
    bulk_bytes: float
    resolved_rows: float
    known_s: float = 0.0
    """Of it, what was measured on its own."""


class Costs(NamedTuple):
    """What a `...-costs` row says of one length and size of rows, in seconds."""

    touch_s: float = 0.0
    position_s: float = 0.0


class Predicted(NamedTuple):
    """An observation that took no part in the calibration, and what the model says of it."""

    observation: Observation
    seconds: float

    @property
    def error(self) -> float:
        return self.seconds / self.observation.seconds - 1


def observations(rows: Iterable[Mapping[str, Any]]) -> list[Observation]:
    """What rows of the sparse bench measured; other rows are passed over."""
    found: dict[tuple[str, str], Observation] = {}
    kept = [(row, parts) for row in rows if (parts := _parts(row))]
    costs = {
        (int(parts[0]), int(parts[1])): Costs(row["touch_ns"] / 1e9, row["position_ns"] / 1e9)
        for row, parts in kept
        if parts[3] == COSTS
    }
    for row, parts in kept:
        if parts[3] not in KINDS:
            continue
        tokens, row_bytes = int(parts[0]), int(parts[1])
        known = costs.get((tokens, row_bytes), Costs())
        if parts[2] != "tcp":
            known = known._replace(position_s=0.0)
        for seen in _of_row(row, tokens, row_bytes, parts[2], parts[3], known):
            found[seen.case, seen.figure] = seen
    return list(found.values())


def _parts(row: Mapping[str, Any]) -> list[str]:
    """Of a case of the sparse bench with tokens, row size and transport; else none."""
    parts = str(row.get("case", "")).split("-")
    return parts if row.get("bench") == "sparse" and len(parts) >= 4 else []


def calibrate(seen: Sequence[Observation]) -> Link:
    """The figures, none below zero, that fit best in relative error. Raises BadInput when nothing
    was seen of rows or of bulk."""
    if not seen or not any(o.gather_bytes for o in seen) or not any(o.bulk_bytes for o in seen):
        raise BadInput("a calibration needs rows gathered and a whole prefix fetched")
    work = np.array([_work(one) for one in seen])
    weights = np.array([1 / one.seconds for one in seen])
    left = np.array([1 - one.known_s / one.seconds for one in seen])
    call_s, row_s, gather_s, bulk_s, resolve_s = _not_below_zero(work * weights[:, None], left)
    return Link(call_s, row_s, _rate(gather_s), _rate(bulk_s), resolve_s)


def predict(link: Link, one: Observation) -> Predicted:
    seconds = (
        one.known_s
        + one.calls * link.call_s
        + one.rows * link.row_s
        + one.gather_bytes / link.gather_bytes_per_s
        + one.bulk_bytes / link.bulk_bytes_per_s
        + one.resolved_rows * link.resolve_s
    )
    return Predicted(one, seconds)


class Validation(NamedTuple):
    """Of one transport: calibrated at `tokens`, every other length predicted."""

    transport: str
    tokens: int
    link: Link
    predicted: list[Predicted]

    @property
    def worst(self) -> float:
        return max(abs(one.error) for one in self.predicted)


def validate(rows: Iterable[Mapping[str, Any]], calibrate_at: int = 0) -> list[Validation]:
    """Each transport of the rows. `calibrate_at` 0: the length in the middle. Raises BadInput for
    rows of less than two lengths."""
    seen = observations(rows)
    lengths = sorted({one.tokens for one in seen})
    if len(lengths) < 2:
        raise BadInput(
            f"rows of two lengths at least are needed, one to calibrate at and one to predict; "
            f"these are of {lengths or 'none'}"
        )
    at = calibrate_at or lengths[(len(lengths) - 1) // 2]
    if at not in lengths:
        raise BadInput(f"no rows of {at} tokens to calibrate at; there are {lengths}")
    answer = []
    for transport in sorted({one.transport for one in seen}):
        own = [one for one in seen if one.transport == transport]
        link = calibrate([one for one in own if one.tokens == at])
        others = [predict(link, one) for one in own if one.tokens != at]
        answer.append(Validation(transport, at, link, others))
    return answer


def _of_row(
    row: Mapping[str, Any],
    tokens: int,
    row_bytes: int,
    transport: str,
    kind: str,
    costs: Costs,
) -> list[Observation]:
    layers, step_rows = int(row["layers"]), int(row["layers"]) * int(row["top_k"])
    step_bytes = step_rows * row_bytes

    gathered_s = costs.touch_s + costs.position_s

    def seen(figure: str, **work: float) -> Observation:
        names = ("calls", "rows", "gather_bytes", "bulk_bytes", "resolved_rows", "known_s")
        amounts = [work.get(name, 0.0) for name in names]
        case = str(row["case"])
        return Observation(case, figure, transport, tokens, float(row[figure]), *amounts)

    def gathered(figure: str, rows: float, nbytes: float, **work: float) -> Observation:
        return seen(figure, rows=rows, gather_bytes=nbytes, known_s=rows * gathered_s, **work)

    if kind == "resident":
        whole_s = layers * tokens * costs.position_s
        return [
            seen("full_s", calls=layers, bulk_bytes=row["full_bytes"], known_s=whole_s),
            gathered("step_s", step_rows, step_bytes, calls=layers),
            gathered("step_one_call_s", step_rows, step_bytes, calls=1),
        ]
    if kind == "fetched":
        keys_s = layers * tokens / _PAGE_TOKENS * costs.position_s
        return [seen("keys_s", calls=layers, bulk_bytes=row["keys_bytes"], known_s=keys_s)]
    missed_bytes = float(row["pool_bytes_a_step"])
    return [
        gathered("step_s", missed_bytes / row_bytes, missed_bytes, calls=1, resolved_rows=step_rows)
    ]


def _work(one: Observation) -> tuple[float, float, float, float, float]:
    return one.calls, one.rows, one.gather_bytes, one.bulk_bytes, one.resolved_rows


def _rate(seconds_a_byte: float) -> float:
    return 1 / seconds_a_byte if seconds_a_byte > 0 else float("inf")


def _not_below_zero(work: Any, target: Any) -> tuple[float, ...]:
    """Least squares with no figure below zero: of every choice of figures above zero, the best that
    needs no negative one. There are five figures, so 31 choices."""
    best, answer = float("inf"), np.zeros(work.shape[1])
    scale = np.abs(work).max(axis=0)
    scale[scale == 0] = 1
    for size in range(1, work.shape[1] + 1):
        for chosen in itertools.combinations(range(work.shape[1]), size):
            columns = list(chosen)
            found, *_ = np.linalg.lstsq(work[:, columns] / scale[columns], target, rcond=None)
            left = float(np.sum((work[:, columns] / scale[columns] @ found - target) ** 2))
            if (found >= 0).all() and left < best * (1 - 1e-9):
                best = left
                answer = np.zeros(work.shape[1])
                answer[columns] = found / scale[columns]
    return tuple(float(value) for value in answer)
