"""Prompts computed on one engine and answered on another: what the engine's core does about it.

A prompt's whole chunks go over (see chunked_cache.py): what decode computes itself, the rest of the
prompt, has the same shape as without a hand-over, so the answer is equal to the bit.

    prefill    begin: open ── watch: pushed layer by layer ──> over: pages kept ──> released
    decode     queued: claim ── begin: pages lent ──> settled: go on behind them, or compute them

Pages are kept from the cache until the node says that they are quiet, also when a request ends
before that. Called in the engine's thread only; nodes have their own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from moonpool.core.errors import BadInput
from moonpool.core.sections import HandoffConfig
from moonpool.engine.job import Job
from moonpool.transfer.handoff import DecodeNode, KVLayout, KVMemory, PartMemory, PrefillNode
from moonpool.transfer.handoff.node import sums_of
from moonpool.transfer.handoff.params import origin_of, transfer_of

if TYPE_CHECKING:
    from moonpool.cache.pages import PagePool

Role = Literal["both", "prefill", "decode"]


class Wish(NamedTuple):
    """What kv_transfer_params of a request ask for. `remote` is empty at the prefill engine."""

    transfer: str
    remote: str = ""
    engine: str | None = None

    @property
    def sends(self) -> bool:
        return not self.remote


class Handing:
    """A job's part in a hand-over. Once `begun` its pages are not the cache's alone."""

    def __init__(self, job: Job, wish: Wish, tokens: int) -> None:
        self.job, self.wish, self.tokens = job, wish, tokens
        self.begun = False
        self.is_over = False

    @property
    def waits(self) -> bool:
        """What is sent is computed meanwhile; what is received is waited for."""
        return self.begun and not self.wish.sends


class Outcome(NamedTuple):
    """A hand-over whose pages are quiet. `ok`: a receiver has all of `tokens` in its pages."""

    job: Job
    tokens: int
    sent: bool
    ok: bool
    is_over: bool


class Layers:
    """Tells the node of each layer of one chunk."""

    def __init__(self, node: PrefillNode, transfer: str, upto: int) -> None:
        self._node, self._steps = node, [(transfer, upto)]

    def before(self, layer: int) -> None:
        """The pages before the chunk are there: they were computed here."""

    def after(self, layer: int) -> None:
        self._node.computed(self._steps, layer)


class Disagg:
    """The nodes of one engine; `address` is where decode engines come for prompts."""

    def __init__(
        self,
        name: str,
        memory: KVMemory,
        role: Role,
        config: HandoffConfig | None = None,
    ) -> None:
        self.role = role
        self.address = ""
        self.wake: Callable[[], None] = lambda: None
        """Called, from any thread, when settled() has news."""
        self._prefill = self._decode = None
        self._handings: dict[str, Handing] = {}
        if role != "decode":
            self._prefill = PrefillNode(name, memory, config, lambda: self.wake())
            self.address = self._prefill.start()
        if role != "prefill":
            self._decode = DecodeNode(name, memory, config, lambda: self.wake())

    def check(self, params: Mapping[str, Any]) -> None:
        """Raises BadInput for kv_transfer_params that mean nothing here. Thread-safe."""
        wish = wish_of(params)
        if wish is None:
            return
        if wish.sends and self._prefill is None:
            raise BadInput("do_remote_decode: this engine has the role decode")
        if not wish.sends and self._decode is None:
            raise BadInput("do_remote_prefill: this engine has the role prefill")

    def queued(self, job: Job, tokens: int) -> None:
        """A request has come; `tokens` of its prompt may come from elsewhere. Raises BadInput for a
        transfer that another request has."""
        wish = wish_of(job.request.transfer or {})
        if wish is None:
            return
        if wish.transfer in self._handings:
            raise BadInput(f"transfer_id {wish.transfer!r} belongs to another request still")
        self._handings[wish.transfer] = Handing(job, wish, tokens)
        job.handing = self._handings[wish.transfer]
        if not wish.sends and self._decode is not None:
            self._decode.claim(wish.transfer, wish.remote, wish.engine)

    def lacks(self, job: Job) -> int:
        """Tokens that pages are needed for before begin(): all that come from elsewhere."""
        handing = job.handing
        if handing is None or handing.begun or handing.wish.sends:
            return 0
        return handing.tokens if handing.tokens > job.computed else 0

    def begin(self, job: Job) -> None:
        """The job was admitted: its table has pages for lacks(), and `computed` tokens of it."""
        handing = job.handing
        if handing is None or handing.begun:
            return
        wish, table = handing.wish, job.sequence.table
        digest = hashlib.sha256(job.sequence.tokens[: job.prompt_tokens].tobytes()).hexdigest()
        if wish.sends and self._prefill is not None:
            handing.begun = True
            self._prefill.open(wish.transfer, handing.tokens, table, digest)
            self.present(job, job.computed)
        elif self._decode is not None and handing.tokens > job.computed:
            handing.begun = True
            size = self._decode.memory.layout.block_tokens
            pages = table[job.computed // size : handing.tokens // size]
            self._decode.announce(
                wish.transfer, wish.remote, job.computed, handing.tokens, pages, wish.engine, digest
            )
        else:
            self.give_up(job)  # all of it is here already

    def present(self, job: Job, upto: int) -> None:
        """Tokens before `upto` of a job that is sent are in its pages, in every layer."""
        handing = job.handing
        if upto and handing is not None and handing.begun and handing.wish.sends:
            assert self._prefill is not None
            transfer = handing.wish.transfer
            self._prefill.extend(transfer, job.sequence.table)
            for layer in range(self._prefill.memory.layout.layers):
                self._prefill.computed([(transfer, upto)], layer)

    def give_up(self, job: Job) -> None:
        """Before begin(): there is no room for it, or no need. The other engine need not wait."""
        if job.handing is not None:
            self._forget(job.handing)

    def watch(self, job: Job, end: int) -> Layers | None:
        """For the pass that computes the prompt's tokens before `end`, pages in its table."""
        handing = job.handing
        if handing is None or not handing.begun or not handing.wish.sends:
            return None
        assert self._prefill is not None
        self._prefill.extend(handing.wish.transfer, job.sequence.table)
        return Layers(self._prefill, handing.wish.transfer, end)

    def over(self, job: Job, why: str) -> bool:
        """The request is over (`why`: how); True: its pages are to be kept until settled()."""
        handing = job.handing
        if handing is None:
            return False
        if not handing.begun:
            self._forget(handing)
            return False
        handing.is_over = True
        if handing.wish.sends and self._prefill is not None:
            if job.in_prefill:
                self._prefill.fail(handing.wish.transfer, "cancelled", f"prefill ended: {why}")
        elif self._decode is not None:
            self._decode.cancel(handing.wish.transfer)
        return True

    def settled(self) -> list[Outcome]:
        """Hand-overs that are quiet since the last call; their jobs have no part any more."""
        outcomes = []
        for one in self._take():
            handing = self._handings.get(one.transfer)
            if handing is None or not handing.begun:
                continue  # a claim that came to nothing; what is announced later will, too
            self._drop(handing)
            outcomes.append(
                Outcome(handing.job, handing.tokens, handing.wish.sends, one.ok, handing.is_over)
            )
        return outcomes

    def figures(self) -> dict[str, float]:
        """Counters of both nodes."""
        sums = sums_of(sent=self._prefill, received=self._decode)
        return {"handings": len(self._handings), **sums}

    def close(self) -> None:
        """Quiet when it returns."""
        for node in (self._decode, self._prefill):
            if node is not None:
                node.close()

    def _take(self) -> list[Any]:
        taken: list[Any] = [] if self._prefill is None else list(self._prefill.take())
        return taken if self._decode is None else taken + list(self._decode.take())

    def _forget(self, handing: Handing) -> None:
        """The other engine need not wait."""
        self._drop(handing)
        if handing.wish.sends and self._prefill is not None:
            self._prefill.fail(handing.wish.transfer, "cancelled", "it was not computed")
        elif self._decode is not None:
            self._decode.cancel(handing.wish.transfer, remote=handing.wish.remote)

    def _drop(self, handing: Handing) -> None:
        del self._handings[handing.wish.transfer]
        handing.job.handing = None


def wish_of(params: Mapping[str, Any]) -> Wish | None:
    """Raises BadInput for parameters that mean nothing."""
    sends, receives = params.get("do_remote_decode"), params.get("do_remote_prefill")
    if not sends and not receives:
        return None
    try:
        if sends and receives:
            raise BadInput("do_remote_decode and do_remote_prefill exclude another")
        transfer = transfer_of(params)
        return Wish(transfer) if sends else Wish(transfer, *origin_of(params))
    except BadInput as error:
        raise BadInput(f"kv_transfer_params: {error}") from None


def kv_memory(pages: PagePool, model: str) -> KVMemory:
    """The engine's pages as the hand-over knows them. `model` says all that decides their bits:
    weights, types, size of a chunk. Raises BadInput off the CPU."""
    import torch

    layout = pages.layout
    if pages.storage.device.type != "cpu":
        raise BadInput(f"hand-overs need pages in CPU memory, not on {pages.storage.device}")
    storage = pages.storage.view(torch.uint8).numpy()
    token_bytes = layout.dim * layout.itemsize
    part_bytes = layout.page_size * layout.heads * token_bytes
    parts = len(layout.parts)
    layers = []
    for layer in range(layout.layers):
        first = layer * parts
        if layout.page_first:
            stride = layout.bytes_per_page
            offsets = [(first + part) * part_bytes for part in range(parts)]
        else:
            stride = part_bytes
            offsets = [(first + part) * part_bytes * pages.pages for part in range(parts)]
        layers.append([PartMemory(storage, offset, stride) for offset in offsets])
    described = KVLayout(
        model=model,
        dtype=layout.dtype,
        layers=layout.layers,
        block_tokens=layout.page_size,
        kv_heads=layout.heads,
        token_bytes=token_bytes,
        parts=parts,
        order=layout.order,
    )
    return KVMemory(described, pages.pages, layers)
