"""A GGUF file's metadata, compared with what the format's own package writes and reads."""

from __future__ import annotations

from pathlib import Path

import gguf
import pytest

from moonpool.core.errors import BadInput
from moonpool.engine.gguf_metadata import read_metadata

ENTRIES = {
    "a.text": "é, 世界",
    "a.words": ["one", "", "Ġthree"],
    "a.numbers": [1, 2, 3],
    "a.flag": True,
    "a.count": 7,
    "a.share": 0.5,
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "x.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_string("a.text", ENTRIES["a.text"])
    writer.add_array("a.words", ENTRIES["a.words"])
    writer.add_array("a.numbers", ENTRIES["a.numbers"])
    writer.add_bool("a.flag", True)
    writer.add_uint64("a.count", 7)
    writer.add_float32("a.share", 0.5)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def test_every_entry_is_read(file: Path) -> None:
    assert read_metadata(file) == {"general.architecture": "llama", **ENTRIES}


def test_a_file_cut_anywhere_is_refused(file: Path) -> None:
    whole = file.read_bytes()
    for size in range(len(whole)):
        file.write_bytes(whole[:size])
        with pytest.raises(BadInput, match="x.gguf"):
            read_metadata(file)


def test_no_byte_can_do_more_than_be_refused(file: Path) -> None:
    whole = bytearray(file.read_bytes())
    refused = 0
    for at in range(len(whole)):
        changed = bytearray(whole)
        changed[at] ^= 0xFF
        file.write_bytes(changed)
        try:
            read_metadata(file)
        except BadInput:
            refused += 1
    assert 0 < refused < len(whole)  # bytes of a text may be any


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="absent.gguf cannot be read: No such file"):
        read_metadata(tmp_path / "absent.gguf")
