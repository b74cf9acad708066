"""Spans, and the W3C ``traceparent`` that links the attempt at a task to the span that submitted it."""

from __future__ import annotations

import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span

_SCOPE = "qo"
CHECK_EVERY = 64


def current_traceparent() -> str | None:
    """Return the traceparent of the current span, if there is one. Costs nothing unless OpenTelemetry is imported."""
    if sys.modules.get("opentelemetry.trace") is None:
        return None
    from opentelemetry.trace import get_current_span

    current = get_current_span().get_span_context()
    if not current.is_valid:
        return None
    return f"00-{current.trace_id:032x}-{current.span_id:016x}-{current.trace_flags:02x}"


def make_tracer() -> Tracer | None:
    """Return a tracer; None if OpenTelemetry is not installed."""
    try:
        import opentelemetry.trace  # noqa: F401 # pyright: ignore[reportUnusedImport]
    except ImportError:
        return None
    return Tracer()


class Tracer:
    def __init__(self) -> None:
        from opentelemetry import trace

        self._provider = trace.get_tracer_provider
        self._unset = trace.ProxyTracerProvider
        self._tracer = trace.get_tracer(_SCOPE)  # Follows a provider that is set later.
        self._recording = False
        self._checks = 0

    def is_recording(self) -> bool:
        """Whether an SDK is configured to receive spans. That can happen at any time, and is never undone."""
        if not self._recording:
            if self._checks % CHECK_EVERY == 0:  # The check reads the environment, which is slow.
                self._recording = not isinstance(self._provider(), self._unset)
            self._checks += 1
        return self._recording

    @contextmanager
    def start_span(
        self, name: str, parent: str | None, attributes: Mapping[str, str | int]
    ) -> Generator[WorkSpan]:
        """Start a span for work that was submitted elsewhere; it is current within the ``with`` block."""
        from opentelemetry.trace import SpanKind

        with self._tracer.start_as_current_span(
            name,
            context=parse_traceparent(parent),
            kind=SpanKind.CONSUMER,
            attributes=attributes,
            record_exception=False,  # The outcome decides whether the attempt failed, not the exception.
            set_status_on_exception=False,
        ) as span:
            yield WorkSpan(span)

    def open_span(self, name: str, parent: str | None, attributes: Mapping[str, str | int]) -> WorkSpan:
        """Open a span that is not current, and lasts until its ``end``."""
        from opentelemetry.trace import SpanKind

        context = parse_traceparent(parent)
        return WorkSpan(
            self._tracer.start_span(name, context=context, kind=SpanKind.CONSUMER, attributes=attributes)
        )


class WorkSpan:
    def __init__(self, span: Span) -> None:
        self._span = span

    def set_attribute(self, name: str, value: str | int) -> None:
        self._span.set_attribute(name, value)

    def end(self) -> None:
        """End the span; may be repeated."""
        if self._span.is_recording():
            self._span.end()

    def set_error(self, error: str) -> None:
        from opentelemetry.trace import StatusCode

        self._span.set_status(StatusCode.ERROR, error)


def parse_traceparent(traceparent: str | None) -> Context:
    """Return the context that a ``traceparent`` names; an empty one if there is none or it is malformed."""
    from opentelemetry.context import Context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    if not traceparent:
        return Context()
    return TraceContextTextMapPropagator().extract({"traceparent": traceparent}, context=Context())
