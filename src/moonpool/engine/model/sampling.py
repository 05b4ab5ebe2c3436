"""Which token comes next: greedy, or drawn by temperature, top-k and top-p.

Pure: the draw is an argument. `draw` makes it from the request's seed and the token's number, so
that an answer depends neither on who else is served nor on whether it was interrupted.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from moonpool.engine.request import Sampling


def sample(logits: Tensor, sampling: Sampling, draw: float) -> int:
    """A token of `logits` [vocabulary] float32; `draw` in [0, 1) chooses among the likely ones."""
    if sampling.greedy:
        return int(logits.argmax())
    ordered, tokens = logits.float().sort(descending=True, stable=True)
    if 0 < sampling.top_k < len(ordered):
        ordered = ordered[: sampling.top_k]
    shares = (ordered / sampling.temperature).softmax(-1).double().cumsum(-1)
    if sampling.top_p < 1.0:  # the shortest run that reaches top_p, never less than one token
        last = int(torch.searchsorted(shares, sampling.top_p))
        shares = shares[: last + 1]
    place = torch.searchsorted(shares, draw * float(shares[-1]), right=True)
    return int(tokens[min(int(place), len(shares) - 1)])


def draw(seed: int, number: int) -> float:
    """The random number in [0, 1) of token `number` of an answer with `seed`."""
    bits = np.random.Philox(key=seed % 2**64, counter=number).random_raw()
    return float(int(bits) >> 11) / 2.0**53
