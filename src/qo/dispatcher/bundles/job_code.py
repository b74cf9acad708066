"""The code that the jobs of a version run: which bundle, and whether it is still there.

A version keeps the bundle that it was first deployed with. What its jobs are known by (``code``) is part of the
version, so a bundle that another deploy of the same version brings is the same code, and may take the place of one
whose file is gone.
"""

from __future__ import annotations

from collections.abc import Collection

import sqlalchemy as sa

from qo.api.contract.dag import DeployBundle
from qo.core.pipeline.dag import Dag
from qo.dispatcher.bundles.bundle_store import Shelf, deployable
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import Tx
from qo.errors import UsageError

_jobs, _versions = schema.jobs, schema.dag_versions


def check(tx: Tx, dag: Dag, bundle: DeployBundle | None) -> None:
    """Raises UsageError for a bundle that is not there, or for jobs that cannot run from it."""
    if bundle is None:
        return
    deployable(tx, bundle.sha256)
    known = {job.name: job for job in dag.jobs}
    for name in bundle.jobs:
        if name not in known:
            raise UsageError(f"the bundle is for a job {name!r}, which {dag.name!r} does not have")
        if known[name].code is None:
            raise UsageError(
                f"job {name!r} runs from the bundle, and does not say which code it wants: set its 'code'"
            )


def bundles_of(
    tx: Tx, version_id: str | None, bundle: DeployBundle | None, gone: Collection[str]
) -> dict[str, str]:
    """By job, the bundles of a version that is deployed, for the first time or again."""
    brought = {} if bundle is None else dict.fromkeys(bundle.jobs, bundle.sha256)
    if version_id is None:
        return brought
    stored = tx.execute(sa.select(_jobs.c.name, _jobs.c.bundle).where(_jobs.c.version_id == version_id))
    return brought | {name: sha256 for name, sha256 in stored if sha256 is not None and sha256 not in gone}


def adopt(tx: Tx, version_id: str, bundle: DeployBundle | None, gone: Collection[str]) -> bool:
    """Let a live version have a bundle where it has none, or one that is gone; whether anything changed."""
    if bundle is None:
        return False
    lacks = sa.or_(_jobs.c.bundle.is_(None), _jobs.c.bundle.in_(sorted(gone)))
    these = sa.and_(_jobs.c.version_id == version_id, _jobs.c.name.in_(bundle.jobs), lacks)
    return tx.execute(sa.update(_jobs).where(these).values(bundle=bundle.sha256)).rowcount > 0


def named_bundles(tx: Tx, dag: str, content_hash: str) -> set[str]:
    """Those that a version names, if it was deployed before."""
    query = (
        sa.select(_jobs.c.bundle)
        .join(_versions, _versions.c.id == _jobs.c.version_id)
        .where(_versions.c.dag == dag, _versions.c.content_hash == content_hash, _jobs.c.bundle.is_not(None))
    )
    return set(tx.execute(query.distinct()).scalars())


def find_gone(shelf: Shelf, bundles: Collection[str]) -> set[str]:
    """Those whose files are missing. Asks the store: not within a transaction."""
    return {each for each in bundles if not shelf.has(each)}
