"""A request while it is served.

    looking ──> waiting ── admit ──> running: prefill, then decode ──> over
                   ^                    │
                   └───── preempt ──────┘

Prefill computes the prompt in chunks that begin at multiples of the chunk size. Decode feeds one
token at a time: the last of the prompt's chunks gives the first token of the answer, each token fed
gives the next. After a preemption the answer's known tokens are fed again, one by one as before,
and not as a prompt: the same passes give the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from moonpool.cache.sequence import Sequence
from moonpool.engine.request import Request, Reuse, Sampling

if TYPE_CHECKING:
    from moonpool.engine.disagg import Handing
    from moonpool.engine.pooling.loading import Load


@dataclass(slots=True, eq=False)
class Job:
    """`number` names it outside. Tokens are prompt and answer together."""

    number: int
    request: Request
    sampling: Sampling
    seed: int
    sequence: Sequence
    arrived_s: float
    computed: int = 0
    """Leading tokens whose keys and values are in its pages."""
    reuse: Reuse = Reuse()
    keys: list[bytes] = field(default_factory=list)
    """Pool keys of the prompt's whole chunks, block by block; empty: the pool is left alone."""
    pool_blocks: int = 0
    """How many of them, from the first on, the pool has."""
    pool_is_local: bool = False
    """They lie on this host."""
    load: Load | None = None
    """Blocks on their way from the pool into its pages; `computed` counts them already."""
    load_from: int = 0
    """Where in the tokens they begin."""
    handing: Handing | None = None
    """Its part in a hand-over to or from another engine."""

    @property
    def prompt_tokens(self) -> int:
        return len(self.request.prompt)

    @property
    def answered(self) -> int:
        """Tokens of the answer so far."""
        return len(self.sequence) - self.prompt_tokens

    @property
    def in_prefill(self) -> bool:
        return self.computed < self.prompt_tokens

    @property
    def at_the_end(self) -> bool:
        """Feeding one more token gives a token that is not known yet."""
        return self.computed + 1 == len(self.sequence)

    @property
    def can_run(self) -> bool:
        """Nothing it needs is still on its way."""
        if self.handing is not None and self.handing.waits:
            return False
        return self.load is None or self.load.may_begin

    @property
    def is_pinned(self) -> bool:
        """Others read or write its pages: they cannot be taken from it."""
        return self.load is not None or (self.handing is not None and self.handing.begun)
