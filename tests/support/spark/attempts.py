"""Attempts at the tasks of a deployed pipeline, as a Spark worker makes them, against the dispatcher's own functions.

shop = Shop(state, f"file:{tmp_path}", deployed(state, SHOP))
held, run = shop.begin("clean", "2024-01-01")
writing.write(spark, frame, run.output(), files, [], run.work)
shop.commit(held, run)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from qo.agent.operator_run import Run
from qo.api.contract.task import (
    Claimed,
    ClaimRequest,
    CompleteAnswer,
    CompleteRequest,
    InputPart,
    KeptAnswer,
    Outcome,
    PiecesAnswer,
    StandingAnswer,
    WorkInput,
)
from qo.config.settings import Settings
from qo.core.pipeline.topology import Topology
from qo.dispatcher.attempts import claiming, completion, pins
from qo.dispatcher.commits import keeping, replacing
from qo.dispatcher.state.database import State
from qo.store.blocking_files import BlockingFiles
from qo.worker.loop.cancel import CancelToken
from support.dispatcher.pipeline_tasks import fence, manual_task, partition_task, woken
from support.dispatcher.pipelines import live

PAGE = 2  # Small, so that tests see several.


@dataclass
class Shop:
    state: State
    root: str
    topology: Topology
    dag: str = "shop"
    settings: Settings = field(default_factory=Settings)

    def task(self, job: str, key: str, **fields: Any) -> str:
        """For a partition: of the input, or a source's own."""
        found = live(self.topology, f"{self.dag}.{job}")
        if found.inputs:
            return partition_task(self.state, found, key, **fields)
        return manual_task(self.state, found, key, **fields)

    def begin(self, job: str, key: str, **fields: Any) -> tuple[Claimed, Run]:
        return self.claim(self.task(job, key, **fields))

    def claim(self, task_id: str) -> tuple[Claimed, Run]:
        with self.state.write() as tx:
            woken(tx, task_id)
            held = claiming.claim(tx, ClaimRequest(task_id=task_id, worker_id="w"), self.root)
        assert isinstance(held, Claimed), held
        return held, self._run(held)

    def commit(self, held: Claimed, run: Run, **fields: Any) -> CompleteAnswer:
        done = CompleteRequest(**fence(held), outcome=Outcome.SUCCESS, outputs=run.committed(), **fields)
        with self.state.write() as tx:
            return completion.complete(tx, done, self.root)

    def _run(self, held: Claimed) -> Run:
        def more(given: WorkInput, after: str | None, part: InputPart | None = None) -> PiecesAnswer:
            with self.state.read() as tx:
                wanted = part or InputPart.ADDED
                found, rest = pins.page(tx, held.work.task_id, given.position, after, PAGE, wanted)
            return PiecesAnswer(pieces=found, after=rest)

        def standing(output: int, after: str | None, revision: int | None) -> StandingAnswer:
            with self.state.read() as tx:
                return replacing.others(tx, held.work.task_id, output, after, revision, PAGE)

        def kept(output: int) -> KeptAnswer:
            with self.state.write() as tx:
                return keeping.keep(tx, held.work.task_id, output)

        def unused(*_: Any) -> Any:
            raise AssertionError("nothing is announced here")

        return Run(
            held.work,
            BlockingFiles(self.settings),
            cancel=CancelToken(),
            progress=lambda value: None,
            emit=unused,
            wait=unused,
            more=more,
            standing=standing,
            previous_output=kept,
        )
