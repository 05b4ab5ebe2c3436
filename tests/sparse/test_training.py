"""Training computes what decoding computes, and learns."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from moonpool.core.errors import BadModel
from moonpool.sparse.decoder import DecoderShape, load, packaged, prefill
from moonpool.sparse.decoder.task import FIRST_FILLER, FIRST_VALUE, VOCABULARY, stream
from moonpool.sparse.decoder.weights import assemble, save
from tests.sparse.small_decoder import SHAPE


def test_torch_and_numpy_give_the_same_logits() -> None:
    torch = pytest.importorskip("torch", reason="the engine extra is not installed")
    from moonpool.sparse.training.network import Network

    network = Network(SHAPE, 5)
    arrays = {name: tensor.detach().numpy() for name, tensor in network.weights.items()}
    tokens = stream(np.random.default_rng(1), 600).tokens
    with torch.no_grad():
        want = network.passed(torch.from_numpy(tokens)[None]).logits[0, -1].numpy()
    got = prefill(assemble(SHAPE, arrays), tokens.tolist()).logits
    assert np.abs(want).max() > 0.1
    assert np.allclose(got, want, atol=2e-3)  # rows are float16 in a cache


def test_training_learns_and_is_repeatable(capsys: pytest.CaptureFixture[str]) -> None:
    torch = pytest.importorskip("torch", reason="the engine extra is not installed")
    from moonpool.sparse.training.__main__ import Stage, step, train
    from moonpool.sparse.training.network import Network

    stages = [Stage(25, 8, 32, 1, 3e-3, 16)]
    network, again = (train(SHAPE, stages, 3) for _ in range(2))
    assert "25/25 steps of 32 tokens" in capsys.readouterr().err
    for name in network.weights:
        assert torch.equal(network.take(name), again.take(name))
    first, last = (
        step(one, torch.optim.SGD(one.weights.values(), 0.0), np.random.default_rng(9), stages[0])
        for one in (Network(SHAPE, 3), network)
    )
    assert last.loss < first.loss and last.divergence < first.divergence


def test_weights_are_kept_in_half_precision(tmp_path: Path) -> None:
    weights = packaged()
    assert weights.shape == DecoderShape(VOCABULARY)
    random = np.random.default_rng(0)
    arrays = {name: random.normal(size=size) for name, size in SHAPE.tensors().items()}
    path = tmp_path / "w.npz"
    save(path, SHAPE, arrays)
    again = load(path)
    assert again.shape == SHAPE and again.name != weights.name
    assert np.array_equal(again.embeddings, arrays["embeddings"].astype(np.float16))
    for wrong in (arrays | {"norm": np.zeros(3)}, {k: v for k, v in arrays.items() if k != "norm"}):
        save(path, SHAPE, wrong)
        with pytest.raises(BadModel, match="the decoder's norm should be"):
            load(path)
    path.write_bytes(b"nothing")
    with pytest.raises(BadModel, match="no weights of the small decoder"):
        load(path)


def test_a_stream_binds_each_key_once() -> None:
    made = stream(np.random.default_rng(2), 3000, 4)
    bound: dict[int, int] = {}
    for at, token in enumerate(made.tokens[:-1].tolist()):
        if token < FIRST_VALUE:
            value = int(made.tokens[at + 1])
            assert FIRST_VALUE <= value < FIRST_FILLER
            assert bound.setdefault(token, value) == value
            assert made.answers[at + 1] == (token in made.tokens[:at])
    assert len(bound) <= 4 * 16 and made.answers.mean() > 0.3
