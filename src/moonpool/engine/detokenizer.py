"""Token ids to text while they are made: pure, and exact.

`TextStream` gives out text as soon as it can no longer change: not inside a character whose bytes
are still coming, and not inside what may become a stop string. What it gave out, joined, is the
decoded whole, cut before the first stop string.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

_UNFINISHED: Final = "\N{REPLACEMENT CHARACTER}"
_WINDOW_TOKENS_MAX: Final = 64
_CHARACTER_TOKENS_MAX: Final = 8
"""More tokens than a character of UTF-8 has bytes: what lies further back cannot change its end."""

Decode = Callable[[Sequence[int]], str]


class Detokenizer:
    """Text of a growing row of token ids.

    Decoding all of them anew for each would be quadratic, and decoding each alone is wrong:
    characters span tokens, and some tokenizers drop a space at the start. So a window is decoded:
    the tokens of the last text given out, for context, and those that have given none yet.
    """

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._window: list[int] = []
        self._fresh = 0  # where in the window the tokens begin that are no mere context
        self._told = ""  # what was given out of the window's text

    def push(self, token: int) -> str:
        """The text that `token` settles; "" inside a character."""
        self._window.append(token)
        text = self._decode(self._window)
        if text.endswith(_UNFINISHED):
            # The last sign may be the start of a character; whatever stands before it is settled.
            new = self._tell(text[:-1])
            if len(self._window) > _WINDOW_TOKENS_MAX:
                self._slide(len(self._window) - _CHARACTER_TOKENS_MAX)
                self._fresh = 0  # the window may begin inside a character: it gives no context
            return new
        new = self._tell(text)
        if new:
            self._slide(self._fresh)
        elif len(self._window) > _WINDOW_TOKENS_MAX:  # tokens without text, such as control tokens
            del self._window[self._fresh :]
        return new

    def finish(self) -> str:
        """What was held back, as it stands."""
        return self._tell(self._decode(self._window)) if self._window else ""

    def _tell(self, text: str) -> str:
        new = text[len(self._told) :]
        if new:
            self._told = text
        return new

    def _slide(self, start: int) -> None:
        self._window = self._window[start:]
        self._fresh = len(self._window)
        self._told = self._decode(self._window).removesuffix(_UNFINISHED)


class Stopped(NamedTuple):
    """What a piece of text gives out, and whether a stop string ended it."""

    text: str
    done: bool


class StopStrings:
    """Cuts a stream of text before the first of `stops`, holding back what may become one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._longest = max(map(len, self._stops), default=0)
        self._held = ""

    def push(self, text: str) -> Stopped:
        """The part of `text` (and of what was held) that is surely before any stop string."""
        if not self._stops:
            return Stopped(text, False)
        held = self._held + text
        # The one that ends first, however the text was cut into pieces; of two, the longer.
        found = [(at + len(stop), at) for stop in self._stops if (at := held.find(stop)) >= 0]
        if found:
            self._held = ""
            return Stopped(held[: min(found)[1]], True)
        keep = self._may_begin(held)
        self._held = held[len(held) - keep :]
        return Stopped(held[: len(held) - keep], False)

    def finish(self) -> str:
        """What was held: no more text comes, so it is no stop string."""
        held, self._held = self._held, ""
        return held

    def _may_begin(self, text: str) -> int:
        """Length of the longest end of `text` that begins a stop string."""
        for length in range(min(len(text), self._longest - 1), 0, -1):
            end = text[len(text) - length :]
            if any(stop.startswith(end) for stop in self._stops):
                return length
        return 0


class TextStream:
    """Both together: tokens in, final text out."""

    def __init__(self, decode: Decode, stops: Sequence[str] = ()) -> None:
        self._detokenizer = Detokenizer(decode)
        self._stops = StopStrings(stops)
        self.stopped = False

    def push(self, token: int) -> str:
        """Text to give out; after a stop string (`stopped`) there is none any more."""
        return self._cut(self._detokenizer.push(token))

    def finish(self) -> str:
        """The rest, when the tokens are over."""
        text = self._cut(self._detokenizer.finish())
        return text if self.stopped else text + self._stops.finish()

    def _cut(self, text: str) -> str:
        if self.stopped:
            return ""
        found = self._stops.push(text)
        self.stopped = found.done
        return found.text
