"""docs/wire.md and its golden vectors, tests/golden/wire.json: what another language needs.

python -m tests.pool.test_wire_vectors prints the vectors as this code encodes them; a change in
any of them needs a new message version, an added field at the end of a message excepted.
"""

from __future__ import annotations

import json
import re
import struct
import typing
from typing import Any

import msgspec
import pytest

from moonpool._core import crc32c
from moonpool.core.wire import Kind, encode_frame
from moonpool.pool import messages as m
from moonpool.pool.columns import pack_keys
from tests.transfer import wire as data
from tests.tree import ROOT

PAGE = (ROOT / "docs" / "wire.md").read_text(encoding="utf-8")
GOLDEN = ROOT / "tests" / "golden" / "wire.json"
MESSAGES = [*typing.get_args(m.ClientRequest), *typing.get_args(m.Reply)]
NODES = [*typing.get_args(m.NodeToMaster), *typing.get_args(m.MasterToNode)]
ALL = list({kind.__name__: kind for kind in [*MESSAGES, *NODES]}.values())
KEYS = [b"a", b"bc"]


def tag_of(kind: Any) -> int:
    return int(kind.__struct_config__.tag)


def sample(kind: Any) -> Any:
    """An instance in which every field has a value that is not its default."""
    hints = typing.get_type_hints(kind)
    return kind(*(value(hints[name], place) for place, name in enumerate(kind.__struct_fields__)))


def value(hint: Any, place: int) -> Any:
    if hint is m.KeyColumn:
        return pack_keys(KEYS)
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return sample(hint)
    if typing.get_origin(hint) is list:
        return [value(typing.get_args(hint)[0], place)]
    if typing.get_origin(hint) is dict:
        return {"name": "text" if typing.get_args(hint)[1] is str else 7}
    return {int: 100 + place, bool: True, str: f"text{place}", bytes: bytes([place, 255])}[hint]


def frames() -> dict[str, str]:
    """Of the data plane, by the plain twin of tests/transfer."""
    target = bytes(range(16))
    value_ = b"value"
    record = struct.pack("<QQQqIHHBBHI", 5, 9, 8, 0, 0, 3, 0, 0, 1, 0, 0)
    writer = struct.pack("<iIQ", -1, 0, 0)
    crc = struct.pack("<I", crc32c(value_))
    put = data.frame(
        data.PUT_OBJECTS,
        writer + record + b"key",
        count=1,
        payload_bytes=5,
        target=target,
        flags=data.CHECKSUM,
        term=9,
    )
    block = struct.pack("<IIQQQ", 3, 1, 12, 0, 5)
    read = data.frame(data.READ_OBJECTS, block, count=1, target=target, flags=data.CHECKSUM)
    return {
        "hello": data.frame(data.HELLO, struct.pack("<Q", 1) + bytes(range(16))).hex(),
        "proof of the token 'token'": data.prove(b"token", b"client", bytes(24), bytes(24)).hex(),
        "ping": data.frame(data.PING, request_id=7).hex(),
        "put objects": (put + value_ + crc + struct.pack("<I", crc32c(crc))).hex(),
        "read objects": read.hex(),
        "records of a reply": data.reply_trailer([(0, crc32c(value_), 5, 12, 3)]).hex(),
    }


def vectors() -> dict[str, Any]:
    lookup = m.encode(m.Lookup(pack_keys(KEYS)), 5, 1000)
    return {
        "crc32c of 123456789": f"{crc32c(b'123456789'):08x}",
        "frame of a lookup of a and bc": encode_frame(Kind.MESSAGE, lookup).hex(),
        "messages": {
            kind.__name__: msgspec.msgpack.encode(sample(kind)).hex()
            for kind in sorted(ALL, key=tag_of)
        },
        "data plane": frames(),
    }


def test_the_vectors_are_what_is_sent() -> None:
    assert json.loads(GOLDEN.read_text(encoding="utf-8")) == vectors()


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_the_vectors_are_read_and_one_field_more_is_passed_over(kind: Any) -> None:
    raw = bytes.fromhex(json.loads(GOLDEN.read_text(encoding="utf-8"))["messages"][kind.__name__])
    assert msgspec.msgpack.decode(raw, type=kind) == sample(kind)
    longer = [*msgspec.msgpack.decode(raw), "of a later release"]
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(longer), type=kind) == sample(kind)


def test_the_page_has_every_message_with_its_fields() -> None:
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \| (.*?) \|", PAGE, re.MULTILINE)
    told = {name: (int(tag), re.findall(r"`(\w+)`", fields)) for tag, name, fields in rows}
    assert told == {
        kind.__name__: (tag_of(kind), list(kind.__struct_fields__)) for kind in MESSAGES
    }


def line_of(words: Any) -> str:
    return next(line for line in PAGE.splitlines() if line.startswith(f"- `{words.__name__}`: "))


def test_the_page_has_every_state_of_a_task() -> None:
    told = line_of(m.TaskState).partition(": ")[2]
    assert told.split(", ") == [state.value for state in m.TaskState]


@pytest.mark.parametrize(
    "words",
    [m.PutStatus, m.LookupStatus, m.RemoveStatus, m.AwaitStatus, m.TaskKeyStatus],
    ids=lambda words: words.__name__,
)
def test_the_page_has_every_status(words: Any) -> None:
    line = line_of(words)
    assert re.findall(r"(\d+) ([A-Z_]+)", line) == [(str(int(one)), one.name) for one in words]


if __name__ == "__main__":
    print(json.dumps(vectors(), indent=1))
