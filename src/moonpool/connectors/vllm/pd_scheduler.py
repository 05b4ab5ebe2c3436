"""The scheduler's side of hand-overs, pure: requests in, a plan for the workers out.

    decode    new ──claim──> matched ──> allocated ──announce──> (blocks arrive, or vLLM recomputes)
    prefill   new ──> scheduled ──open──> advances, step after step ──> finished: blocks are kept

A transfer is asked for once: what fails is computed here, whatever vLLM asks again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from moonpool.connectors.vllm.pd_metadata import (
    Advance,
    Announcement,
    Ending,
    HandoffPlan,
    Opening,
    Target,
)
from moonpool.core.errors import BadInput
from moonpool.transfer.handoff.params import origin_of, transfer_of

_RECOMPUTED_TOKENS = 1  # vLLM computes a prompt's last token itself, whatever came


class EngineRequest(Protocol):
    """What is read of a vLLM request."""

    request_id: str
    num_prompt_tokens: int
    prompt_token_ids: Sequence[int] | None
    kv_transfer_params: dict[str, Any] | None


class _Import(NamedTuple):
    target: Target
    announced: bool = False


class _Export:
    def __init__(self, transfer: str, tokens: int, prompt: str) -> None:
        self.transfer, self.tokens, self.prompt = transfer, tokens, prompt
        self.opened = False
        self.given_up = False


class HandoffScheduler:
    """`block_size` in tokens; `produces` and `consumes` as the role says. `warn` is told of
    requests whose parameters make no sense: those are served without a hand-over."""

    def __init__(
        self,
        block_size: int,
        produces: bool,
        consumes: bool,
        warn: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._block_size = block_size
        self._produces, self._consumes = produces, consumes
        self._warn = warn
        self._imports: dict[str, _Import] = {}
        self._exports: dict[str, _Export] = {}
        # By request: transfers that the workers have a part in, until they say that it is quiet.
        self._lent: dict[str, str] = {}
        self._kept: dict[str, str] = {}
        self._fresh()

    def _fresh(self) -> None:
        self._claims: list[Target] = []
        self._announced: list[Announcement] = []
        self._cancelled: list[tuple[str, Target | None]] = []
        self._failed: list[tuple[str, str]] = []
        self._ended: list[Ending] = []

    @property
    def pending(self) -> bool:
        """Something waits for the next step's plan."""
        return bool(
            self._claims or self._announced or self._cancelled or self._failed or self._ended
        )

    # ---- what vLLM asks ----

    def new(self, request: EngineRequest) -> None:
        """A request has arrived."""
        params = request.kv_transfer_params or {}
        try:
            if self._consumes and params.get("do_remote_prefill"):
                target = Target(transfer_of(params), *origin_of(params))
                wanted = [found.target.transfer for found in self._imports.values()]
                _check_unused(target.transfer, wanted, self._lent)
                self._imports[request.request_id] = _Import(target)
                self._claims.append(target)
            elif self._produces and params.get("do_remote_decode"):
                transfer = transfer_of(params)
                held = [export.transfer for export in self._exports.values()]
                _check_unused(transfer, held, self._kept)
                self._exports[request.request_id] = _Export(
                    transfer, request.num_prompt_tokens, prompt_digest(request)
                )
        except BadInput as error:
            self._warn(f"request {request.request_id}: kv_transfer_params: {error}")

    def matched(self, request: EngineRequest, computed: int) -> int:
        """Tokens beyond `computed` that prefill hands over. May be asked again and again."""
        found = self._imports.get(request.request_id)
        if found is None or found.announced:
            return 0
        missing = request.num_prompt_tokens - computed
        return missing if missing > _RECOMPUTED_TOKENS else 0

    def allocated(
        self,
        request: EngineRequest,
        block_ids: Sequence[Sequence[int]],
        external_tokens: int,
    ) -> None:
        """vLLM gave the request blocks; the last `external_tokens` of its prompt come from afar."""
        found = self._imports.get(request.request_id)
        if found is None or found.announced:
            return
        if not external_tokens:
            # All of it is here already (or vLLM would not wait): prefill need not keep it.
            del self._imports[request.request_id]
            self._cancelled.append((found.target.transfer, found.target))
            return
        self._imports[request.request_id] = found._replace(announced=True)
        self._lent[request.request_id] = found.target.transfer
        first = request.num_prompt_tokens - external_tokens
        blocks = block_ids[0][
            first // self._block_size : -(-request.num_prompt_tokens // self._block_size)
        ]
        self._announced.append(
            Announcement(
                request.request_id,
                found.target,
                first,
                request.num_prompt_tokens,
                list(blocks),
                prompt_digest(request),
            )
        )

    def plan(
        self,
        scheduled: Iterable[tuple[str, int]],
        block_ids_of: Callable[[str], Sequence[Sequence[int]] | None],
        preempted: Iterable[str] = (),
    ) -> HandoffPlan:
        """The step's plan. `scheduled`: each request's id and the tokens it has computed after."""
        opened, advanced, lost = [], [], []
        for request_id in preempted:
            export = self._exports.get(request_id)
            if export is not None and export.opened and not export.given_up:
                export.given_up = True
                lost.append(export.transfer)
        for request_id, computed in scheduled:
            export = self._exports.get(request_id)
            blocks = block_ids_of(request_id) if export is not None else None
            if export is None or blocks is None or export.given_up:
                continue
            if not export.opened:
                export.opened = True
                opened.append(Opening(export.transfer, export.tokens, export.prompt))
            upto = min(computed, export.tokens)
            count = -(-upto // self._block_size)
            advanced.append(Advance(export.transfer, upto, list(blocks[0][:count])))
        plan = HandoffPlan(
            claims=self._claims,
            announced=self._announced,
            cancelled=self._cancelled,
            opened=opened,
            advanced=advanced,
            failed=self._failed,
            preempted=lost,
            ended=self._ended,
        )
        self._fresh()
        return plan

    def finished(self, request_id: str, aborted: bool) -> bool:
        """The request is over; True: vLLM keeps its blocks until the workers report them sent."""
        found = self._imports.pop(request_id, None)
        if found is not None and (aborted or not found.announced):
            self._cancelled.append(
                (found.target.transfer, None if found.announced else found.target)
            )
        export = self._exports.pop(request_id, None)
        if export is None:
            return False
        if aborted or not export.opened:
            self._failed.append((export.transfer, "the request was aborted at the prefill worker"))
        if export.opened:
            self._kept[request_id] = export.transfer
            self._ended.append(Ending(request_id, export.transfer))
        return export.opened

    def quiet(self, request_ids: Iterable[str]) -> None:
        """The workers gave these requests' blocks back, or filled them."""
        for request_id in request_ids:
            self._kept.pop(request_id, None)
            self._lent.pop(request_id, None)


def _check_unused(transfer: str, asked: Iterable[str], under_way: Mapping[str, str]) -> None:
    if transfer in asked or transfer in under_way.values():
        raise BadInput(f"transfer_id {transfer!r} belongs to another request still")


def prompt_digest(request: EngineRequest) -> str:
    """Tells prompts apart; empty for a prompt that consists of no token ids."""
    if request.prompt_token_ids is None:
        return ""
    tokens = np.asarray(request.prompt_token_ids, dtype="<u4")
    return hashlib.sha256(tokens.tobytes()).hexdigest()[:32]
