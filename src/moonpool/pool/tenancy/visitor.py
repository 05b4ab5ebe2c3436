"""Whom a session speaks for."""

from __future__ import annotations

from typing import Final, NamedTuple

from moonpool.core.tenants import DEFAULT, Tenant
from moonpool.pool.tenancy.shares import Shares


class Visitor(NamedTuple):
    """Whom a session speaks for. `operator`: it may see and do everything."""

    tenant: int = 0
    name: str = ""
    scope: bytes = b""
    operator: bool = True
    apart: bool = False  # there are tenants: nobody sees another's objects by the way

    @property
    def only(self) -> int | None:
        """Whose objects it lists and removes; None: there is but one."""
        return self.tenant if self.apart else None

    def own(self, key: bytes) -> bytes:
        """The key as this visitor knows it."""
        return key[len(self.scope) :]


OPERATOR: Final = Visitor()
"""Everybody, where there are no tenants."""


def visitor_of(tenant: Tenant, operator: bool) -> Visitor:
    return Visitor(tenant.number, tenant.name, tenant.scope, operator, True)


def visitor_named(shares: Shares | None, name: str) -> Visitor:
    """Whose token was shown; empty: the cluster's."""
    if shares is None:
        return OPERATOR
    tenant = shares.tenants.named(name or DEFAULT)
    assert tenant is not None, name
    return visitor_of(tenant, operator=not name)
