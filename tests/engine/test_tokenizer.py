"""Tokenizers and chat templates as models bring them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from moonpool.core.errors import BadInput
from moonpool.engine.chat import ChatTemplate
from moonpool.engine.gguf_tokenizer import tokenizer_of
from moonpool.engine.tokenizer import Tokenizer, load_tokenizer
from tests.engine.tiny import EOS, SPECIAL

USER = [{"role": "user", "content": "hi"}]


@pytest.fixture
def folder(tiny: Path, tmp_path: Path) -> Path:
    """A copy of the tiny model's small files, to be changed."""
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tiny / name, tmp_path / name)
    return tmp_path


def change(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def test_text_comes_back(tokenizer: Tokenizer) -> None:
    text = "any text: é, 世界\n"
    ids = tokenizer.encode(text)
    assert len(ids) == len(text.encode())
    assert tokenizer.decode(ids) == text


def test_control_tokens_are_tokens_and_no_text(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("a<|eos|>")[1:] == [EOS]
    assert tokenizer.decode(tokenizer.encode("a<|eos|>b")) == "ab"
    assert tokenizer.end_ids == {EOS}
    assert tokenizer.vocabulary_size == 256 + len(SPECIAL)


def test_a_chat_ends_where_the_assistant_begins(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode(tokenizer.encode_chat(USER)) == "<user>hi\n<assistant>"


def test_a_template_may_stand_in_a_file_of_its_own(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{{ eos_token }}{{ messages[0].content }}")
    ids = load_tokenizer(folder).encode_chat(USER)
    assert ids[0] == EOS and len(ids) == 3


def test_of_several_templates_the_default_is_taken(folder: Path) -> None:
    both = [{"name": "tools", "template": "no"}, {"name": "default", "template": "yes"}]
    change(folder / "tokenizer_config.json", chat_template=both)
    tokenizer = load_tokenizer(folder)
    assert tokenizer.decode(tokenizer.encode_chat(USER)) == "yes"


def test_a_model_without_a_template_says_so(folder: Path) -> None:
    change(folder / "tokenizer_config.json", chat_template=None)
    with pytest.raises(BadInput, match="no chat template; use /v1/completions"):
        load_tokenizer(folder).encode_chat(USER)


def test_all_files_that_name_an_end_token_count(folder: Path) -> None:
    (folder / "generation_config.json").write_text('{"eos_token_id": [2, 40]}')
    change(folder / "tokenizer_config.json", eos_token={"content": "<|pad|>"})
    assert load_tokenizer(folder).end_ids == {0, 2, 40}


@pytest.mark.parametrize("content", ["{", '{"model": 1}'])
def test_a_broken_tokenizer_is_named(folder: Path, content: str) -> None:
    (folder / "tokenizer.json").write_text(content)
    with pytest.raises(BadInput, match="tokenizer.json is no tokenizer"):
        load_tokenizer(folder)


def test_a_missing_tokenizer_says_what_to_do(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    with pytest.raises(BadInput, match="export the model with a fast tokenizer"):
        load_tokenizer(folder)


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages[9].content.x }}",
        "{% for m in messages %}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
    ],
    ids=["refuses", "fails", "broken", "escapes", "changes"],
)
def test_what_a_template_does_wrong_is_the_requests_error(source: str) -> None:
    with pytest.raises(BadInput, match="the model's chat template refuses"):
        ChatTemplate(source, {}).render(USER)


def test_templates_write_json_as_models_read_it() -> None:
    assert ChatTemplate("{{ messages | tojson }}", {}).render([{"a": "<é>"}]) == '[{"a": "<é>"}]'


def test_templates_may_leave_a_loop() -> None:
    source = "{% for m in messages %}{{ m.role }}{% break %}{% endfor %}"
    assert ChatTemplate(source, {}).render([*USER, *USER]) == "user"


def gguf_metadata(**changes: Any) -> dict[str, Any]:
    letters = ["<|end|>", "a", "b", "Ġ", "1", "2", "ab", "Ġab", "12"]
    metadata = {
        "model": "gpt2",
        "pre": "smollm",
        "tokens": letters,
        "token_type": [3] + [1] * 8,
        "merges": ["a b", "Ġ ab", "1 2"],
        "eos_token_id": 0,
        "bos_token_id": 1,
    }
    named = {f"tokenizer.ggml.{name}": value for name, value in (metadata | changes).items()}
    return named | {"tokenizer.chat_template": "{{ messages[0].content }}{{ eos_token }}"}


def test_gguf_metadata_is_a_tokenizer() -> None:
    tokenizer = tokenizer_of(gguf_metadata(), "x.gguf")
    assert tokenizer.encode("ab ab 12<|end|>") == [6, 7, 3, 4, 5, 0]
    assert tokenizer.decode([6, 7, 0]) == "ab ab"
    assert tokenizer.end_ids == {0}
    assert tokenizer.encode_chat([{"content": "ab"}]) == [6, 0]


def test_gguf_splits_digits_only_where_the_model_did() -> None:
    assert tokenizer_of(gguf_metadata(pre="gpt-2"), "x.gguf").encode("12") == [8]


def test_gguf_says_whether_a_prompt_begins_with_a_token() -> None:
    tokenizer = tokenizer_of(gguf_metadata(add_bos_token=True), "x.gguf")
    assert tokenizer.encode("ab") == [1, 6]
    assert tokenizer.encode_chat([{"content": "ab"}]) == [6, 0]


@pytest.mark.parametrize("changes", [{"model": "llama"}, {"pre": "smolln"}])
def test_a_gguf_tokenizer_that_would_be_guessed_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match="Give the model's Hugging Face directory instead"):
        tokenizer_of(gguf_metadata(**changes), "x.gguf")


def test_a_file_that_is_no_gguf_is_named(tmp_path: Path) -> None:
    file = tmp_path / "x.gguf"
    file.write_bytes(b"not a model")
    with pytest.raises(BadInput, match="x.gguf cannot be read: .*no GGUF file"):
        load_tokenizer(file)
