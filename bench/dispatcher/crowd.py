"""Other pipelines beside the one that is measured: five thousand jobs in a hundred of them."""

from __future__ import annotations

import yaml

from bench.dispatcher.ground import deployed
from qo.dispatcher.state.database import State
from qo.pipeline.parsing import read

PIPELINES = 100
JOBS = 50  # Of each: one source, and rows of jobs that read each other.
WIDTH = 10


def deploy_crowd(state: State, pipelines: int = PIPELINES) -> None:
    for number in range(pipelines):
        deployed(state, read(_text(number)))


def _text(number: int) -> str:
    jobs: list[dict[str, object]] = [
        {"name": "feed", "outputs": 1, "activation": "source", "source": {"kind": "manual"}}
    ]
    for job in range(1, JOBS):
        before = "feed" if job % WIDTH == 1 else f"job{job - 1}"
        runs = {"runtime": "python", "operator": "shop.jobs:run", "execution_strategy": "PerPartition"}
        reads = {"activation": "reactive", "inputs": [{"from": {"job": before}}]}
        jobs.append({"name": f"job{job}", "outputs": 1, **runs, **reads})
    return yaml.safe_dump({"name": f"other{number:03}", "jobs": jobs}, sort_keys=False)
