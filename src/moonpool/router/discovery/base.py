"""What a place to find workers in offers, and what follows from two looks at it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

from moonpool.core.errors import BadConfig, did_you_mean
from moonpool.router.service.specs import WorkerSpec

KINDS = ("dns", "etcd", "kubernetes")


class Source(Protocol):
    """A place workers are found in."""

    name: str
    """'dns', 'etcd' or 'kubernetes'."""

    async def look(self) -> list[WorkerSpec]:
        """All workers there now. Raises MoonpoolError when it cannot be known: then what was
        known before stays."""
        ...


class Changes(NamedTuple):
    """What to do so that the workers of one source are those found."""

    come: list[WorkerSpec]
    gone: list[str]


def changes(known: Mapping[str, WorkerSpec], found: Iterable[WorkerSpec]) -> Changes:
    """A worker whose spec differs goes and comes again."""
    there = {spec.worker.id: spec for spec in found}
    gone = [name for name, spec in known.items() if there.get(name) != spec]
    come = [spec for name, spec in there.items() if known.get(name) != spec]
    return Changes(come, gone)


def parse_source(text: str) -> Source:
    """'dns:NAME:PORT', 'etcd:URL/PREFIX' or 'kubernetes:NAMESPACE/SELECTOR'. Raises BadConfig."""
    kind, _, rest = text.partition(":")
    if kind == "dns" and rest:
        from moonpool.router.discovery.dns import DnsSource

        return DnsSource(rest)
    if kind == "etcd" and rest:
        from moonpool.router.discovery.etcd import EtcdSource

        return EtcdSource(rest)
    if kind == "kubernetes" and rest:
        from moonpool.router.discovery.kubernetes import KubernetesSource

        return KubernetesSource(rest)
    raise BadConfig(
        f"router.discovery = {text!r}: write 'dns:NAME:PORT', 'etcd:URL/PREFIX' or"
        f" 'kubernetes:NAMESPACE/SELECTOR'.{did_you_mean(kind, KINDS)}"
    )
