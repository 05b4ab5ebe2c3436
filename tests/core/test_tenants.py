"""The tenants file: what it says, what it refuses, and that names never meet in one number."""

from __future__ import annotations

from pathlib import Path

import pytest

from moonpool.core.errors import BadConfig, MoonpoolError, Refused
from moonpool.core.handshake import ClientHandshake, Role, ServerHandshake
from moonpool.core.tenants import Tenant, Tenants, load_tenants, scope_of, tenant_number
from moonpool.core.wire import Frame

TOKEN = "a token that is long enough"
OTHER = "another one that is long enough"
GOLDEN_A = "deede6f4"  # number of the tenant named a


def written(folder: Path, text: str) -> str:
    path = folder / "tenants.toml"
    path.write_text(text)
    return str(path)


def test_what_the_file_says(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        f"""
        [tenants.search]
        token = "{TOKEN}"
        quota_bytes = "8GiB"
        quota_objects = 100_000
        weight = 3
        borrow = false

        [tenants.chat]
        token = "{OTHER}"
        """,
    )
    tenants = load_tenants(path, "cluster")
    assert tenants is not None and len(tenants) == 3
    search = tenants.named("search")
    assert search == Tenant(
        name="search",
        token=TOKEN,
        quota_bytes=8 << 30,
        quota_objects=100_000,
        weight=3.0,
        borrow=False,
    )
    assert tenants.tokens == {"search": TOKEN, "chat": OTHER}
    assert tenants.get(0).name == "default"
    assert TOKEN not in repr(search)


def test_no_file_no_tenants() -> None:
    assert load_tenants("", "") is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tenants = 3", r"tables \[tenants.NAME\]"),
        ("[tenants.a]\ntoken = 'short'", "at least 16 characters"),
        ("[tenants.a]\nquota = 3", "did you mean|not known"),
        (f"[tenants.a]\ntoken = '{TOKEN}'\nweight = 0", "above 0"),
        (f"[tenants.a]\ntoken = '{TOKEN}'\nquota_bytes = 'much'", "much"),
        (f"[tenants.a]\ntoken = '{TOKEN}'\nquota_bytes = -1", "not negative"),
        (f"[tenants.a]\ntoken = '{TOKEN}'\n[tenants.b]\ntoken = '{TOKEN}'", "one token"),
        (f"[tenants.default]\ntoken = '{TOKEN}'", "cluster's"),
        (f"[tenants.'../x']\ntoken = '{TOKEN}'", "a name has"),
        ("[tenants.a]\ntoken = 'the cluster token is it'", "cluster's token"),
        ("not toml", "tenants file"),
    ],
)
def test_what_it_refuses(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(BadConfig, match=said):
        load_tenants(written(tmp_path, text), "the cluster token is it")


def test_without_a_token_everybody_would_be_the_operator(tmp_path: Path) -> None:
    path = written(tmp_path, f"[tenants.a]\ntoken = '{TOKEN}'")
    with pytest.raises(BadConfig, match="MOONPOOL_TOKEN"):
        load_tenants(path, "")


def test_numbers_and_scopes_are_pinned() -> None:
    """They lie in slots on memory and disk: another number is another tenant."""
    assert tenant_number("default") == 0
    assert scope_of(0) == b""
    assert f"{tenant_number('a'):08x}" == GOLDEN_A
    assert scope_of(0x04030201) == b"\0\1\2\3\4"


def test_a_tenant_that_left_the_file_weighs_nothing() -> None:
    gone = Tenants([]).get(7)
    assert (gone.quota_bytes, gone.weight) == (0, 1e-9)


# Tokens at the door.


def shake(token: str, role: Role = "client") -> ServerHandshake:
    left = ClientHandshake(token, role, "me", "1", b"c" * 32)
    right = ServerHandshake("cluster", "master", "1", b"s" * 32, tenants={"a": TOKEN, "b": OTHER})
    frame: Frame | None = left.start()
    while frame is not None:
        frame = left.receive(right.receive(frame))
    return right


@pytest.mark.parametrize(("token", "tenant"), [("cluster", ""), (TOKEN, "a"), (OTHER, "b")])
def test_the_token_says_whose_it_is(token: str, tenant: str) -> None:
    assert shake(token).tenant == tenant


@pytest.mark.parametrize(("token", "role"), [("", "client"), ("x", "client"), (TOKEN, "node")])
def test_who_is_refused(token: str, role: Role) -> None:
    with pytest.raises(Refused) as caught:
        shake(token, role)
    assert isinstance(caught.value, MoonpoolError)
