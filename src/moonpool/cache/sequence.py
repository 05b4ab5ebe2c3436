"""A request as the cache sees it: its tokens, and the pages that stand for them.

    waiting ── admit ──> running ── finish ──> finished
       ^                    │
       └───── preempt ──────┘

The table's pages, in order of tokens:

    [0, shared)        the tree's, held by the sequence's lease
    [shared, len)      private: whole pages not cached yet, and the partial tail
"""

from __future__ import annotations

from enum import StrEnum

import numpy as np
import numpy.typing as npt

from moonpool import _core
from moonpool.cache.base import I32, Tokens, as_tokens, pages_for
from moonpool.cache.namespace import PLAIN, Namespace
from moonpool.cache.radix import Lease
from moonpool.core.errors import BadInput


class SequenceState(StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class Sequence:
    """Made by its engine, changed by the cache manager; an engine reads it and appends tokens.

    `tokens_max` is the most it may ever have, prompt included. Raises BadInput.
    """

    def __init__(
        self,
        prompt: object,
        tokens_max: int,
        namespace: Namespace = PLAIN,
        *,
        page_size: int,
    ) -> None:
        tokens = as_tokens(prompt)
        if len(tokens) == 0:
            raise BadInput("a prompt has at least one token")
        if tokens_max < len(tokens):
            raise BadInput(f"tokens_max {tokens_max} is below the prompt's {len(tokens)} tokens")
        self.prompt_tokens = len(tokens)
        self.tokens_max = tokens_max
        self.namespace = namespace
        self.page_size = page_size
        self.state = SequenceState.WAITING
        self.cached_tokens = 0
        """Of its tokens, how many the last admission found cached."""
        self.computed_tokens = 0
        """Leading tokens whose keys and values are in the pages."""
        self.lease: Lease | None = None
        self._tokens: npt.NDArray[np.uint32] = np.empty(max(2 * len(tokens), 64), np.uint32)
        self._tokens[: len(tokens)] = tokens.view(np.uint32)
        self._size = len(tokens)
        self._table: I32 = np.empty(pages_for(len(tokens), page_size) + 4, np.int32)
        self._pages = 0
        self._digests: npt.NDArray[np.uint8] = np.zeros((0, 32), np.uint8)

    def __len__(self) -> int:
        return self._size

    @property
    def tokens(self) -> Tokens:
        """uint32[n], prompt and what was appended; a view that the next append may leave behind."""
        return self._tokens[: self._size]

    @property
    def table(self) -> I32:
        """int32[pages]: page of token t is table[t // page_size]; a view, see `tokens`."""
        return self._table[: self._pages]

    @property
    def shared_pages(self) -> int:
        """Leading pages of the table that belong to the tree."""
        return 0 if self.lease is None else len(self.lease.pages)

    @property
    def room_tokens(self) -> int:
        """Tokens that the pages of its table have place for."""
        return self._pages * self.page_size

    def append(self, *tokens: int) -> None:
        """Generated tokens. Raises BadInput beyond `tokens_max`."""
        size = self._size + len(tokens)
        if size > self.tokens_max:
            raise BadInput(f"{size} tokens are more than this sequence's {self.tokens_max}")
        if size > len(self._tokens):
            self._tokens = np.concatenate([self._tokens, np.empty(size, np.uint32)])
        self._tokens[self._size : size] = tokens
        self._size = size

    def content_hashes(self) -> npt.NDArray[np.uint8]:
        """uint8[whole pages, 32]: the SHA-256 chain of KeySpec, each page hashed once."""
        known, whole = len(self._digests), self._size // self.page_size
        if whole > known:
            parent = self._digests[-1].tobytes() if known else b""
            rest = self._tokens[known * self.page_size : whole * self.page_size]
            fresh = _core.block_hashes_sha256(rest, self.page_size, parent)
            self._digests = np.concatenate([self._digests, fresh])
        return self._digests

    def extend_table(self, pages: I32) -> None:
        """For the manager: more pages at the end."""
        size = self._pages + len(pages)
        if size > len(self._table):
            self._table = np.concatenate([self._table, np.empty(size, np.int32)])
        self._table[self._pages : size] = pages
        self._pages = size

    def cut_table(self, pages: int) -> I32:
        """For the manager: the pages behind the first `pages`, which leave the table."""
        cut = self._table[pages : self._pages].copy()
        self._pages = min(pages, self._pages)
        return cut
