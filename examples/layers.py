"""Layer by layer: a prefill stores each layer as soon as it is computed, a decoder loads it so.

moonpool up                                   # in one terminal
python examples/layers.py                     # in another; MOONPOOL_MASTER for another address
"""

import numpy as np

import moonpool

LAYERS, BLOCKS, LAYER_BYTES = 6, 4, 64 << 10
KEYS = [f"layers/{i}" for i in range(BLOCKS)]


def computed(layer: int, block: int) -> np.ndarray:
    """Stands for what attention leaves behind: one layer of one block."""
    return np.full(LAYER_BYTES, 10 * layer + block, np.uint8)


def prefill(pool: moonpool.Pool) -> None:
    sizes = [LAYERS * LAYER_BYTES] * BLOCKS
    with pool.write_session(KEYS, sizes, layers=LAYERS, parents="chain") as session:
        for layer in range(LAYERS):
            session.write(layer, [computed(layer, block) for block in range(BLOCKS)])
            assert not any(pool.exists(KEYS)), "nothing is visible before the end"
    print("prefill:", ", ".join(str(result and result.status) for result in session.results))


def decode(pool: moonpool.Pool) -> None:
    buffers = [np.empty(LAYER_BYTES, np.uint8) for _ in KEYS]
    with pool.read_session(KEYS, layers=LAYERS) as session:
        for layer in range(LAYERS):
            assert all(session.read(layer, buffers)), session.misses
            for block, buffer in enumerate(buffers):
                assert (buffer == computed(layer, block)).all()
            print(f"decode: layer {layer} is here, attention can begin on it")


def main() -> None:
    with moonpool.connect() as pool:
        pool.remove_prefix("layers/")
        prefill(pool)
        decode(pool)


if __name__ == "__main__":
    main()
