"""A real model: what one engine has read, another knows.

In float32: on CPUs without instructions for bfloat16, its own type, that is several times as fast.
Blocks in bfloat16 are in test_vllm_pool.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines.smollm2 import decode, encode, write_smollm2
from tests.engines.test_vllm_pool import computed, tokens
from tests.engines.vllm_rig import EngineProcess, Engines, running_pool
from tests.faults.pool_rig import MIB, Rig

# Counting goes on in one way only: engines whose steps have other shapes, and so round otherwise,
# agree on it, and one wrong key or value in a block ends it.
COUNT = "The numbers from {0}, one after the other: "
BLOCK = 32


@pytest.fixture(scope="module")
def pool() -> Iterator[Rig]:
    with running_pool(memory=384 * MIB) as rig:
        yield rig


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_smollm2(tmp_path_factory.mktemp("models") / "smollm2")


def start(name: str, smollm2: Path, pool: Rig, engines: Engines) -> EngineProcess:
    """The plain one has no connector, b loads in the step that needs the blocks."""
    return engines.start(
        name,
        connector=name != "smollm2 plain",
        model=smollm2,
        master=pool.address,
        extra={"load": "sync"} if name == "smollm2 b" else {},
        dtype="float32",
        skip_tokenizer_init=True,
        max_model_len=2304,
        max_num_batched_tokens=1024,
        num_gpu_blocks_override=256,
    )


@pytest.fixture(scope="module")
def three(smollm2: Path, pool: Rig, engines: Engines) -> Iterator[dict[str, EngineProcess]]:
    """Two with the connector, one without."""
    names = ("smollm2 a", "smollm2 b", "smollm2 plain")
    yield {name: start(name, smollm2, pool, engines) for name in names}
    for name in names:
        engines.end(name)


def count_to(first: int, length: int) -> tuple[list[int], int]:
    """A prompt of `length` tokens that counts up, and the number it ends in."""
    last = first
    text = COUNT.format(first)
    while True:
        longer = f"{text}{last}, "
        if len(encode(longer)) > length:
            return encode(text), last - 1
        text, last = longer, last + 1


@pytest.mark.parametrize(
    ("writer", "reader", "first", "length"),
    [("smollm2 a", "smollm2 b", 1, 1200), ("smollm2 b", "smollm2 a", 301, 600)],
)
def test_what_one_engine_has_read_another_knows(
    writer: str,
    reader: str,
    first: int,
    length: int,
    three: dict[str, EngineProcess],
    pool: Rig,
) -> None:
    prompt, last = count_to(first, length)
    whole = (len(prompt) - 1) // BLOCK * BLOCK
    reference = three["smollm2 plain"].generate(prompt, max_tokens=16)
    assert f"{last + 1}, {last + 2}, {last + 3}" in decode(reference[0]["tokens"])
    assert tokens(computed(three[writer], pool, prompt, max_tokens=16)) == tokens(reference)
    (loaded,) = three[reader].generate(prompt, max_tokens=16)
    assert loaded["cached"] == whole and loaded["tokens"] == reference[0]["tokens"]
    (local,) = three[reader].generate(prompt, max_tokens=16)
    assert local["cached"] == whole and local["logprobs"] == loaded["logprobs"]


def test_a_hit_is_extended_and_found_again_after_a_restart(
    three: dict[str, EngineProcess], smollm2: Path, pool: Rig, engines: Engines
) -> None:
    """b has the beginning itself; a, begun anew, has nothing but what the pool keeps."""
    prompt, last = count_to(601, 800)
    whole = (len(prompt) - 1) // BLOCK * BLOCK
    reference = three["smollm2 plain"].generate(prompt, max_tokens=16)
    assert f"{last + 1}, {last + 2}, {last + 3}" in decode(reference[0]["tokens"])
    reader = three["smollm2 b"]
    computed(reader, pool, prompt[:300], max_tokens=1)
    computed(three["smollm2 a"], pool, prompt, known=300 // BLOCK, max_tokens=16)
    before = reader.counters()["loaded_tokens"]
    (loaded,) = reader.generate(prompt, max_tokens=16)
    assert reader.counters()["loaded_tokens"] - before == whole - 300 // BLOCK * BLOCK
    engines.end("smollm2 a")
    three["smollm2 a"] = start("smollm2 a", smollm2, pool, engines)
    (found,) = three["smollm2 a"].generate(prompt, max_tokens=16)
    for name, answer in (("smollm2 b", loaded), ("smollm2 a", found)):
        assert answer["cached"] == whole and answer["tokens"] == reference[0]["tokens"], name
        (local,) = three[name].generate(prompt, max_tokens=16)
        assert local["cached"] == whole and local["logprobs"] == answer["logprobs"], name
