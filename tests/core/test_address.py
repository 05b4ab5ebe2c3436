"""Addresses as people write them."""

import pytest

from moonpool.core.address import Address, is_loopback, parse_address
from moonpool.core.errors import BadConfig


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:7400", Address("127.0.0.1", 7400)),
        ("gpu-7.cluster:1", Address("gpu-7.cluster", 1)),
        ("[::1]:65535", Address("::1", 65535)),
        ("unix:/run/moonpool/a.sock", Address("", 0, "/run/moonpool/a.sock")),
    ],
)
def test_parse_and_show(text: str, address: Address) -> None:
    assert parse_address(text) == address
    assert str(address) == text


@pytest.mark.parametrize(
    "bad",
    ["", "host", "host:", ":7400", "host:0", "host:65536", "host:x", "::1:7400", "host:²"]
    + ["unix:relative", "unix:/" + "x" * 107],
)
def test_bad_addresses(bad: str) -> None:
    with pytest.raises(BadConfig, match="address"):
        parse_address(bad)


def test_a_name_counts_as_public() -> None:
    assert is_loopback("localhost")
    assert is_loopback("::1")
    assert not is_loopback("gpu-7")
    assert not is_loopback("192.168.0.1")
