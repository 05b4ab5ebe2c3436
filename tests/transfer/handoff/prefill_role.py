"""A prefill rank in a process of its own, to be killed and stopped: obeys lines of JSON.

{"open": id, "tokens": n, "blocks": [...]}     {"compute": id, "layers": [from, to]}
{"fail": id}                                    {"released": true} -> which ones, and how
"""

import json
import sys

from moonpool.transfer.handoff import PrefillNode
from tests.transfer.handoff.ranks import compute, config, layout, memory_of


def main() -> None:
    shape, settings = json.loads(sys.argv[1]), json.loads(sys.argv[2])
    memory, array = memory_of(layout(**shape))
    node = PrefillNode("p0", memory, config(**settings))
    print(node.start(), flush=True)
    opened: dict[str, tuple[int, list[int]]] = {}
    released: dict[str, bool] = {}
    for line in sys.stdin:
        order = json.loads(line)
        if "open" in order:
            opened[order["open"]] = (order["tokens"], order["blocks"])
            node.open(order["open"], order["tokens"], order["blocks"])
        elif "compute" in order:
            tokens, blocks = opened[order["compute"]]
            compute(node, array, order["compute"], blocks, tokens, layers=range(*order["layers"]))
        elif "fail" in order:
            node.fail(order["fail"], "cancelled", "told to")
        released.update({one.transfer: one.ok for one in node.take()})
        print(json.dumps(released), flush=True)
    node.close()


if __name__ == "__main__":
    main()
