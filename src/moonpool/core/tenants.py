"""Tenants: who they are, what each may have, and what keeps their keys apart.

They stand in a TOML file that master and nodes read at their start, a table each:

    [tenants.search]
    token = "a long random text of its own"
    quota_bytes = "8GiB"        # its own for certain; beyond it, it borrows what others leave idle
    quota_objects = 100_000
    weight = 3                  # of turns to write, and of what is borrowed
    borrow = false              # never beyond its quota

Whoever shows the cluster's token is the operator: it opens everything, and its own keys are those
of the tenant `default`, which needs no entry. This file decides nothing.
"""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from moonpool.core.errors import BadConfig, BadSize, did_you_mean
from moonpool.core.units import parse_bytes

DEFAULT: Final = "default"
SCOPE_BYTES: Final = 5
SCOPE_MARK: Final = b"\0"  # a key of `default` does not begin with it where there are tenants
TENANTS_MAX: Final = 256
TOKEN_CHARS_MIN: Final = 16
_NAME = re.compile(r"\w[\w.-]{0,63}", re.ASCII)
_FIELDS: Final = ("token", "quota_bytes", "quota_objects", "weight", "borrow")


class Tenant(msgspec.Struct, frozen=True, kw_only=True):
    """One of them. Quotas count all copies' bytes, and objects; 0: all that it has is borrowed."""

    name: str
    token: str = ""
    quota_bytes: int = 0
    quota_objects: int = 0
    weight: float = 1.0
    borrow: bool = True

    @property
    def number(self) -> int:
        return tenant_number(self.name)

    @property
    def scope(self) -> bytes:
        return scope_of(self.number)

    def __repr__(self) -> str:
        return f"Tenant({self.name!r}, weight={self.weight:g})"  # the token is nobody's business


def tenant_number(name: str) -> int:
    """What stands in slots and rows for the name: the same everywhere, 0 for `default`."""
    if name == DEFAULT:
        return 0
    digest = hashlib.sha256(b"moonpool tenant 1 " + name.encode()).digest()
    return int.from_bytes(digest[:4], "little") or 1


def scope_of(number: int) -> bytes:
    """What its keys begin with inside the pool; clients never see it."""
    return SCOPE_MARK + number.to_bytes(4, "little") if number else b""


class Tenants:
    """All of them, by name and by number. Raises BadConfig for what cannot be told apart."""

    def __init__(self, tenants: Iterable[Tenant]) -> None:
        given = list(tenants)
        if not any(one.name == DEFAULT for one in given):
            given.insert(0, Tenant(name=DEFAULT))
        self._by_number = {one.number: one for one in given}
        self._by_name = {one.name: one for one in given}
        if len(given) > TENANTS_MAX:
            raise BadConfig(f"{len(given)} tenants; at most {TENANTS_MAX} are possible")
        if len(self._by_number) < len(given):
            raise BadConfig("two tenants have one name, or names of one number; rename one")
        tokens = [one.token for one in given if one.name != DEFAULT]
        if len(set(tokens)) < len(tokens):
            raise BadConfig("two tenants have one token; give each its own")

    def __iter__(self) -> Iterator[Tenant]:
        return iter(self._by_number.values())

    def __len__(self) -> int:
        return len(self._by_number)

    def named(self, name: str) -> Tenant | None:
        return self._by_name.get(name)

    def get(self, number: int) -> Tenant:
        """One that is not in the file any more has nothing of its own: what it left goes first."""
        return self._by_number.get(number) or Tenant(name=f"#{number:08x}", weight=1e-9)

    @property
    def tokens(self) -> dict[str, str]:
        """Token by name, of those that have one."""
        return {one.name: one.token for one in self if one.token}


def load_tenants(path: str, cluster_token: str) -> Tenants | None:
    """The file's tenants, None for no path. Raises BadConfig, also when the cluster has no token:
    everybody would be the operator."""
    if not path:
        return None
    if not cluster_token:
        raise BadConfig(
            f"tenants = {path!r}, but the cluster has no token of its own: everybody would be its "
            "operator; set MOONPOOL_TOKEN"
        )
    try:
        content = tomllib.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise BadConfig(f"tenants file {path}: {error}") from None
    tables = content.pop("tenants", None)
    if content or not isinstance(tables, Mapping):
        raise BadConfig(f"tenants file {path}: it has tables [tenants.NAME] and nothing else")
    tenants = Tenants(_tenant(path, name, table) for name, table in tables.items())
    if cluster_token in tenants.tokens.values():
        raise BadConfig(f"tenants file {path}: a tenant has the cluster's token; give it its own")
    return tenants


def _tenant(path: str, name: str, table: Any) -> Tenant:
    where = f"tenants file {path}: [tenants.{name}]"
    if not _NAME.fullmatch(name):
        raise BadConfig(f"{where}: a name has letters, digits, '.', '_' and '-', 64 at most")
    if not isinstance(table, Mapping):
        raise BadConfig(f"{where} is no table")
    for field in table:
        if field not in _FIELDS:
            raise BadConfig(f"{where}: {field!r} is not known.{did_you_mean(field, _FIELDS)}")
    given = dict(table)
    try:
        if isinstance(given.get("quota_bytes"), str):
            given["quota_bytes"] = parse_bytes(given["quota_bytes"])
        tenant = msgspec.convert({"name": name, **given}, Tenant)
    except (msgspec.ValidationError, BadSize) as error:
        raise BadConfig(f"{where}: {error}") from None
    if min(tenant.quota_bytes, tenant.quota_objects) < 0 or not 0 < tenant.weight <= 1e6:
        raise BadConfig(f"{where}: quotas are not negative, a weight is above 0 and up to 1e6")
    if name == DEFAULT and tenant.token:
        raise BadConfig(f"{where}: its token is the cluster's, which stands in MOONPOOL_TOKEN")
    if name != DEFAULT and len(tenant.token) < TOKEN_CHARS_MIN:
        raise BadConfig(f"{where}: a token has at least {TOKEN_CHARS_MIN} characters")
    return tenant
