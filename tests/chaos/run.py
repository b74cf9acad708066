"""One run: everything is started, loaded, disturbed, left to settle, and judged."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from chaos import checker, evidence
from chaos.embedded_ground import embedded_ground
from chaos.evidence import Evidence
from chaos.ground import Ground
from chaos.load import Load
from chaos.monkey import Injected, Monkey
from chaos.plan import plan
from chaos.recovery import progress_of, recoveries
from chaos.report import Report
from chaos.servers_ground import servers_ground
from chaos.supervised import Supervised

GROUNDS = {"servers": servers_ground, "embedded": embedded_ground}

Say = Callable[[str], None]


async def run(directory: Path, *, seed: int, seconds: float, spark: bool, say: Say, on: str = "servers") -> Report:
    """``directory`` is empty, and keeps what processes said. ``on``: the name of the ground."""
    async with GROUNDS[on](directory, spark=spark) as ground:
        load, monkey = Load(ground, spark=spark), Monkey(ground)
        await load.deploy()
        faults = plan(seed, seconds, ground.targets)
        say(
            f"{on}, seed {seed}: {len(faults)} faults in {seconds:.0f} s; disk: {ground.disk_kind}; in {directory}"
        )
        async with asyncio.TaskGroup() as group:
            group.create_task(load.feed(seconds))
            group.create_task(monkey.run(faults))
        say("the faults are over; waiting until all is done")
        settled = await load.settled()
        say("reading every version and every row")
        offset_s = time.time() - time.monotonic()
        deaths = [(each.began + offset_s, each.over + offset_s) for each in monkey.injected if _is_death(each)]
        found = await evidence.gather(ground, list(load.wanted), deaths)
        wrong = checker.violations(found, load.numbers, load.wanted)
        wrong += [f"{each.name} was not started any more: {each.failed!r}" for each in _unsupervised(ground)]
        if not settled and not wrong:
            wrong.append("not everything was done in time")
        return Report(
            ground=on,
            seed=seed,
            settings={"seconds": seconds, "spark": spark, "disk": ground.disk_kind},
            counts=_counts(ground, found),
            injected=monkey.injected,
            recoveries=recoveries(monkey.injected, progress_of(found, offset_s)),
            violations=wrong,
        )


def _is_death(injected: Injected) -> bool:
    """Of the S3 server."""
    return injected.fault.kind == "restart" and injected.fault.target == "s3"


def _unsupervised(ground: Ground) -> list[Supervised]:
    return [each for each in ground.processes.values() if each.failed is not None]


def _counts(ground: Ground, found: Evidence) -> dict[str, int]:
    histories = (*found.fleet.values(), *found.wake_ups.values())
    processes = ground.processes.values()
    return {
        "queue tasks": len(found.fleet),
        "pipeline tasks": len(found.tasks),
        "attempts": sum(states[-1].attempt for states in found.fleet.values()) + len(found.attempts),
        "versions replayed": sum(map(len, histories)),
        "versions torn by a server's death": found.torn,
        "rows compared": sum(map(len, found.tables.values())),
        "processes started": sum(each.starts for each in processes),
        "processes that gave up": sum(len(each.exits) for each in processes),
        "processes left behind": len(ground.orphans()),
    }
