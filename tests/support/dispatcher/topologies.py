"""Topologies in one line per job, for rules that need no database.

    shop = topology_of(job("orders", "dispatcher"), job("clean", "spark", "orders"), job("report", "spark", "clean"))

An edition is called as its job is; a queue as its runtime.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qo.core.pipeline.dag import Activation, BackpressureMode, Job, Scaling, Source
from qo.core.pipeline.plan import PlannedInput, PlannedOutput
from qo.core.pipeline.topology import LiveJob, Topology, VersionStatus, build_topology


def job(
    name: str,
    queue: str = "spark",
    *reads: str,
    beside: tuple[str, ...] = (),
    logical: str | None = None,
    status: VersionStatus = VersionStatus.ACTIVE,
    outputs: int = 1,
    operator: str = "sql",
    most: int | None = None,
    depth: int | None = None,
    age: str | None = None,
    mode: str | None = None,
    source: Source | None = None,
) -> LiveJob:
    """``reads``: jobs whose events start this one; ``beside``: those that it only reads."""
    inputs = [(read, True) for read in reads] + [(read, False) for read in beside]
    definition = Job(
        name=name,
        activation=Activation.REACTIVE if inputs else Activation.SOURCE,
        runtime=queue,
        operator=operator,
        outputs=outputs,
        scaling=Scaling(max_concurrency=most),
        max_queue_depth=depth,
        max_queue_age=age,
        backpressure_mode=None if mode is None else BackpressureMode(mode),
        source=source,
    )
    return LiveJob(
        id=f"row-{name}",
        edition_id=name,
        logical_id=logical or name,
        dag="shop",
        version_id="v1",
        version_number=1,
        status=status,
        queue=queue,
        job=definition,
        config_hash="",
        inputs=tuple(
            PlannedInput(position, read, f"{read}-dataset", f"{read}-generation", trigger, {})
            for position, (read, trigger) in enumerate(inputs)
        ),
        outputs=(PlannedOutput(0, f"{name}-dataset", f"{name}-generation"),) if outputs else (),
    )


def topology_of(*jobs: LiveJob, paused: Mapping[str, str] | None = None, **more: Any) -> Topology:
    current = {made.dataset_id: made.generation_id for each in jobs for made in each.outputs}
    return build_topology(1, jobs, current, paused or {}, **more)
