"""Spans, and the W3C ``traceparent`` that ties the attempt at a task to where the task was submitted."""

from __future__ import annotations

import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span

_SCOPE = "qo"
ASK_EVERY = 64


def current_traceparent() -> str | None:
    """The current span's, if there is one. Who has not imported OpenTelemetry has none, and pays nothing."""
    if sys.modules.get("opentelemetry.trace") is None:
        return None
    from opentelemetry.trace import get_current_span

    here = get_current_span().get_span_context()
    if not here.is_valid:
        return None
    return f"00-{here.trace_id:032x}-{here.span_id:016x}-{here.trace_flags:02x}"


def tracer() -> Tracer | None:
    """What makes spans; None if OpenTelemetry is not installed."""
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
        self._asked = 0

    def recording(self) -> bool:
        """Whether somebody has set up where spans go. That can happen at any time, and is never taken back."""
        if not self._recording:
            if self._asked % ASK_EVERY == 0:  # The answer is looked up in the environment, which takes a while.
                self._recording = not isinstance(self._provider(), self._unset)
            self._asked += 1
        return self._recording

    @contextmanager
    def processing(self, name: str, parent: str | None, about: Mapping[str, str | int]) -> Generator[Processing]:
        """A span for work that was submitted elsewhere; current within."""
        from opentelemetry.trace import SpanKind

        with self._tracer.start_as_current_span(
            name,
            context=context_of(parent),
            kind=SpanKind.CONSUMER,
            attributes=about,
            record_exception=False,  # The outcome tells what happened, and it is ours to judge.
            set_status_on_exception=False,
        ) as span:
            yield Processing(span)


class Processing:
    def __init__(self, span: Span) -> None:
        self._span = span

    def failed(self, error: str) -> None:
        from opentelemetry.trace import StatusCode

        self._span.set_status(StatusCode.ERROR, error)


def context_of(traceparent: str | None) -> Context:
    """The context that a ``traceparent`` names; an empty one if there is none or nobody could read it."""
    from opentelemetry.context import Context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    if not traceparent:
        return Context()
    return TraceContextTextMapPropagator().extract({"traceparent": traceparent}, context=Context())
