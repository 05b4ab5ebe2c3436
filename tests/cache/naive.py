"""The prefix cache as a dictionary: every cached page by its namespace and all tokens up to its
end. Slow and plain; what the native tree answers must be the same, and which pages go, too."""

from __future__ import annotations

from dataclasses import dataclass

Chain = tuple[int, ...]
Place = tuple[str, Chain]


@dataclass
class Page:
    page: int
    used: int
    created: int
    uses: int = 1
    holds: int = 0


class NaiveCache:
    """Chains are tuples of tokens in multiples of `page_size`."""

    def __init__(self, page_size: int, policy: str) -> None:
        self._page_size = page_size
        self._policy = policy
        self._clock = 0
        self.pages: dict[Place, Page] = {}

    def prefix(self, space: str, tokens: Chain) -> Chain:
        """The longest cached prefix."""
        end = 0
        while end + self._page_size <= len(tokens):
            if (space, tokens[: end + self._page_size]) not in self.pages:
                break
            end += self._page_size
        return tokens[:end]

    def path(self, space: str, tokens: Chain) -> list[Page]:
        ends = range(self._page_size, len(tokens) + 1, self._page_size)
        return [self.pages[space, tokens[:end]] for end in ends]

    def match(self, space: str, tokens: Chain, touch: bool) -> Chain:
        found = self.prefix(space, tokens)
        self._clock += touch
        for one in self.path(space, found):
            one.holds += 1
            if touch:
                one.used = self._clock
                one.uses += 1
        return found

    def insert(self, space: str, tokens: Chain, pages: list[int]) -> int:
        """Pages that were cached already; the whole path is held."""
        known = len(self.prefix(space, tokens)) // self._page_size
        self._clock += 1
        for i in range(known, len(pages)):
            place = (space, tokens[: (i + 1) * self._page_size])
            self.pages[place] = Page(pages[i], self._clock, self._clock)
        for one in self.path(space, tokens):
            one.holds += 1
            one.used = self._clock
        return known

    def release(self, space: str, tokens: Chain) -> None:
        for one in self.path(space, tokens):
            one.holds -= 1

    def evictable(self) -> int:
        return sum(1 for one in self.pages.values() if one.holds == 0)

    def tails(self) -> list[Place]:
        """Pages that nobody holds and nothing continues."""
        parents = {(space, tokens[: -self._page_size]) for space, tokens in self.pages}
        return [
            place for place, one in self.pages.items() if not one.holds and place not in parents
        ]

    def evict(self, count: int) -> list[int]:
        """By this cache's policy, page by page."""
        gone: list[int] = []
        while len(gone) < count and (tails := self.tails()):
            gone.append(self.pages.pop(min(tails, key=self._rank)).page)
        return gone

    def forget(self, page: int) -> None:
        """One page went as somebody else chose; it must have been a tail."""
        (place,) = (one for one in self.tails() if self.pages[one].page == page)
        del self.pages[place]

    def _rank(self, place: Place) -> tuple[int, int]:
        one = self.pages[place]
        if self._policy == "lru":
            return (one.used, 0)
        return (one.created, 0) if self._policy == "fifo" else (one.uses, one.used)
