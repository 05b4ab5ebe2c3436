"""The prefix index as one would explain it: a dict of sets, walked block by block."""

from __future__ import annotations

DEVICE_SLOTS = frozenset({0, 3, 4, 5, 6, 7})
HOST_SLOTS = DEVICE_SLOTS | {1}
ALL_SLOTS = HOST_SLOTS | {2}


class NaiveIndex:
    """Same calls as the native one; every answer follows from what is held, and nothing else."""

    def __init__(self) -> None:
        self.holders: dict[int, set[tuple[int, int]]] = {}

    def __len__(self) -> int:
        return len(self.holders)

    def store(self, place: int, slot: int, hashes: list[int]) -> None:
        for block in hashes:
            self.holders.setdefault(block, set()).add((place, slot))

    def remove(self, place: int, slot: int, hashes: list[int]) -> int:
        return sum(self._discard(block, {(place, slot)}) for block in hashes)

    def drop(self, place: int) -> None:
        for block, held in list(self.holders.items()):
            self._discard(block, {h for h in held if h[0] == place})

    def drop_slot(self, slot: int) -> None:
        for block, held in list(self.holders.items()):
            self._discard(block, {h for h in held if h[1] == slot})

    def depth(self, chain: list[int], place: int, slots: frozenset[int]) -> int:
        for depth, block in enumerate(chain):
            if not any((place, slot) in self.holders.get(block, ()) for slot in slots):
                return depth
        return len(chain)

    def held(self, place: int, slot: int) -> set[int]:
        return {block for block, held in self.holders.items() if (place, slot) in held}

    def _discard(self, block: int, gone: set[tuple[int, int]]) -> int:
        held = self.holders.get(block, set())
        had = len(held & gone)
        held -= gone
        if not held:
            self.holders.pop(block, None)
        return had
