"""Pipelines in short Python, and a state in which one is deployed.

    from pipelines import dag, deployed, job, live, source

    SHOP = dag(
        "shop",
        source("orders"),
        job("clean", reads="orders"),
        job("daily", reads=["clean", {"job": "orders", "trigger": False}], execution_strategy="PerUpdate"),
        job("alert", reads="daily", outputs=0, max_attempts=1),
        publish={"clean_orders": "clean"},
    )

    def test_something(state):
        topology = deployed(state, SHOP)                # version 1, active
        clean = live(topology, "shop.clean")            # its LiveJob
        clean.inputs[0].generation_id, clean.outputs[0].dataset_id

``reads`` takes the name of a job, ``{"job": …, "output": …}``, ``{"dataset": published name}``, either with ``as``,
``where`` or ``trigger`` beside, or a list of these. All other fields go into the job as the file would have them.
Use ``edited(SHOP, "clean", config={...})`` for the next version of the file and ``staged`` to deploy it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from qo.api.contract.dag import DeployAnswer
from qo.core.pipeline.dag import Dag, Job, resolve_defaults
from qo.core.pipeline.topology import LiveJob, Topology, VersionStatus
from qo.dispatcher.state import topology as topologies
from qo.dispatcher.state.database import State
from qo.dispatcher.versions.deploy import deploy
from qo.pipeline.registry import DEFAULT

Reads = str | Mapping[str, Any] | Sequence["str | Mapping[str, Any]"]


def source(
    name: str, kind: str = "manual", *, outputs: int = 1, of: Mapping[str, Any] | None = None, **fields: Any
) -> Job:
    """A source job. ``of``: further fields of its ``source``."""
    runs = ("python", "shop.feed:run") if kind == "always_on" else ("dispatcher", "noop")
    given = {"name": name, "activation": "source", "runtime": runs[0], "operator": runs[1]}
    return _job(given | {"outputs": outputs, "source": {"kind": kind, **(of or {})}, **fields})


def job(name: str, *, reads: Reads, outputs: int = 1, **fields: Any) -> Job:
    """A reactive job, PerPartition and replacing unless said otherwise."""
    listed = [reads] if isinstance(reads, str | Mapping) else list(reads)
    given = {"name": name, "activation": "reactive", "runtime": "python", "operator": f"shop.{name}:run"}
    given |= {
        "outputs": outputs,
        "inputs": [_input(each) for each in listed],
        "execution_strategy": "PerPartition",
    }
    return _job(given | fields)


def dag(name: str, *jobs: Job, publish: Mapping[str, str | Mapping[str, Any]] | None = None) -> Dag:
    """A resolved DAG. ``publish``: a job by published name, or ``{"job": …, "output": …}``."""
    named = {
        public: {"from": {"job": made} if isinstance(made, str) else dict(made)}
        for public, made in (publish or {}).items()
    }
    return resolve_defaults(
        msgspec.convert(
            {"name": name, "jobs": [msgspec.to_builtins(each) for each in jobs], "publish": named}, Dag
        )
    )


def edited(before: Dag, name: str, **fields: Any) -> Dag:
    """The DAG with some fields of one job changed."""
    jobs = [_job(msgspec.to_builtins(each) | fields) if each.name == name else each for each in before.jobs]
    return resolve_defaults(msgspec.structs.replace(before, jobs=tuple(jobs)))


def staged(state: State, wanted: Dag, by: str = "tests", *, again: bool = False) -> DeployAnswer:
    """Deploy it; what becomes of it is up to the deploy."""
    with state.write() as tx:
        return deploy(tx, wanted, "as Python", by, DEFAULT, again=again)


def deployed(state: State, wanted: Dag) -> Topology:
    """Deploy the first version of a DAG, which is active at once."""
    answer = staged(state, wanted)
    assert answer.status == VersionStatus.ACTIVE, "another version is active: use staged"
    return loaded(state)


def loaded(state: State) -> Topology:
    with state.read() as tx:
        return topologies.load(tx)


def live(topology: Topology, name: str, version: int | None = None) -> LiveJob:
    """The live job of that ``dag.job`` name; of a version, where two have editions of their own."""
    found = [
        each for each in topology.jobs.values() if each.name == name and version in (None, each.version_number)
    ]
    assert len(found) == 1, f"{len(found)} live editions of {name}"
    return found[0]


def _job(fields: Mapping[str, Any]) -> Job:
    return msgspec.convert(dict(fields), Job)


def _input(read: str | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(read, str):
        return {"from": {"job": read}}
    from_ = {key: value for key, value in read.items() if key in ("job", "output", "dataset")}
    return {"from": from_} | {key: value for key, value in read.items() if key not in from_}
