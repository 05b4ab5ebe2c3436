"""Train the small decoder: `python -m moonpool.sparse.training recall.npz`.

Short streams first, then longer ones, then longer ones with sparse attention. Seeds are fixed;
another release of torch or kind of processor may end at other weights that are as good.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from moonpool.sparse.decoder.shape import DecoderShape
from moonpool.sparse.decoder.task import VOCABULARY, stream
from moonpool.sparse.decoder.weights import save
from moonpool.sparse.training.network import Network

_EVERY: Final = 25
_CLIP: Final = 1.0
_UNASKED: Final = 0.1  # weight of tokens that cannot be looked up
_INDEX: Final = 1.0
_INDEX_PACE: Final = 3.0


class Stage(NamedTuple):
    steps: int
    batch: int
    tokens: int
    subjects: int
    rate: float
    top_k: int = 0
    """Attended to by each token; 0: all."""


STAGES: Final = (
    Stage(650, 32, 96, 2, 2e-3),
    Stage(150, 16, 256, 6, 1e-3),
    Stage(150, 4, 512, 12, 1e-3, 64),
    Stage(40, 2, 1024, 24, 5e-4, 64),
)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m moonpool.sparse.training", description=__doc__)
    parser.add_argument("out", type=Path, help="where the weights go, as recall.npz")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of steps")
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)  # products are small: threads would wait for each other
    stages = [s._replace(steps=max(1, round(s.steps * chosen.scale))) for s in STAGES]
    network = train(DecoderShape(VOCABULARY), stages, chosen.seed)
    arrays = {name: tensor.detach().numpy() for name, tensor in network.weights.items()}
    save(chosen.out, network.shape, arrays)
    print(f"{chosen.out}: {chosen.out.stat().st_size:,} bytes")
    return 0


def train(shape: DecoderShape, stages: Sequence[Stage], seed: int) -> Network:
    """The trained network; a line of progress on stderr now and then."""
    network = Network(shape, seed)
    random = np.random.default_rng(seed)
    indexers = [t for name, t in network.weights.items() if ".index_" in name]
    others = [t for name, t in network.weights.items() if ".index_" not in name]
    optimizer = torch.optim.AdamW(
        [{"params": others, "pace": 1.0}, {"params": indexers, "pace": _INDEX_PACE}],
        betas=(0.9, 0.98),
        weight_decay=0.01,
    )
    all_steps, done, begun = sum(stage.steps for stage in stages), 0, time.monotonic()
    for stage in stages:
        for number in range(stage.steps):
            # Up within 50 steps, down to a tenth over the stage.
            warm = min(1.0, (done + 1) / 50)
            rate = stage.rate * warm * (1 - 0.9 * number / stage.steps)
            for group in optimizer.param_groups:
                group["lr"] = rate * group["pace"]
            told = step(network, optimizer, random, stage)
            done += 1
            if done % _EVERY == 0 or done == all_steps:
                spent = time.monotonic() - begun
                print(
                    f"\r{done}/{all_steps} steps of {stage.tokens} tokens, {spent:.0f} s: "
                    f"{told.right:.1%} looked up, loss {told.loss:.3f}, "
                    f"indexers off by {told.divergence:.3f} nats",
                    end="\n" if done % (8 * _EVERY) == 0 or done == all_steps else "",
                    file=sys.stderr,
                    flush=True,
                )
    return network


class Told(NamedTuple):
    loss: float
    right: float
    divergence: float


def step(
    network: Network, optimizer: torch.optim.Optimizer, random: np.random.Generator, stage: Stage
) -> Told:
    tokens, answers = batch(random, stage)
    passed = network.passed(tokens, top_k=stage.top_k)
    logits, wanted, asked = passed.logits[:, :-1], tokens[:, 1:], answers[:, 1:]
    each = functional.cross_entropy(logits.transpose(1, 2), wanted, reduction="none")
    loss = each[asked].mean() + _UNASKED * each[~asked].mean() + _INDEX * passed.divergence
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(network.weights.values(), _CLIP)
    optimizer.step()
    right = (logits.argmax(dim=-1) == wanted)[asked].float().mean()
    return Told(each[asked].mean().item(), right.item(), passed.divergence.item())


def batch(random: np.random.Generator, stage: Stage) -> tuple[Tensor, Tensor]:
    """Tokens int64 and answers bool, [batch, tokens]."""
    made = [stream(random, stage.tokens, stage.subjects) for _ in range(stage.batch)]
    return (
        torch.from_numpy(np.stack([one.tokens for one in made])),
        torch.from_numpy(np.stack([one.answers for one in made])),
    )


if __name__ == "__main__":
    sys.exit(main())
