"""What a source commits on its way, seen from its own side."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from qo.agent.operator_run import Run
from qo.agent.segments import Segments, wait_for
from qo.api.contract.task import LastSegment, OutputBody, StandingAnswer, Work, WorkOutput
from qo.errors import UsageError
from qo.pipeline.parsing import read
from qo.pipeline.problems import DefinitionError
from qo.store.blocking_files import BlockingFiles
from qo.worker.loop.cancel import CancelToken, Stopped, Why

pytestmark = pytest.mark.fast


class Kept:
    def __init__(self) -> None:
        self.bodies: list[OutputBody] = []

    def commit(self, outputs: Sequence[OutputBody]) -> bool:
        self.bodies += outputs
        return len(self.bodies) < 2

    def last(self, output: int) -> LastSegment:
        return LastSegment(cursor=self.bodies[-1].cursor if self.bodies else None)

    def paused(self) -> bool:
        return len(self.bodies) >= 2


def run_of(tmp_path: Path, segments: Segments | None) -> Run:
    def unused(*_: Any) -> Any:
        raise AssertionError("not asked for here")

    work = Work(
        task_id="t",
        attempt=2,
        dag="shop",
        job="clicks",
        version=1,
        runtime="python",
        operator="feeds:clicks",
        update_strategy="replace",
        outputs=[WorkOutput(index=0, dataset_id="d", generation_id="g", prefix=f"file:{tmp_path}/d/g/t/2/")],
    )
    return Run(
        work,
        BlockingFiles(),
        cancel=CancelToken(),
        progress=unused,
        emit=unused,
        wait=unused,
        more=unused,
        standing=lambda *_: StandingAnswer(pieces=[]),
        segments=segments,
    )


def test_each_segment_has_a_place_of_its_own_and_nothing_is_left_for_the_end(tmp_path: Path) -> None:
    kept = Kept()
    run = run_of(tmp_path, kept)
    assert run.last_segment().cursor is None
    for number, goes_on in ((7, True), (8, False)):
        part = run.segment(number)
        part.write("rows.jsonl", f"{number}\n", rows=1)
        assert run.commit(part) is goes_on
    assert (run.paused, run.last_segment().cursor) == (True, 8)
    assert [(each.cursor, each.location, each.rows) for each in kept.bodies] == [
        (7, f"file:{tmp_path}/d/g/t/2/7/", 1),
        (8, f"file:{tmp_path}/d/g/t/2/8/", 1),
    ]
    assert (tmp_path / "d/g/t/2/8/rows.jsonl").read_text() == "8\n"
    assert run.committed() == []


async def test_a_commit_does_not_block_an_event_loop_nor_go_nowhere(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="would block the event loop"):
        run_of(tmp_path, Kept()).commit()
    nowhere = run_of(tmp_path, None)
    assert nowhere.paused is False
    with pytest.raises(UsageError, match="belongs to no task"):
        await asyncio.to_thread(nowhere.commit)


async def test_who_waits_for_an_answer_hears_that_it_must_stop() -> None:
    loop, cancel, asked = asyncio.get_running_loop(), CancelToken(), asyncio.Event()

    async def never() -> None:
        asked.set()
        await asyncio.Event().wait()

    async def seven() -> int:
        return 7

    async def late() -> int:
        raise TimeoutError("its own")

    assert await asyncio.to_thread(wait_for, seven(), loop, cancel) == 7
    with pytest.raises(TimeoutError, match="its own"):
        await asyncio.to_thread(wait_for, late(), loop, cancel)
    waiting = asyncio.create_task(asyncio.to_thread(wait_for, never(), loop, cancel))
    await asked.wait()
    cancel.request(Why.LOST)
    with pytest.raises(Stopped):
        await waiting


def stream(**fields: Any) -> str:
    job = {"name": "rows", "activation": "source", "runtime": "spark", "operator": "stream", "outputs": 1}
    job |= {"source": {"kind": "always_on"}, "config": {"source": "rate"}, **fields}
    return json.dumps({"name": "air", "jobs": [job]})


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"source": "files", "columns": [{"name": "a", "type": "int"}]}, "needs its 'path'"),
        ({"source": "files", "path": "file:/x"}, "needs its 'columns'"),
        ({"source": "rate", "path": "file:/x"}, "'path' is for 'source: files'"),
        ({"source": "kafka"}, "kafka"),
        ({"source": "files", "path": "hdfs://x/y"}, "write a path, file:PATH or s3://BUCKET/KEY"),
        ({}, "source"),
    ],
)
def test_a_stream_says_what_it_lacks(config: dict[str, Any], said: str) -> None:
    with pytest.raises(DefinitionError, match=said):
        read(stream(config=config))
    read(stream(config={"source": "rate", "options": {"rowsPerSecond": 5}, "trigger_seconds": 0}))


def test_a_stream_is_a_source_and_has_one_output() -> None:
    with pytest.raises(DefinitionError, match="one output"):
        read(stream(outputs=2))
    with pytest.raises(DefinitionError, match="stream is a source"):
        read(
            stream(
                activation="reactive",
                source=None,
                inputs=[{"from": {"dataset": "x"}}],
                execution_strategy="PerUpdate",
            ).replace('"source": null, ', "")
        )
