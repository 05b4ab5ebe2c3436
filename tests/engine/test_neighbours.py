"""An engine says which other engines on its pool it cannot share with."""

from __future__ import annotations

from pathlib import Path

import msgspec

import moonpool
from moonpool.core.engine_section import EngineConfig
from moonpool.core.keys import KeySpec
from moonpool.engine import Engine
from moonpool.engine.pooling.neighbours import PREFIX, announce

SPEC = KeySpec(model="tiny@1", dtype="bfloat16", layout="a/64", block_size=64)


def test_the_same_kind_of_engine_is_no_news() -> None:
    with moonpool.Pool.local(memory="8MiB") as pool:
        assert announce(pool, SPEC) == []
        assert announce(pool, SPEC) == []
        assert len(list(pool.list(PREFIX))) == 1


def test_another_model_and_another_block_size_are_named() -> None:
    with moonpool.Pool.local(memory="8MiB") as pool:
        announce(pool, msgspec.structs.replace(SPEC, model="other@2"))
        announce(pool, msgspec.structs.replace(SPEC, block_size=32, layout="a/32"))
        model, size = sorted(announce(pool, SPEC), reverse=True)
        assert "model other@2 (here tiny@1): neither can reuse" in model
        assert "layout a/32 (here a/64), block_size 32 (here 64): neither can reuse" in size


def test_objects_of_somebody_else_are_passed_over() -> None:
    with moonpool.Pool.local(memory="8MiB") as pool:
        pool.put(PREFIX + b"x", b"no JSON")
        pool.put(PREFIX + b"y", b'{"model": 5}')
        pool.put(PREFIX + b"z", b'{"model": "", "dtype": "a", "layout": "b", "block_size": 0}')
        assert announce(pool, SPEC) == []


def test_a_pool_that_is_gone_has_no_news() -> None:
    pool = moonpool.Pool.local(memory="8MiB")
    pool.close()
    assert announce(pool, SPEC) == []


def test_two_engines_with_different_block_sizes(tiny: Path) -> None:
    with moonpool.Pool.local(memory="8MiB") as pool:
        with Engine.load(tiny, EngineConfig(kv_memory=4 << 20), pool) as first:
            assert first.neighbours() == []
        config = EngineConfig(kv_memory=4 << 20, block_size=32)
        with Engine.load(tiny, config, pool) as second:
            (line,) = second.neighbours()
    assert "block_size 64 (here 32)" in line and "model" not in line
