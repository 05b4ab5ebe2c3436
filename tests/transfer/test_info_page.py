"""The page an engine shows its peers: whole or refused, never half."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moonpool.core.errors import BadFrame
from moonpool.transfer.info_page import PAGE_BYTES, EngineInfo, InfoPage, LayoutInfo, read_page

INFO = EngineInfo(host="h", pid=7, unix_path="/x", layouts={"kv": LayoutInfo("s", 4, 8, 2)})


def page_of(info: EngineInfo) -> InfoPage:
    page = InfoPage()
    page.publish(info)
    return page


def test_what_is_published_is_read() -> None:
    page = page_of(INFO)
    assert page.memory.nbytes == PAGE_BYTES and read_page(page.memory) == INFO
    page.publish(EngineInfo(host="", pid=1))
    assert read_page(page.memory) == EngineInfo(host="", pid=1)


def test_golden_bytes() -> None:
    text = page_of(INFO).memory.tobytes().rstrip(b"\0")
    assert text[:4] == b"MPE1"
    assert text[8:12] == len(text[12:]).to_bytes(4, "little")
    assert text[12:] == (
        b"\x84\xa4host\xa1h\xa3pid\x07\xa9unix_path\xa2/x\xa7layouts\x81\xa2kv\x94\xa1s\x04\x08\x02"
    )


@given(at=st.integers(0, 60), value=st.integers(1, 255))
def test_any_flipped_byte_is_noticed(at: int, value: int) -> None:
    page = page_of(INFO).memory
    size = 12 + int.from_bytes(page[8:12].tobytes(), "little")
    page[at % size] ^= value
    with pytest.raises(BadFrame):
        read_page(page)


@given(st.binary(max_size=200))
def test_garbage_is_refused(garbage: bytes) -> None:
    with pytest.raises(BadFrame):
        read_page(np.frombuffer(garbage, dtype=np.uint8))
