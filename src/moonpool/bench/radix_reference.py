"""The rival of `moonpool bench radix`: the prefix tree that SGLang and Mini-SGLang publish, told
again in plain Python and torch. Written here from its description, to be measured beside ours; not
their code, and not for use.

As there: edges of whole pages in dicts by their first page, one token slot per token, locks counted
up to the root, and an eviction that walks the whole tree for leaves, makes a heap of them by age
and takes whole leaves. The comparison of tokens is numpy's, where theirs is a native call.
"""

from __future__ import annotations

import heapq
import itertools
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    import torch

NAME: Final = "sglang-reference"

PageKey = tuple[int, ...]


class _Node:
    __slots__ = ("children", "key", "locks", "parent", "slots", "used")

    def __init__(self, parent: _Node | None, key: torch.Tensor, slots: torch.Tensor) -> None:
        self.parent = parent
        self.key = key
        self.slots = slots
        self.children: dict[PageKey, _Node] = {}
        self.locks = 0
        self.used = 0


class ReferenceTree:
    """Tokens and slots are int32 CPU tensors, in multiples of `page_size`."""

    def __init__(self, page_size: int) -> None:
        import torch

        empty = torch.zeros(0, dtype=torch.int32)
        self._cat = torch.cat
        self._empty = empty
        self._page_size = page_size
        self._root = _Node(None, empty, empty)
        self._clock = itertools.count(1)

    def match(self, tokens: torch.Tensor) -> torch.Tensor:
        """Slots of the longest cached prefix; locked and unlocked, as a scheduler would."""
        node = self._walk(tokens)[0]
        self._lock(node, 1)
        parts = []
        found: _Node | None = node
        while found is not None and found.parent is not None:
            parts.append(found.slots)
            found = found.parent
        slots = self._cat(parts[::-1]) if parts else self._empty
        self._lock(node, -1)
        return slots

    def insert(self, tokens: torch.Tensor, slots: torch.Tensor) -> int:
        """Tokens that were cached already."""
        node, known = self._walk(tokens)
        if known < len(tokens):
            new = _Node(node, tokens[known:], slots[known:].clone())
            new.used = next(self._clock)
            node.children[self._first_page(tokens, known)] = new
        return known

    def evict(self, tokens: int) -> torch.Tensor:
        """Slots of whole leaves, at least so many."""
        leaves = [(node.used, id(node), node) for node in self._leaves()]
        heapq.heapify(leaves)
        parts, freed = [], 0
        while freed < tokens and leaves:
            node = heapq.heappop(leaves)[2]
            parts.append(node.slots)
            freed += len(node.slots)
            parent = node.parent
            assert parent is not None
            del parent.children[self._first_page(node.key, 0)]
            if not parent.children and parent.locks == 0 and parent.parent is not None:
                heapq.heappush(leaves, (parent.used, id(parent), parent))
        return self._cat(parts) if parts else self._empty

    def _walk(self, tokens: torch.Tensor) -> tuple[_Node, int]:
        node, at = self._root, 0
        while at < len(tokens):
            child = node.children.get(self._first_page(tokens, at))
            if child is None:
                break
            same = self._common(child.key, tokens[at:])
            at += same
            if same < len(child.key):
                return self._split(child, same), at
            child.used = next(self._clock)
            node = child
        return node, at

    def _common(self, key: torch.Tensor, tokens: torch.Tensor) -> int:
        size = min(len(key), len(tokens))
        differ = np.flatnonzero(key[:size].numpy() != tokens[:size].numpy())
        same = int(differ[0]) if len(differ) else size
        return same - same % self._page_size

    def _split(self, node: _Node, at: int) -> _Node:
        parent = node.parent
        assert parent is not None
        upper = _Node(parent, node.key[:at], node.slots[:at])
        upper.locks, upper.used = node.locks, node.used
        parent.children[self._first_page(node.key, 0)] = upper
        node.key, node.slots, node.parent = node.key[at:], node.slots[at:], upper
        upper.children[self._first_page(node.key, 0)] = node
        return upper

    def _first_page(self, tokens: torch.Tensor, at: int) -> PageKey:
        page: list[int] = tokens[at : at + self._page_size].tolist()
        return tuple(page)

    def _lock(self, node: _Node, by: int) -> None:
        above: _Node | None = node
        while above is not None and above.parent is not None:
            above.locks += by
            above = above.parent

    def _leaves(self) -> list[_Node]:
        found, open_nodes = [], [self._root]
        while open_nodes:
            node = open_nodes.pop()
            open_nodes.extend(node.children.values())
            if not node.children and node.locks == 0 and node.parent is not None:
                found.append(node)
        return found
