"""Every line that a worker logs names the worker and, if it is about a task, the task."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from qo.queue.options import Options
from qo.telemetry.log_context import LogContext, LogFormatter
from qo.testing import virtual
from qo.worker.api.app import App
from support.stores.queues import drain, virtual_queue

pytestmark = pytest.mark.fast


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.records: list[logging.LogRecord] = []
        self.addFilter(LogContext())
        self.setFormatter(LogFormatter())

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.fixture
def lines() -> Iterator[Lines]:
    handler, root = Lines(), logging.getLogger()
    root.addHandler(handler)
    yield handler
    root.removeHandler(handler)


def test_lines_of_handlers_libraries_and_the_worker_name_worker_and_task(lines: Lines) -> None:
    app = App()

    @app.task("async")
    async def work(input: Any) -> None:
        logging.getLogger("a_library").warning("from a coroutine")
        await asyncio.sleep(0.01)
        raise ValueError("kaput")

    @app.task("plain")
    def plain(input: Any) -> None:
        logging.getLogger("a_library").warning("from a thread")

    async def main() -> dict[str, str]:
        queue = virtual_queue()
        ids = [await queue.submit(name, options=Options(max_retries=0)) for name in ("async", "plain")]
        logging.getLogger("a_library").warning("from nowhere")
        await drain(queue, app, worker_id="w-7")
        return {task.task_type: task.id for task in ids}

    tasks = virtual.run(main())
    said = {record.getMessage().partition(":")[0]: record for record in lines.records}
    assert fields(said["from a coroutine"]) == ("w-7", tasks["async"])
    assert fields(said["from a thread"]) == ("w-7", tasks["plain"])
    assert fields(said["from nowhere"]) == (None, None)
    failed = said[f"async {tasks['async']} has failed for good"]
    assert fields(failed) == ("w-7", tasks["async"])
    for record in lines.records:
        if record.name.startswith("qo.worker"):
            assert fields(record)[0] == "w-7", record.getMessage()


def fields(record: logging.LogRecord) -> tuple[Any, Any]:
    return record.worker_id, record.task_id  # type: ignore[attr-defined]


def test_a_line_names_each_once() -> None:
    def printed(message: str, **extra: str) -> str:
        record = logging.makeLogRecord({"msg": message, "levelname": "INFO", "name": "x", **extra})
        LogContext().filter(record)
        return LogFormatter().format(record).partition("x: ")[2]

    assert printed("hello") == "hello"
    assert printed("hello", worker_id="w1") == "[w1] hello"
    assert printed("hello", worker_id="w1", task_id="t1") == "[w1 t1] hello"
    assert printed("task t1 is lost", worker_id="w1", task_id="t1") == "[w1] task t1 is lost"
