"""Files of weights, whole and damaged."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from moonpool.core.errors import BadModel
from moonpool.engine.model.llama import fingerprint
from moonpool.engine.model.weights import load
from tests.engine.tiny import CONFIG, write_model


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model")


def rewrite(model: Path, change: Any) -> None:
    tensors = load_file(str(model / "model.safetensors"))
    change(tensors)
    save_file(tensors, str(model / "model.safetensors"))


def test_a_directory(model: Path) -> None:
    config, weights = load(model)
    assert set(weights) >= set(config.shapes())
    assert weights["model.norm.weight"].dtype == torch.bfloat16


def test_weights_outlive_their_file(model: Path) -> None:
    _, weights = load(model)
    before = weights["model.norm.weight"].clone()
    (model / "model.safetensors").write_bytes(b"")
    assert torch.equal(weights["model.norm.weight"], before)


def test_weights_in_two_files(model: Path) -> None:
    whole = load(model)
    names = sorted(whole.weights)
    (model / "model.safetensors").unlink()
    parts = {"a.safetensors": names[:7], "b.safetensors": names[7:]}
    for file, own in parts.items():
        save_file({name: whole.weights[name] for name in own}, str(model / file))
    index = {"weight_map": {name: file for file, own in parts.items() for name in own}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    assert fingerprint(*load(model)) == fingerprint(*whole)
    (model / "b.safetensors").unlink()
    with pytest.raises(BadModel, match="b.safetensors is missing"):
        load(model)


def test_missing_files(model: Path) -> None:
    (model / "model.safetensors").unlink()
    with pytest.raises(BadModel, match="has no weights: .*download the model again"):
        load(model)
    (model / "config.json").unlink()
    with pytest.raises(BadModel, match="no config.json"):
        load(model)


@pytest.mark.parametrize("left", [0, 7, 100, -1])
def test_a_truncated_file(model: Path, left: int) -> None:
    file = model / "model.safetensors"
    file.write_bytes(file.read_bytes()[:left])
    with pytest.raises(BadModel, match="cannot be read: .*cut off"):
        load(model)


def test_a_missing_tensor(model: Path) -> None:
    rewrite(model, lambda tensors: tensors.pop("model.layers.1.mlp.up_proj.weight"))
    with pytest.raises(BadModel, match="no model.layers.1.mlp.up_proj.weight; "):
        load(model)


def test_a_tensor_of_another_model(model: Path) -> None:
    rewrite(model, lambda tensors: tensors.update({"model.norm.weight": torch.ones(64)}))
    with pytest.raises(BadModel, match=r"shape \[64\], the configuration says \[128\]"):
        load(model)


def test_a_dtype_that_is_no_weight(model: Path) -> None:
    name = "model.layers.0.mlp.up_proj.weight"
    rewrite(model, lambda tensors: tensors.update({name: tensors[name].to(torch.float8_e4m3fn)}))
    with pytest.raises(BadModel, match="float8_e4m3fn; only float32"):
        load(model)


def test_a_config_that_is_no_json(model: Path) -> None:
    (model / "config.json").write_text("{")
    with pytest.raises(BadModel, match="config.json cannot be read"):
        load(model)


def test_the_fingerprint_is_of_what_is_computed(model: Path, tmp_path: Path) -> None:
    one = fingerprint(*load(model))
    assert fingerprint(*load(write_model(tmp_path / "same"))) == one
    assert fingerprint(*load(write_model(tmp_path / "seed", seed=1))) != one
    assert fingerprint(*load(write_model(tmp_path / "wide", dtype="float32"))) != one
    assert fingerprint(*load(write_model(tmp_path / "turn", rope_theta=1e5))) != one
    assert fingerprint(*load(write_model(tmp_path / "ends", eos_token_id=7))) == one


class TestGguf:
    """A file written here, with the types that SmolLM2's file has."""

    def write(self, path: Path, weights: dict[str, torch.Tensor], **changes: Any) -> Path:
        import gguf

        config = {**CONFIG, **changes}
        writer = gguf.GGUFWriter(str(path), "llama")
        writer.add_context_length(config["max_position_embeddings"])
        writer.add_embedding_length(config["hidden_size"])
        writer.add_feed_forward_length(config["intermediate_size"])
        writer.add_block_count(config["num_hidden_layers"])
        writer.add_head_count(config["num_attention_heads"])
        writer.add_head_count_kv(config["num_key_value_heads"])
        writer.add_rope_dimension_count(config["head_dim"])
        writer.add_rope_freq_base(config["rope_theta"])
        writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
        writer.add_vocab_size(config["vocab_size"])
        for name, tensor in weights.items():
            self.add(writer, name, tensor.float().numpy())
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    def add(self, writer: Any, name: str, values: np.ndarray[Any, Any]) -> None:
        import gguf

        known = {
            "model.embed_tokens": "token_embd",
            "model.norm": "output_norm",
            "lm_head": "output",
            "input_layernorm": "attn_norm",
            "self_attn.q_proj": "attn_q",
            "self_attn.k_proj": "attn_k",
            "self_attn.v_proj": "attn_v",
            "self_attn.o_proj": "attn_output",
            "post_attention_layernorm": "ffn_norm",
            "mlp.gate_proj": "ffn_gate",
            "mlp.up_proj": "ffn_up",
            "mlp.down_proj": "ffn_down",
        }
        parts = name.removesuffix(".weight").split(".", 3)
        if len(parts) == 4:
            theirs = f"blk.{parts[2]}.{known[parts[3]]}.weight"
        else:
            theirs = f"{known[name.removesuffix('.weight')]}.weight"
        heads = {"attn_q": 4, "attn_k": 2}.get(theirs.split(".")[-2], 0)
        if heads:  # halves to pairs, as llama.cpp keeps them
            rows, columns = values.shape
            halves = values.reshape(heads, 2, rows // heads // 2, columns)
            values = np.ascontiguousarray(halves.swapaxes(1, 2).reshape(rows, columns))
        if values.ndim == 1:
            writer.add_tensor(theirs, values)
        else:
            kind = self.kind(theirs)
            writer.add_tensor(theirs, gguf.quantize(values, kind), raw_dtype=kind)

    def kind(self, name: str) -> Any:
        import gguf

        kinds = gguf.GGMLQuantizationType
        return kinds.Q8_0 if name.startswith(("token_embd", "output")) else kinds.Q4_1

    def test_it_is_the_model_of_the_directory(self, model: Path, tmp_path: Path) -> None:
        config, weights = load(model)
        known = {name: weights[name] for name in config.shapes()}
        read = load(self.write(tmp_path / "a.gguf", known))
        # A quantised file holds its values, so quantising them once more changes nothing:
        again = load(self.write(tmp_path / "b.gguf", read.weights))
        for name, tensor in known.items():
            width = (tensor.float().max() - tensor.float().min()).item()
            assert read.weights[name].shape == tensor.shape
            assert (read.weights[name] - tensor).abs().max() <= width / 15, name
        assert read.config.shapes() == config.shapes()
        assert again.config == read.config

    @pytest.mark.parametrize("left", [0, 20, 3000, -2000])
    def test_a_truncated_file(self, model: Path, tmp_path: Path, left: int) -> None:
        config, weights = load(model)
        file = self.write(tmp_path / "a.gguf", {name: weights[name] for name in config.shapes()})
        file.write_bytes(file.read_bytes()[:left])
        with pytest.raises(BadModel, match="cannot be read: .*cut off"):
            load(file)

    def test_no_file(self, tmp_path: Path) -> None:
        with pytest.raises(BadModel, match="there is no file"):
            load(tmp_path / "a.gguf")
