"""The model against our own measurements: what on-demand costs beside what the machine can do, from
rows of one length; every other row predicted. Pure: rows are what `moonpool bench sparse --json`
printed.

Times are told in units of what was measured beside them, in turns, since a machine's speed changes
by the minute: *in order*, one memcpy, at its rate, and over TCP the plain program, asked in each
place for as many bytes in as many frames (`limit_s`, `plain_keys_s`, `plain_step_s`,
`plain_one_call_s`, `plain_s`); *private*, `private_step_s`, the same rows gathered from private
memory.

                     in place                             over TCP
    full_s, keys_s   calls, in order                      calls, in order, positions
    step_s           private, walks                       calls, in order, packed, positions
    one call         private, walks; layers - 1 calls     one call, in order, packed beside,
                     less                                 positions
    steady           as one call of what is missed;       as one call of what is missed;
                     every row resolved                   every row resolved

    walks      finding pages: rows lie in pages of 4 KiB where private memory has large ones. The
               bench touches lines of both on their own (rows `...-costs`, `bench/sparse_costs.py`);
               the difference, times the pages that a row lies in
    packed     by the node, before it sends: private and walks; beside: while what is packed already
               is sent
    positions  named over TCP: the bench measures one on its own, too

Six figures are fitted, none of them to a length that is predicted: Fitted.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from moonpool.core.errors import BadInput

KINDS: Final = ("resident", "fetched", "steady")
COSTS: Final = "costs"
_PAGE_TOKENS: Final = 64  # of the layout that the bench uses
_PAGE_BYTES: Final = 4096
_ENDS: Final = {"fastest": "_fastest_s", "median": "_s"}
ERROR_MAX: Final = 0.20


class Fitted(NamedTuple):
    """Of one transport: seconds of a call; what bytes in order take of the machine's own time for
    them; `gathered`, what packing takes of gathering while nothing is sent, `beside`, while what is
    packed already is (both over TCP); `walked`, what finding pages takes of what it takes alone (in
    place); `resolve_s`, a hot buffer's work for a row asked for, hit or miss."""

    call_s: float
    in_order: float
    gathered: float
    beside: float
    walked: float
    resolve_s: float


class Observation(NamedTuple):
    """One measured time and the work in it; `..._s` but for `seconds` was measured beside it."""

    case: str
    figure: str
    transport: str
    tokens: int
    seconds: float
    calls: float = 0.0
    in_order_s: float = 0.0
    gathered_s: float = 0.0
    beside_s: float = 0.0
    walks_s: float = 0.0
    resolved_rows: float = 0.0
    known_s: float = 0.0
    """Of it, what is not fitted."""

    @property
    def work(self) -> tuple[float, ...]:
        """In the order of Fitted."""
        packed = (self.gathered_s, self.beside_s)
        return (self.calls, self.in_order_s, *packed, self.walks_s, self.resolved_rows)


class Costs(NamedTuple):
    """What a `...-costs` row says of one length and size of rows, in seconds."""

    walk_s: float
    position_s: float


class Predicted(NamedTuple):
    """An observation that took no part in the calibration, and what the model says of it."""

    observation: Observation
    seconds: float

    @property
    def error(self) -> float:
        return self.seconds / self.observation.seconds - 1


def observations(rows: Iterable[Mapping[str, Any]], laps: str = "fastest") -> list[Observation]:
    """What rows of the sparse bench measured, of each time its `fastest` lap or the `median`; other
    rows are passed over. Raises BadInput for rows without what was measured beside them."""
    end = _ENDS[laps]
    found: dict[tuple[str, str], Observation] = {}
    kept = [(row, parts) for row in rows if (parts := _parts(row))]
    costs: dict[tuple[str, str], Costs] = {}
    whole: dict[tuple[str, str, str], Mapping[str, Any]] = {}
    try:
        for row, parts in kept:
            if parts[3] == COSTS:
                walk_ns = max(0.0, row["touch_ns"] - row["private_touch_ns"])
                costs[parts[0], parts[1]] = Costs(walk_ns / 1e9, row["position_ns"] / 1e9)
            elif parts[3] == "resident":
                whole[parts[0], parts[1], parts[2]] = row
        for row, parts in kept:
            if parts[3] not in KINDS:
                continue
            size = (parts[0], parts[1])
            numbers = (int(parts[0]), int(parts[1]))
            work = _Work(row, whole[*size, parts[2]], costs[size], end, *numbers)
            of_row = work.in_place() if parts[2] == "shm" else work.over_tcp()
            for figure, amounts in of_row.items():
                case, seconds = str(row["case"]), work.time(figure)
                seen = Observation(case, figure, parts[2], numbers[0], seconds, **amounts)
                found[case, figure] = seen
    except KeyError as error:
        raise BadInput(
            f"these rows lack {error.args[0]!r}, which the bench measures beside them: measure "
            "them again"
        ) from None
    return list(found.values())


def _parts(row: Mapping[str, Any]) -> list[str]:
    """Of a case of the sparse bench with tokens, row size and transport; else none."""
    parts = str(row.get("case", "")).split("-")
    return parts if row.get("bench") == "sparse" and len(parts) >= 4 else []


def calibrate(seen: Sequence[Observation]) -> Fitted:
    """The figures, none below zero, that fit best in relative error. Raises BadInput when nothing
    was seen of bytes in order."""
    if not any(one.in_order_s for one in seen):
        raise BadInput("a calibration needs a whole prefix fetched")
    work = np.array([one.work for one in seen])
    weights = np.array([1 / one.seconds for one in seen])
    left = np.array([1 - one.known_s / one.seconds for one in seen])
    return Fitted(*_not_below_zero(work * weights[:, None], left))


def predict(fitted: Fitted, one: Observation) -> Predicted:
    parts = zip(one.work, fitted, strict=True)
    return Predicted(one, one.known_s + sum(amount * figure for amount, figure in parts))


class Validation(NamedTuple):
    """Of one transport: calibrated at `tokens`, every other length predicted."""

    transport: str
    tokens: int
    fitted: Fitted
    predicted: list[Predicted]

    @property
    def worst(self) -> float:
        return max(abs(one.error) for one in self.predicted)


def validate(
    rows: Iterable[Mapping[str, Any]], calibrate_at: int = 0, laps: str = "fastest"
) -> list[Validation]:
    """Each transport of the rows. `calibrate_at` 0: the length in the middle. Raises BadInput for
    rows of less than two lengths."""
    seen = observations(rows, laps)
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
        fitted = calibrate([one for one in own if one.tokens == at])
        others = [predict(fitted, one) for one in own if one.tokens != at]
        answer.append(Validation(transport, at, fitted, others))
    return answer


class _Work(NamedTuple):
    """What a row's times are made of. `whole` is the row of the same prefix and transport that
    fetched all of it; `end` is how the names of the times end that are held against each other."""

    row: Mapping[str, Any]
    whole: Mapping[str, Any]
    costs: Costs
    end: str
    tokens: int
    row_bytes: int

    def in_place(self) -> dict[str, dict[str, float]]:
        """Work by figure. A private step makes a call a layer, too, through the same reader."""
        if self.kind == "fetched":
            return {"keys": {"calls": self.layers, "in_order_s": self._in_order("keys_bytes")}}
        part = self.part
        step = {
            "known_s": part * self.time("private_step"),
            "walks_s": self._walks(part * self.asked),
        }
        in_one = {"calls": 1 - part * self.layers, **step}
        if self.kind == "steady":
            return {"step": {"resolved_rows": self.asked, **in_one}}
        whole = {"calls": self.layers, "in_order_s": self._in_order("full_bytes")}
        return {"full": whole, "step": step, "step_one_call": in_one}

    def over_tcp(self) -> dict[str, dict[str, float]]:
        if self.kind == "fetched":
            return {"keys": self._sent("plain_keys", self.layers, self.tokens / _PAGE_TOKENS)}
        packed_s = self.part * (self.time("private_step") + self._walks(self.asked))
        if self.kind == "steady":
            step = self._sent("plain", 1, self.part * self.asked)
            return {"step": {"resolved_rows": self.asked, "beside_s": packed_s, **step}}
        top_k = self.asked / self.layers
        return {
            "full": self._sent("limit", self.layers, self.tokens),
            "step": {"gathered_s": packed_s, **self._sent("plain_step", self.layers, top_k)},
            "step_one_call": {"beside_s": packed_s, **self._sent("plain_one_call", 1, self.asked)},
        }

    def time(self, name: str) -> float:
        return float(self.row[name + self.end])

    @property
    def kind(self) -> str:
        return str(self.row["case"]).split("-")[3]

    @property
    def layers(self) -> int:
        return int(self.row["layers"])

    @property
    def asked(self) -> float:
        """Rows of a step."""
        return float(self.layers * int(self.row["top_k"]))

    @property
    def part(self) -> float:
        """Of them, those that are not in a hot buffer."""
        if self.kind != "steady":
            return 1.0
        return float(self.row["pool_bytes_a_step"]) / self.row_bytes / self.asked

    def _walks(self, rows: float) -> float:
        return rows * (1 + (self.row_bytes - 1) / _PAGE_BYTES) * self.costs.walk_s

    def _in_order(self, nbytes: str) -> float:
        """What the machine takes for so many bytes in order."""
        part = float(self.row[nbytes]) / float(self.whole["full_bytes"])
        return float(self.whole["limit" + self.end]) * part

    def _sent(self, plain: str, calls: float, named: float) -> dict[str, float]:
        """As many bytes as the plain program sent beside them, in as many frames; each names so
        many positions."""
        return {
            "calls": calls,
            "in_order_s": self.time(plain),
            "known_s": calls * named * self.costs.position_s,
        }


def _not_below_zero(work: Any, target: Any) -> tuple[float, ...]:
    """Least squares with no figure below zero: of every choice of figures above zero, the best that
    needs no negative one. There are six figures, so 63 choices."""
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
