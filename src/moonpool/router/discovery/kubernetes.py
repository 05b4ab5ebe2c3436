"""Workers that are pods with given labels, asked from Kubernetes' API by the pod's own account.

Annotations of a pod say what a spec would: moonpool.io/port, /role, /transfer-port, /events-port,
/replay-port, /model. Only pods that are ready and not ending count.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import urllib.request
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import quote

import msgspec

from moonpool.core.errors import BadConfig, BadFrame, Unreachable
from moonpool.router.base import Role
from moonpool.router.service.specs import WorkerSpec, parse_spec

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
ANSWER_BYTES_MAX = 64 << 20
TIMEOUT_S = 10.0
_NOTE = "moonpool.io/"


class _Meta(msgspec.Struct):
    name: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    deletionTimestamp: str | None = None


class _Condition(msgspec.Struct):
    type: str = ""
    status: str = ""


class _Status(msgspec.Struct):
    podIP: str = ""
    conditions: list[_Condition] = []


class _Pod(msgspec.Struct):
    metadata: _Meta = msgspec.field(default_factory=_Meta)
    status: _Status = msgspec.field(default_factory=_Status)


class _Pods(msgspec.Struct):
    items: list[_Pod] = []


class KubernetesSource:
    """'NAMESPACE/SELECTOR', as 'serving/app=vllm'; `url` and `account` are for tests."""

    name = "kubernetes"

    def __init__(self, text: str, url: str = "", account: Path = ACCOUNT) -> None:
        namespace, slash, selector = text.partition("/")
        if not namespace or not slash or not selector:
            raise BadConfig(f"kubernetes source {text!r}: write 'NAMESPACE/SELECTOR'")
        host = os.environ.get("KUBERNETES_SERVICE_HOST", "kubernetes.default.svc")
        port = os.environ.get("KUBERNETES_SERVICE_PORT", "443")
        base = url or f"https://{host}:{port}"
        path = f"/api/v1/namespaces/{quote(namespace)}/pods?labelSelector={quote(selector)}"
        self._url = base + path
        self._account = account

    async def look(self) -> list[WorkerSpec]:
        body = await asyncio.to_thread(self._ask)
        try:
            pods = msgspec.json.decode(body, type=_Pods).items
        except msgspec.DecodeError as error:
            raise BadFrame(f"{self._url}: {error}") from None
        return [pod_spec(pod) for pod in pods if _serves(pod)]

    def _ask(self) -> bytes:
        try:
            token = (self._account / "token").read_text().strip()
            context = None
            if self._url.startswith("https:"):
                context = ssl.create_default_context(cafile=str(self._account / "ca.crt"))
            question = urllib.request.Request(
                self._url, headers={"Authorization": f"Bearer {token}"}
            )
            with urllib.request.urlopen(question, timeout=TIMEOUT_S, context=context) as answer:
                body: bytes = answer.read(ANSWER_BYTES_MAX)
        except (OSError, URLError) as error:
            raise Unreachable(f"{self._url}: {error}") from None
        return body


def _serves(pod: _Pod) -> bool:
    ready = any(c.type == "Ready" and c.status == "True" for c in pod.status.conditions)
    return ready and bool(pod.status.podIP) and pod.metadata.deletionTimestamp is None


def pod_spec(pod: _Pod) -> WorkerSpec:
    """The worker in a pod. Raises BadConfig for annotations that make no sense."""
    meta, ip = pod.metadata, pod.status.podIP
    host = f"[{ip}]" if ":" in ip else ip
    notes = {
        key.removeprefix(_NOTE): value
        for key, value in meta.annotations.items()
        if key.startswith(_NOTE)
    }
    words = [f"http://{host}:{notes.get('port', '8000')}", f"id={meta.name}"]
    if "transfer-port" in notes:
        words.append(f"transfer={host}:{notes['transfer-port']}")
    for name in ("events", "replay"):
        if f"{name}-port" in notes:
            words.append(f"{name}=tcp://{host}:{notes[f'{name}-port']}")
    if "model" in notes:
        words.append(f"model={notes['model']}")
    roles: dict[str, Role] = {"both": "both", "prefill": "prefill", "decode": "decode"}
    role = roles.get(notes.get("role", "both"))
    if role is None:
        raise BadConfig(f"pod {meta.name}: {_NOTE}role = {notes['role']!r} is no role")
    spec = parse_spec(",".join(words), role)
    labels: dict[str, Any] = {**meta.labels, **spec.worker.labels}
    return spec._replace(worker=msgspec.structs.replace(spec.worker, labels=labels))
