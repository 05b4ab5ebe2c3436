"""OpenTelemetry spans for who asks for them (`tracing` of a section, extra `otel`).

Nobody else imports OpenTelemetry, and no class that traces is used: off, it costs nothing. A span
says how many keys and bytes, never which. What travels is the W3C `traceparent` of the span.
"""

from __future__ import annotations

import os
import sys
from contextlib import AbstractContextManager
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Final

from moonpool.core.errors import BadConfig, MissingExtra, missing_extra

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span

SCOPE: Final = "moonpool"
CARRIED_BYTES_MAX: Final = 128
"""A traceparent has 55."""

Attributes = dict[str, Any]


class Tracer:
    """Spans of one provider; by default of the one that the application has set for all."""

    def __init__(self, provider: Any = None) -> None:
        """Raises MissingExtra."""
        try:
            from opentelemetry import trace
            from opentelemetry.trace.propagation import tracecontext
        except ImportError:
            raise missing_extra("tracing", "otel") from None
        self._api = trace
        self._context = tracecontext.TraceContextTextMapPropagator()
        self._tracer = (provider or trace.get_tracer_provider()).get_tracer(SCOPE)

    def span(
        self, name: str, attributes: Attributes, *, parent: bytes = b"", serves: bool = False
    ) -> AbstractContextManager[Span]:
        """The current span while the block runs; an exception that leaves it is recorded. `parent`
        is what a peer carried here, `serves` says that the span answers it."""
        kind = self._api.SpanKind.SERVER if serves else self._api.SpanKind.CLIENT
        context = self._carried_by(parent) if parent else None
        return self._tracer.start_as_current_span(
            name, context=context, kind=kind, attributes=attributes
        )

    def begin(self, name: str, attributes: Attributes) -> Span:
        """A child of the current span that does not become it; whoever began it ends it."""
        return self._tracer.start_span(name, kind=self._api.SpanKind.CLIENT, attributes=attributes)

    def carried(self) -> bytes:
        """What a request takes along of the current span; empty when there is none."""
        carrier: dict[str, str] = {}
        self._context.inject(carrier)
        return carrier.get("traceparent", "").encode()

    def current(self) -> Span:
        return self._api.get_current_span()

    def _carried_by(self, parent: bytes) -> Any:
        """Nonsense from a peer is no parent."""
        return self._context.extract({"traceparent": parent.decode("ascii", "replace")})


def open_provider(service: str) -> TracerProvider:
    """For a process of our own, where no application has set one: spans go to the exporter that
    OTEL_TRACES_EXPORTER names ("otlp" unless told, "console": to stderr), in batches. Shut it down
    at the end. Raises MissingExtra, BadConfig."""
    try:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter
    except ImportError:
        raise missing_extra("tracing", "otel") from None
    name = os.environ.get("OTEL_TRACES_EXPORTER", "otlp")
    provider = TracerProvider(resource=Resource.create({"service.name": service}))
    if name == "none":
        return provider
    if name == "console":
        exporter: Any = ConsoleSpanExporter(out=sys.stderr)
    else:
        exporter = _exporter_named(name)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider


def _exporter_named(name: str) -> Any:
    found = list(entry_points(group="opentelemetry_traces_exporter", name=name))
    if not found:
        raise MissingExtra(
            f"no exporter '{name}' for traces is installed: pip install "
            "opentelemetry-exporter-otlp, or set OTEL_TRACES_EXPORTER=console"
        )
    try:
        return found[0].load()()
    except Exception as error:
        raise BadConfig(f"the exporter '{name}' for traces does not start: {error}") from error
