"""Text to token ids and back, the same as the model was trained with.

Loads a Hugging Face directory here and a GGUF file's metadata in `gguf_tokenizer`. It knows no
weights and needs no torch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from moonpool.core.errors import BadInput, missing_extra
from moonpool.engine.chat import ChatTemplate


class Tokenizer:
    """A tokenizer, the ids that end an answer, and the chat template when the model has one."""

    def __init__(
        self,
        inner: Any,
        end_ids: frozenset[int] = frozenset(),
        chat: ChatTemplate | None = None,
        start_ids: Sequence[int] = (),
    ) -> None:
        self._inner = inner
        self._start_ids = list(start_ids)
        self.end_ids = end_ids
        self.chat = chat

    @property
    def vocabulary_size(self) -> int:
        return int(self._inner.get_vocab_size(with_added_tokens=True))

    def encode(self, text: str) -> list[int]:
        """Token ids of a plain prompt, with what the model wants at its beginning."""
        return self._start_ids + list(self._inner.encode(text).ids)

    def encode_chat(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Token ids of a conversation, up to where the assistant answers.

        Raises BadInput when the model has no chat template or its template refuses the messages.
        """
        if self.chat is None:
            raise BadInput("this model has no chat template; use /v1/completions")
        text = self.chat.render(messages)
        return list(self._inner.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids` without control tokens."""
        text: str = self._inner.decode(list(ids), skip_special_tokens=True)
        return text


def load_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of a Hugging Face directory or of a GGUF file. Raises BadInput."""
    if path.suffix == ".gguf":
        from moonpool.engine.gguf_tokenizer import read_tokenizer

        return read_tokenizer(path)
    return _from_directory(path)


def _from_directory(folder: Path) -> Tokenizer:
    try:
        import tokenizers
    except ImportError:
        raise missing_extra("a tokenizer", "engine") from None
    file = folder / "tokenizer.json"
    if not file.is_file():
        raise BadInput(f"{folder} has no tokenizer.json; export the model with a fast tokenizer")
    try:
        inner = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises nothing narrower
        raise BadInput(f"{file} is no tokenizer this release can read: {error}") from None
    settings = _read_json(folder / "tokenizer_config.json")
    names = {
        name: text
        for name in ("bos_token", "eos_token", "pad_token", "unk_token")
        if (text := _token_text(settings.get(name))) is not None
    }
    source = _template_source(folder, settings)
    chat = None if source is None else ChatTemplate(source, names)
    return Tokenizer(inner, _end_ids(folder, inner, names.get("eos_token")), chat)


def _end_ids(folder: Path, inner: Any, eos: str | None) -> frozenset[int]:
    """All ids that end an answer, wherever the model's files say so."""
    found: set[int] = set()
    for name in ("generation_config.json", "config.json"):
        value = _read_json(folder / name).get("eos_token_id")
        found.update([value] if isinstance(value, int) else value or [])
    if eos is not None and (number := inner.token_to_id(eos)) is not None:
        found.add(number)
    return frozenset(found)


def _template_source(folder: Path, settings: Mapping[str, Any]) -> str | None:
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    value = settings.get("chat_template")
    if isinstance(value, list):  # several, by name
        named = {item["name"]: item["template"] for item in value}
        value = named.get("default")
    return value


def _token_text(value: object) -> str | None:
    """A special token is written as its text or as a record with it."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _read_json(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise BadInput(f"{file} is no JSON: {error}") from None
    return value if isinstance(value, dict) else {}
