"""The tokenizer that a GGUF file carries in its metadata, as one of the `tokenizers` library.

Byte-level BPE only ("gpt2" in GGUF's words). How text is split before the merges is not in the
file, only the name of the way is; an unknown name is refused, since a wrong guess would give other
tokens than the model knows, silently.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from moonpool.core.errors import BadInput, did_you_mean, missing_extra
from moonpool.engine.chat import ChatTemplate
from moonpool.engine.gguf_metadata import read_metadata
from moonpool.engine.tokenizer import Tokenizer

_CONTROL: Final = 3  # GGUF's kinds of token: control tokens,
_USER_DEFINED: Final = 4  # and those that are text but never split

_LLAMA3: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2: Final = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
# Name of the way in the file -> the pattern of a split before the bytes; None: GPT-2's own;
# "digits": each digit alone, then GPT-2's own.
_SPLITS: Final[dict[str, str | None]] = {
    "gpt-2": None,
    "default": None,
    "smollm": "digits",
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "qwen2": _QWEN2,
}


def read_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of `path`. Raises BadInput."""
    metadata = read_metadata(path)
    return tokenizer_of(metadata, str(path))


def tokenizer_of(metadata: Mapping[str, Any], origin: str) -> Tokenizer:
    """The tokenizer of a GGUF file's "tokenizer." metadata. Raises BadInput."""
    kind = metadata.get("tokenizer.ggml.model")
    if kind != "gpt2":
        raise BadInput(
            f"{origin} has a tokenizer of kind {kind!r}; only byte-level BPE ('gpt2') can be read "
            "out of GGUF. Give the model's Hugging Face directory instead"
        )
    tokens: list[str] = metadata.get("tokenizer.ggml.tokens", [])
    merges: list[str] = metadata.get("tokenizer.ggml.merges", [])
    kinds: list[int] = metadata.get("tokenizer.ggml.token_type", [])
    if not tokens or not merges:
        raise BadInput(f"{origin} has no vocabulary; give the model's Hugging Face directory")
    inner = _byte_level(
        {token: number for number, token in enumerate(tokens)},
        [(left, right) for left, _, right in map(_halves, merges)],
        metadata.get("tokenizer.ggml.pre", "default"),
        origin,
    )
    _add(inner, [t for t, k in zip(tokens, kinds, strict=False) if k == _CONTROL], special=True)
    _add(inner, [t for t, k in zip(tokens, kinds, strict=False) if k == _USER_DEFINED], False)
    numbers = {
        name: number
        for name in ("bos", "eos", "eot", "padding", "unknown")
        if isinstance(number := metadata.get(f"tokenizer.ggml.{name}_token_id"), int)
        and number < len(tokens)
    }
    names = {
        f"{'pad' if name == 'padding' else name}_token": tokens[number]
        for name, number in numbers.items()
    }
    source = metadata.get("tokenizer.chat_template")
    starts = metadata.get("tokenizer.ggml.add_bos_token") and "bos" in numbers
    return Tokenizer(
        inner,
        end_ids=frozenset(numbers[name] for name in ("eos", "eot") if name in numbers),
        chat=ChatTemplate(source, names) if source else None,
        start_ids=[numbers["bos"]] if starts else [],
    )


def _byte_level(
    vocabulary: dict[str, int], merges: list[tuple[str, str]], way: str, origin: str
) -> Any:
    try:
        from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    except ImportError:
        raise missing_extra("a tokenizer", "engine") from None
    if way not in _SPLITS:
        raise BadInput(
            f"{origin} splits text the way {way!r}, which is not known here "
            f"({', '.join(_SPLITS)}).{did_you_mean(way, _SPLITS)}"
            " Give the model's Hugging Face directory instead"
        )
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    pattern = _SPLITS[way]
    if pattern is None:
        split: Any = pre_tokenizers.ByteLevel(add_prefix_space=False)
    elif pattern == "digits":
        split = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False),
            ]
        )
    else:
        split = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(pattern), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    tokenizer.pre_tokenizer = split
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _add(tokenizer: Any, tokens: list[str], special: bool) -> None:
    from tokenizers import AddedToken

    added = [AddedToken(token, special=special, normalized=False) for token in tokens]
    if special:
        tokenizer.add_special_tokens(added)
    else:
        tokenizer.add_tokens(added)


def _halves(merge: str) -> tuple[str, str, str]:
    """A merge is written as two tokens with a space between; neither holds one."""
    return merge.partition(" ")
