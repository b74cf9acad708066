"""Published names: the DAG that owns a name, the dataset it stands for, and the DAGs that read it.

A name belongs to the DAG whose active version publishes it. It cannot be withdrawn while other DAGs read it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter

import msgspec
import sqlalchemy as sa

from qo.core.pipeline.dag import Dag, SinkKind
from qo.core.pipeline.plan import Plan, outside_datasets
from qo.core.pipeline.sink import SINK_FIELDS, Sink, find_sink
from qo.core.pipeline.topology import Topology
from qo.dispatcher.state import schema, topology
from qo.dispatcher.state.database import Tx, batches
from qo.errors import Refused, UsageError

_publications = schema.publications
SHOWN_MAX = 10

_JobName = tuple[str, str]  # Of a DAG and of a job of it.


def list_names(tx: Tx) -> dict[str, str]:
    """Return the DAG that publishes each name."""
    return {row.name: row.dag for row in tx.execute(sa.select(_publications.c.name, _publications.c.dag))}


def resolve(tx: Tx, dag: Dag) -> dict[str, str]:
    """Return the dataset id of each name that a DAG reads of others. Raises UsageError for a name nobody publishes."""
    names = outside_datasets(dag)
    datasets = {name: row.dataset_id for name, row in _publications_by_name(tx, names).items()}
    missing = [name for name in names if name not in datasets]
    if missing:
        raise UsageError(
            f"no active DAG publishes {_join_names(missing)}: deploy the one that does first, or correct the name"
        )
    return datasets


def check(tx: Tx, plan: Plan) -> None:
    """Raises Refused if the plan publishes a name of another DAG, or no longer one that another DAG reads."""
    own = plan.dag.name
    foreign = [row for row in _publications_by_name(tx, plan.published).values() if row.dag != own]
    if foreign:
        first = min(foreign, key=lambda row: row.name)
        raise Refused(
            f"{first.name!r} is published by the DAG {first.dag!r} already: publish it under another name"
        )
    _check_sinks(tx, plan)
    current = tx.execute(sa.select(_publications).where(_publications.c.dag == own))
    changed = {row.name for row in current if plan.published.get(row.name) != row.dataset_id}
    if not changed:
        return
    readers = sorted(
        {
            (each.from_.dataset, job.name)
            for job in topology.load(tx).jobs.values()
            for each in job.job.inputs
            if job.dag != own and each.from_.dataset in changed
        }
    )
    if readers:
        name = readers[0][0]
        jobs = [reader for read, reader in readers if read == name]
        raise Refused(
            f"{name!r} is read by {_join_names(jobs)}: keep publishing the same output under that name, "
            "or change its readers first"
        )


def _check_sinks(tx: Tx, plan: Plan) -> None:
    sinks = {name: sink for name, each in plan.dag.publish.items() if (sink := find_sink(name, each)) is not None}
    if not sinks:
        return
    foreign = sa.and_(_publications.c.sink.is_not(None), _publications.c.dag != plan.dag.name)
    owners = {
        msgspec.convert(row.sink, Sink).key: row for row in tx.execute(sa.select(_publications).where(foreign))
    }
    for name, sink in sorted(sinks.items()):
        owner = owners.get(sink.key)
        if owner is not None:
            verb = "have" if sink.kind is SinkKind.FILES else "has"
            raise Refused(
                f"{sink} {verb} the dataset {owner.name!r} of the DAG {owner.dag!r} already: give {name!r} another "
                f"{SINK_FIELDS[sink.kind][0]}"
            )


def check_loop(tx: Tx, plan: Plan) -> None:
    """Raises Refused if data would come back to this DAG through others: events would circulate for ever."""
    try:
        TopologicalSorter(_needs_downstream(topology.load(tx), plan)).prepare()
    except CycleError as error:
        cycle = " > ".join(f"{dag}.{job}" for dag, job in error.args[1])
        raise Refused(f"data would flow in a circle: {cycle}; remove one of these inputs") from None


def _needs_downstream(live: Topology, plan: Plan) -> dict[_JobName, set[_JobName]]:
    """Return the jobs of the plan and all that their data reach, each with those of them that it reads.

    DAGs that read nothing of this one are not looked at, however many there are.
    """
    own = plan.dag.name
    makes = {(own, job.job.name): {output.dataset_id for output in job.outputs} for job in plan.jobs}
    own_readers: dict[str, set[_JobName]] = {}
    for job in plan.jobs:
        for each in job.inputs:
            own_readers.setdefault(each.dataset_id, set()).add((own, job.job.name))
    needs: dict[_JobName, set[_JobName]] = {name: set() for name in makes}
    ahead = list(needs)
    while ahead:
        name = ahead.pop()
        for dataset in makes[name] if name in makes else _outputs(live, name):
            jobs = (reader.job for reader in live.readers.get(dataset, ()))
            others = {(job.dag, job.job.name) for job in jobs if job.dag != own}
            for reader in others | own_readers.get(dataset, set()):
                if reader not in needs:
                    needs[reader] = set()
                    ahead.append(reader)
                needs[reader].add(name)
    return needs


def _outputs(live: Topology, name: _JobName) -> set[str]:
    """Return what the live jobs of that name make. Two editions of a job are one here: either may be the one that
    stays."""
    dag, job = name
    return {output.dataset_id for each in live.of_dag(dag) if each.job.name == job for output in each.outputs}


def check_inputs(tx: Tx, dag: Dag, planned: Mapping[str, str]) -> None:
    """Raises Refused if a name that a stored version reads is not published any more, or stands for other data."""
    datasets = {name: row.dataset_id for name, row in _publications_by_name(tx, planned).items()}
    stale = sorted(name for name, dataset in planned.items() if datasets.get(name) != dataset)
    if stale:
        raise Refused(
            f"this version of {dag.name!r} reads {_join_names(stale)}, which is no longer published as it was: "
            "deploy its file again"
        )


def publish(tx: Tx, plan: Plan) -> None:
    """Replace the published names of a DAG by those of the plan."""
    tx.execute(sa.delete(_publications).where(_publications.c.dag == plan.dag.name))
    rows = [
        {
            "name": name,
            "dataset_id": dataset,
            "dag": plan.dag.name,
            "sink": None
            if (sink := find_sink(name, plan.dag.publish[name])) is None
            else msgspec.to_builtins(sink),
        }
        for name, dataset in plan.published.items()
    ]
    tx.insert(_publications, rows)


def _publications_by_name(tx: Tx, names: Iterable[str]) -> dict[str, sa.Row[tuple[str, str, str]]]:
    publications: dict[str, sa.Row[tuple[str, str, str]]] = {}
    for some in batches(sorted(names)):
        rows = tx.execute(
            sa.select(_publications.c.name, _publications.c.dataset_id, _publications.c.dag).where(
                _publications.c.name.in_(some)
            )
        )
        publications |= {row.name: row for row in rows}
    return publications


def _join_names(names: list[str]) -> str:
    text = ", ".join(repr(name) for name in names[:SHOWN_MAX])
    return text if len(names) <= SHOWN_MAX else f"{text} and {len(names) - SHOWN_MAX} more"
