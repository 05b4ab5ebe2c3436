"""Record what the small decoder chooses: `python -m moonpool.sparse.decoder trace.npz`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from moonpool.sparse.decoder.conversation import conversation, record
from moonpool.sparse.decoder.weights import load, packaged
from moonpool.sparse.traces import save_trace, summed_up


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m moonpool.sparse.decoder")
    parser.add_argument("out", type=Path)
    parser.add_argument("--weights", type=Path, help="instead of the packaged ones")
    parser.add_argument("--tokens", type=int, default=8192, help="of the prompt")
    parser.add_argument("--steps", type=int, default=96)
    parser.add_argument("--top-k", type=int, default=128)
    parser.add_argument("--seed", type=int, default=0, help="of the conversation")
    chosen = parser.parse_args(arguments)
    weights = load(chosen.weights) if chosen.weights else packaged()
    talk = conversation(chosen.tokens, chosen.steps, chosen.seed)
    trace, followed = record(weights, talk, chosen.top_k)
    save_trace(chosen.out, trace)
    print(json.dumps({**summed_up(trace)._asdict(), "looked_up": followed.right}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
