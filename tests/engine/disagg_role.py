"""A prefill engine in a process of its own, to be killed: `-m tests.engine.disagg_role MODEL`.

Prints its side channel's address, then takes one JSON line for each request: prompt, transfer id.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from moonpool.engine.engine import Engine
from tests.engine.steps import config_of, greedy


def main() -> None:
    with Engine.load(Path(sys.argv[1]), config_of(role="prefill")) as engine:
        print(engine.handoff, flush=True)
        for line in sys.stdin:
            order = json.loads(line)
            transfer = {"do_remote_decode": True, "transfer_id": order["transfer"]}
            request = greedy(order["prompt"], max_tokens=1, transfer=transfer)
            engine.submit(request, lambda step: None)
            print("submitted", flush=True)


if __name__ == "__main__":
    main()
