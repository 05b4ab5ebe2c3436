"""Workers as people write them, "http://host:port,transfer=host:port,zone=b": text in, Worker out.

A spec is a URL and settings after commas; specs are separated by blanks. Settings that are no
field of a worker are its labels.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from moonpool.core.address import parse_address
from moonpool.core.errors import BadConfig, BadInput
from moonpool.router.base import Role, Worker
from moonpool.router.http.upstream import parse_origin

_NUMBERS: Final = {
    "block": "block_size",
    "context": "context_tokens_max",
    "blocks": "kv_blocks_max",
    "ranks": "ranks",
}
_ENDPOINT: Final = re.compile(r"[\w.:%\[\]-]+", re.ASCII)


class WorkerSpec(NamedTuple):
    """A worker as configured or discovered, before anybody asked it."""

    worker: Worker
    events: str = ""
    """Where it publishes KV events, as 'tcp://host:port'."""
    replay: str = ""
    """Where missed events are asked for."""


def parse_specs(text: str, role: Role) -> Iterator[WorkerSpec]:
    """Every spec of `text`. Raises BadConfig."""
    for word in text.split():
        yield parse_spec(word, role)


def parse_spec(word: str, role: Role) -> WorkerSpec:
    """One spec. Raises BadConfig."""
    url, *settings = word.split(",")
    parse_origin(url)
    fields: dict[str, object] = {"id": urlsplit(url).netloc, "url": url.rstrip("/"), "role": role}
    labels: dict[str, str] = {}
    told = {"events": "", "replay": ""}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or not name or not value:
            raise BadConfig(f"worker {word!r}: {setting!r} is not key=value")
        if name in ("id", "model"):
            fields[name] = value
        elif name == "transfer":
            parse_address(value)
            fields[name] = value
        elif name in told:
            check_endpoint(value)
            told[name] = value
        elif name in _NUMBERS:
            fields[_NUMBERS[name]] = _number(word, name, value)
        elif name == "taint":
            fields["taints"] = frozenset(value.split("+"))
        else:
            labels[name] = value
    try:
        worker = Worker(
            **fields,  # type: ignore[arg-type]
            labels=labels,
            publishes_events=bool(told["events"]),
        )
    except BadInput as error:
        raise BadConfig(f"worker {word!r}: {error}") from None
    return WorkerSpec(worker, told["events"], told["replay"])


def check_endpoint(text: str) -> None:
    """Raises BadConfig for what no ZeroMQ socket connects to."""
    kind, _, where = text.partition("://")
    if kind == "tcp" and _ENDPOINT.fullmatch(where):
        parse_address(where)
    elif kind != "ipc" or not where.isprintable() or not where:
        raise BadConfig(f"endpoint {text!r}: write 'tcp://host:port' or 'ipc:///path'")


def _number(word: str, name: str, value: str) -> int:
    if not (value.isascii() and value.isdigit()) or len(value) > 12:
        raise BadConfig(f"worker {word!r}: {name} = {value!r} is no number")
    return int(value)
