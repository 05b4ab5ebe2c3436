"""One request's prompt: its tokens and its prefix hashes by block size, computed once each."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from moonpool.core.errors import BadInput
from moonpool.router.base import Hashes, RouteRequest
from moonpool.router.hashing import prefix_hashes, prefix_seed, token_array


class Prompt:
    """Raises BadInput when the request has neither tokens nor hashes."""

    def __init__(self, request: RouteRequest) -> None:
        self.request = request
        self._hashes: dict[tuple[int, int], Hashes] = {}
        self._token_array: npt.NDArray[np.uint32] | None = None
        self._given = np.zeros(0, np.uint64)
        if request.tokens is not None:
            self._token_array = token_array(request.tokens)
            self.tokens = len(self._token_array)
        elif request.hashes is not None and request.prompt_tokens >= 0:
            self._given = np.ascontiguousarray(request.hashes, np.uint64)
            self.tokens = request.prompt_tokens
        else:
            raise BadInput("a request needs tokens, or hashes and prompt_tokens")

    @property
    def token_array(self) -> npt.NDArray[np.uint32] | None:
        """None where only hashes were given."""
        return self._token_array

    def seed(self, group: int = 0) -> int:
        """Of its chain, by KV group."""
        request = self.request
        return prefix_seed(request.model, request.namespace, request.adapter, group)

    def hashes(self, block_size: int, group: int = 0) -> Hashes:
        """Of its whole blocks; where the request gave hashes, those, whatever the size."""
        if self._token_array is None:
            return self._given
        found = self._hashes.get((block_size, group))
        if found is None:
            found = prefix_hashes(self._token_array, block_size, self.seed(group))
            self._hashes[block_size, group] = found
        return found

    def keep(self, block_size: int, hashes: Hashes) -> None:
        """Of group 0, hashed elsewhere."""
        self._hashes[block_size, 0] = hashes

    def covered(
        self, blocks: npt.NDArray[np.int64], block_size: int, last_again: bool = True
    ) -> npt.NDArray[np.float64]:
        """Tokens that so many leading blocks spare the engine.

        Of a prompt that is held whole it computes the last block again: it needs a token to go on
        from. `last_again` false leaves that out.
        """
        tokens = blocks * block_size
        whole = last_again & (tokens == self.tokens)
        spared: npt.NDArray[np.float64]
        spared = np.minimum(tokens - whole * block_size, self.tokens).astype(np.float64)
        return spared

    def hit(self, held: int, block_size: int) -> int:
        """What a worker that holds so many tokens will report: never the whole prompt."""
        return held if held < self.tokens else max(0, held - block_size)

    def salt(self, block_size: int, depth: int) -> int:
        """The hash where the prompt leaves what is held: the same on every router."""
        hashes = self.hashes(block_size)
        return int(hashes[min(depth, len(hashes) - 1)]) if len(hashes) else 0
