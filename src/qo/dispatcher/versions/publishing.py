"""Names of datasets across DAGs: who owns one, what it stands for, and who would miss it.

A name belongs to the DAG whose active version publishes it. It may not be taken from under those who read it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter

import sqlalchemy as sa

from qo.core.pipeline.dag import Dag
from qo.core.pipeline.plan import Plan, upstream
from qo.dispatcher.state import schema, topology
from qo.dispatcher.state.database import Tx, batches
from qo.errors import Refused, UsageError

_publications = schema.publications
SHOWN_MAX = 10


def outside_names(dag: Dag) -> list[str]:
    """The published datasets of other DAGs that it reads."""
    return sorted(
        {
            each.from_.dataset or ""
            for job in dag.jobs
            for each in job.inputs
            if upstream(dag, each) is None
        }
    )  # fmt: skip


def resolve(tx: Tx, dag: Dag) -> dict[str, str]:
    """Dataset ids of what it reads of other DAGs. Raises UsageError for a name that nobody publishes."""
    wanted = outside_names(dag)
    known = {name: row.dataset_id for name, row in _named(tx, wanted).items()}
    missing = [name for name in wanted if name not in known]
    if missing:
        raise UsageError(
            f"no active DAG publishes {_listed(missing)}: deploy the one that does first, or correct the name"
        )
    return known


def check(tx: Tx, plan: Plan) -> None:
    """Raises Refused if the plan publishes what belongs to another DAG, or no longer what another one reads."""
    own = plan.dag.name
    taken = [row for row in _named(tx, plan.published).values() if row.dag != own]
    if taken:
        first = min(taken, key=lambda row: row.name)
        raise Refused(
            f"{first.name!r} is published by the DAG {first.dag!r} already: publish it under another name"
        )
    now = tx.execute(sa.select(_publications).where(_publications.c.dag == own))
    moved = {row.name for row in now if plan.published.get(row.name) != row.dataset_id}
    if not moved:
        return
    readers = sorted(
        {
            (each.from_.dataset, job.name)
            for job in topology.load(tx).jobs.values()
            for each in job.job.inputs
            if job.dag != own and each.from_.dataset in moved
        }
    )
    if readers:
        name = readers[0][0]
        who = [reader for read, reader in readers if read == name]
        raise Refused(
            f"{name!r} is read by {_listed(who)}: keep publishing the same output under that name, "
            "or change its readers first"
        )


def check_loop(tx: Tx, plan: Plan) -> None:
    """Raises Refused if data would come back to this DAG through others: its events would never end."""
    own = plan.dag.name
    reads = {f"{own}.{job.job.name}": {each.dataset_id for each in job.inputs} for job in plan.jobs}
    makers = {made.dataset_id: {f"{own}.{job.job.name}"} for job in plan.jobs for made in job.outputs}
    for job in topology.load(tx).jobs.values():
        if job.dag == own:
            continue
        # Two live editions of a job are one here: either may be the one that stays.
        reads.setdefault(job.name, set()).update(each.dataset_id for each in job.inputs)
        for made in job.outputs:
            makers.setdefault(made.dataset_id, set()).add(job.name)
    needs = {
        name: {maker for dataset in read for maker in makers.get(dataset, ())} for name, read in reads.items()
    }
    try:
        TopologicalSorter(needs).prepare()
    except CycleError as found:
        around = " > ".join(found.args[1])
        raise Refused(f"data would go round in a circle: {around}; take one of these inputs out") from None


def check_inputs(tx: Tx, dag: Dag, planned: Mapping[str, str]) -> None:
    """Raises Refused if a name that a stored version reads stands for something else now, or for nothing."""
    known = {name: row.dataset_id for name, row in _named(tx, planned).items()}
    stale = sorted(name for name, dataset in planned.items() if known.get(name) != dataset)
    if stale:
        raise Refused(
            f"this version of {dag.name!r} reads {_listed(stale)}, which is no longer published as it was: "
            "deploy its file again"
        )


def publish(tx: Tx, plan: Plan) -> None:
    """Make the names of the plan those of its DAG, in place of all it had."""
    tx.execute(sa.delete(_publications).where(_publications.c.dag == plan.dag.name))
    rows = [
        {"name": name, "dataset_id": dataset, "dag": plan.dag.name} for name, dataset in plan.published.items()
    ]
    tx.insert(_publications, rows)


def _named(tx: Tx, names: Iterable[str]) -> dict[str, sa.Row[tuple[str, str, str]]]:
    found: dict[str, sa.Row[tuple[str, str, str]]] = {}
    for some in batches(sorted(names)):
        rows = tx.execute(
            sa.select(_publications.c.name, _publications.c.dataset_id, _publications.c.dag).where(
                _publications.c.name.in_(some)
            )
        )
        found |= {row.name: row for row in rows}
    return found


def _listed(names: list[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:SHOWN_MAX])
    return shown if len(names) <= SHOWN_MAX else f"{shown} and {len(names) - SHOWN_MAX} more"
