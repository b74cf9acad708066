"""A run without a task: to call an operator in a test, or to try it out."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

from qo.agent.operator_run import Run
from qo.api.contract.task import (
    EventBody,
    InputMode,
    InputPart,
    PiecesAnswer,
    StandingAnswer,
    Work,
    WorkInput,
    WorkOutput,
)
from qo.store.blocking_files import BlockingFiles
from qo.worker.loop.cancel import CancelToken


def make_run(
    operator: str,
    inputs: Sequence[str | WorkInput],
    config: Mapping[str, Any],
    outputs: int | Sequence[WorkOutput] = 1,
    secrets_dir: Path | None = None,
    **work: Any,
) -> Run:
    """Return a run without a task: it reads the pieces that its inputs have, and drops the events that it emits."""

    def wait(coroutine: Coroutine[Any, Any, bool]) -> bool:
        return asyncio.run(coroutine)

    async def emit(events: list[EventBody]) -> bool:
        return True

    def more(input_: WorkInput, after: str | None, part: InputPart | None = None) -> PiecesAnswer:
        return PiecesAnswer(pieces=[])

    def standing(output: int, after: str | None, revision: int | None) -> StandingAnswer:
        return StandingAnswer(pieces=[], revision=0)

    fields: dict[str, Any] = {
        "task_id": "test",
        "attempt": 1,
        "dag": "test",
        "job": "test",
        "version": 1,
        "runtime": "spark",
        "operator": operator,
        "config": dict(config),
        "inputs": [_input(position, each) for position, each in enumerate(inputs)],
        "outputs": [_output(index) for index in range(outputs)] if isinstance(outputs, int) else list(outputs),
        "update_strategy": "replace",
        **work,
    }
    return Run(
        Work(**fields),
        BlockingFiles(),
        cancel=CancelToken(),
        progress=lambda value: None,
        emit=emit,
        wait=wait,
        more=more,
        standing=standing,
        secrets_dir=secrets_dir or Path(),
    )


def _input(position: int, name: str | WorkInput) -> WorkInput:
    if isinstance(name, WorkInput):
        return name
    return WorkInput(
        position=position, name=name, dataset_id=name, generation_id=name, mode=InputMode.PARTITION, pieces=[]
    )


def _output(index: int) -> WorkOutput:
    return WorkOutput(index=index, dataset_id="test", generation_id="test", prefix=f"file:/nowhere/{index}/")
