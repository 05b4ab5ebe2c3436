"""What goes into one pass of the model over a chunk of a prompt, and who is told of its layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from moonpool.engine.scheduler import Chunk

if TYPE_CHECKING:
    from moonpool.engine.model.attention.base import Span
    from moonpool.engine.pooling.loading import Load
    from moonpool.engine.pooling.storing import Store


class Watch(Protocol):
    """Is told of the layers of a pass as they come, in the thread that computes it."""

    def before(self, layer: int) -> None:
        """Returns when the pages' content of this layer, up to the chunk, is there."""

    def after(self, layer: int) -> None:
        """Keys and values of this layer are in their pages."""


class Both:
    """Two watches of one pass, told in order."""

    def __init__(self, first: Watch, second: Watch) -> None:
        self._watches = (first, second)

    def before(self, layer: int) -> None:
        for watch in self._watches:
            watch.before(layer)

    def after(self, layer: int) -> None:
        for watch in self._watches:
            watch.after(layer)


class Pass(NamedTuple):
    """A chunk to compute. `follows`: of the passes beside it, the one before it in its sequence."""

    tokens: Sequence[int]
    span: Span
    watch: Watch | None
    last: bool
    """Its last token's logits are asked for."""
    follows: int | None = None


class Begun(NamedTuple):
    """A chunk whose pass is under way."""

    chunk: Chunk
    shares: bool
    """Its blocks become everybody's."""
    store: Store | None
    load: Load | None
    """What it rests on is still being loaded."""
