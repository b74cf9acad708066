"""Traces: from where a task was submitted, through the attempt at it, to what that submits."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode, get_current_span, get_tracer

from qo.core.task import Task
from qo.queue.options import NewTask, Options
from qo.queue.queue import Queue
from qo.store.memory import MemoryStore
from qo.telemetry.trace import current_traceparent, parse_traceparent
from qo.testing import virtual
from qo.worker.api.handler import make_handler
from qo.worker.api.request import Request
from qo.worker.api.signals import Reject
from qo.worker.executors.threads import ThreadExecutor
from qo.worker.layers import ServiceOptions, catch, default_layers, trace
from qo.worker.layers.stack import stack
from qo.worker.loop.cancel import Why
from qo.worker.loop.outcome import Acked
from support.stores.queues import app_of, drain, virtual_queue
from support.worker.layer_requests import attempt, calling

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
GARBAGE = [
    "",
    "garbage",
    "00-00000000000000000000000000000000-0000000000000000-00",
    PARENT[:-4],
    "\ud800",
    "00-é-1-1",
]


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """Where spans go. The real call to set this up cannot be undone, so the other tests would be traced too."""
    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr("opentelemetry.trace._TRACER_PROVIDER", provider)
    yield exporter
    provider.shutdown()


def only(spans: InMemorySpanExporter) -> ReadableSpan:
    (span,) = spans.get_finished_spans()
    return span


def ids(span: ReadableSpan) -> tuple[int, int]:
    assert span.context is not None
    return span.context.trace_id, span.context.span_id


def named(task: Task) -> tuple[int, int]:
    _, trace_id, span_id, _ = (task.traceparent or "").split("-")
    return int(trace_id, 16), int(span_id, 16)


async def traced(work: Any, **fields: Any) -> Any:
    return await stack(trace(), catch())(calling(work))(attempt(**fields))


async def instantly(request: Request) -> None:
    pass


@pytest.mark.fast
async def test_a_span_says_what_was_done_and_for_whom(spans: InMemorySpanExporter) -> None:
    await traced(instantly, traceparent=PARENT)
    span = only(spans)
    assert (span.name, span.kind) == ("process work", SpanKind.CONSUMER)
    assert dict(span.attributes or {}) == {
        "messaging.system": "qo",
        "messaging.operation.type": "process",
        "messaging.message.id": "t1",
        "qo.task.type": "work",
        "qo.attempt": 1,
        "qo.worker.id": "w1",
    }
    assert span.status.status_code is StatusCode.UNSET
    assert span.parent is not None
    assert f"00-{span.parent.trace_id:032x}-{span.parent.span_id:016x}-01" == PARENT


@pytest.mark.fast
@pytest.mark.parametrize("error", [ValueError("broken"), Reject("no use")], ids=["retried", "dead"])
async def test_a_failed_attempt_is_a_failed_span(error: Exception, spans: InMemorySpanExporter) -> None:
    async def work(request: Request) -> None:
        raise error

    await traced(work)
    assert only(spans).status.status_code is StatusCode.ERROR
    assert str(error) in (only(spans).status.description or "")


@pytest.mark.fast
async def test_an_attempt_that_is_stopped_ends_its_span_with_the_reason(spans: InMemorySpanExporter) -> None:
    async def work(request: Request) -> None:
        request.cancel.request(Why.SHUTDOWN)
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await traced(work)
    assert only(spans).status.description == str(Why.SHUTDOWN)


@pytest.mark.fast
@pytest.mark.parametrize("garbage", GARBAGE)
async def test_a_parent_that_nobody_can_read_is_none(garbage: str, spans: InMemorySpanExporter) -> None:
    assert not parse_traceparent(garbage)
    assert await traced(instantly, traceparent=garbage) == Acked()
    assert only(spans).parent is None


@pytest.mark.fast
async def test_the_workers_own_span_is_no_parent_of_an_attempt(spans: InMemorySpanExporter) -> None:
    with get_tracer("test").start_as_current_span("the worker was started here"):
        await traced(instantly)
    attempted, _ = spans.get_finished_spans()
    assert attempted.parent is None


@pytest.mark.fast
def test_a_trace_leads_from_submit_through_a_plain_function_to_its_children(spans: InMemorySpanExporter) -> None:
    async def main() -> tuple[Task, Task]:
        queue = Queue(MemoryStore())
        loop = asyncio.get_running_loop()
        threads = ThreadExecutor(lambda: None)

        def plain(input: Any) -> Task:
            with get_tracer("test").start_as_current_span("inside"):
                return asyncio.run_coroutine_threadsafe(queue.submit("child"), loop).result()

        with get_tracer("test").start_as_current_span("outside"):
            parent = await queue.submit("work")
        service = stack(*default_layers(ServiceOptions()))(calling(threads.call))
        request = attempt(timeout_s=30.0, handler=make_handler("work", plain), traceparent=parent.traceparent)
        outcome = await service(request)
        threads.close()
        assert isinstance(outcome, Acked)
        return parent, outcome.output

    parent, child = asyncio.run(main())
    by_name = {span.name: span for span in spans.get_finished_spans()}
    outside, process, inside = (by_name[name] for name in ("outside", "process work", "inside"))
    assert process.parent is not None
    assert inside.parent is not None
    assert (process.parent.trace_id, process.parent.span_id) == ids(outside)
    assert (inside.parent.trace_id, inside.parent.span_id) == ids(process)
    assert named(parent) == ids(outside)
    assert named(child) == ids(inside)


@pytest.mark.fast
def test_a_worker_has_spans_for_dequeue_claim_dispatch_and_settle_beside_the_attempt(
    spans: InMemorySpanExporter,
) -> None:
    async def work(input: Any) -> None:
        await asyncio.sleep(1)

    async def main() -> Task:
        queue = virtual_queue()
        task = await queue.submit("work", options=Options(traceparent=PARENT))
        await drain(queue, app_of(work))
        return task

    task = virtual.run(main())
    by_name = {span.name: span for span in spans.get_finished_spans()}
    assert set(by_name) == {"dequeue", "claim work", "dispatch work", "process work", "settle work"}
    assert (by_name["dequeue"].attributes or {})["messaging.batch.message_count"] == 1
    for name in ("claim work", "dispatch work", "process work", "settle work"):
        span = by_name[name]
        assert span.parent is not None
        assert (span.parent.trace_id, span.parent.span_id) == named(task)
        assert (span.attributes or {})["messaging.message.id"] == task.id
        assert (span.attributes or {})["qo.worker.id"] == "w"
    dispatched, processed = by_name["dispatch work"], by_name["process work"]
    assert dispatched.end_time is not None
    assert processed.end_time is not None
    assert dispatched.end_time <= processed.end_time, "dispatching ends when the handler is called"


@pytest.mark.fast
def test_a_submitter_who_names_a_trace_is_believed(spans: InMemorySpanExporter) -> None:
    async def main() -> list[Task]:
        queue = Queue(MemoryStore(clock=virtual.wall_clock))
        with get_tracer("test").start_as_current_span("here"):
            return await queue.submit_many([NewTask("a", options=Options(traceparent=PARENT)), NewTask("b")])

    believed, other = virtual.run(main())
    assert believed.traceparent == PARENT
    assert other.traceparent not in (None, PARENT)


@pytest.mark.fast
async def test_without_a_span_there_is_no_traceparent(spans: InMemorySpanExporter) -> None:
    assert current_traceparent() is None


@pytest.mark.fast
async def test_a_worker_that_records_nothing_still_passes_the_trace_on() -> None:
    seen: list[str | None] = []

    async def work(request: Request) -> None:
        seen.append(current_traceparent())

    await traced(work, traceparent=PARENT)
    await traced(work)
    assert seen == [PARENT, None]
    assert not get_current_span().get_span_context().is_valid


@pytest.mark.fast
def test_without_opentelemetry_the_layer_is_not_even_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", None)
    service = calling(instantly)
    assert trace()(service) is service
    assert current_traceparent() is None


def test_qo_imports_neither_opentelemetry_nor_pydantic_by_itself() -> None:
    look = (
        "import sys, asyncio, qo.telemetry.trace, qo.worker.layers, qo.worker.api.inputs\n"
        "from qo.queue.queue import Queue; from qo.store.memory import MemoryStore\n"
        "assert asyncio.run(Queue(MemoryStore()).submit('work')).traceparent is None\n"
        "print([name for name in ('opentelemetry', 'pydantic') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True, timeout=60)
    assert found.stdout.strip() == "[]"
