"""The code that the jobs of a version run: which bundle, and whether its file still exists.

A version keeps the bundle that it was first deployed with. The hash of a job's code (``code``) is part of the version,
so another deploy of the same version brings the same code. Its bundle may replace one whose file is missing.
"""

from __future__ import annotations

from collections.abc import Collection

import sqlalchemy as sa

from qo.api.contract.dag import DeployBundle
from qo.core.pipeline.dag import Dag
from qo.dispatcher.bundles.bundle_store import BundleStore, deployable
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import Tx
from qo.errors import UsageError

_jobs, _versions = schema.jobs, schema.dag_versions


def check(tx: Tx, dag: Dag, bundle: DeployBundle | None) -> None:
    """Raises UsageError for a bundle that does not exist, or for jobs that cannot run from it."""
    if bundle is None:
        return
    deployable(tx, bundle.sha256)
    jobs = {job.name: job for job in dag.jobs}
    for name in bundle.jobs:
        if name not in jobs:
            raise UsageError(f"the bundle is for a job {name!r}, which {dag.name!r} does not have")
        if jobs[name].code is None:
            raise UsageError(f"job {name!r} runs from the bundle but does not name its code: set its 'code'")


def bundles_of(
    tx: Tx, version_id: str | None, bundle: DeployBundle | None, missing: Collection[str]
) -> dict[str, str]:
    """Return the bundle of each job of a version that is deployed, for the first time or again."""
    new = {} if bundle is None else dict.fromkeys(bundle.jobs, bundle.sha256)
    if version_id is None:
        return new
    stored = tx.execute(sa.select(_jobs.c.name, _jobs.c.bundle).where(_jobs.c.version_id == version_id))
    return new | {name: sha256 for name, sha256 in stored if sha256 is not None and sha256 not in missing}


def adopt(tx: Tx, version_id: str, bundle: DeployBundle | None, missing: Collection[str]) -> bool:
    """Give a bundle to the jobs of a live version that have none, or a missing one. Return whether anything changed."""
    if bundle is None:
        return False
    lacks = sa.or_(_jobs.c.bundle.is_(None), _jobs.c.bundle.in_(sorted(missing)))
    these = sa.and_(_jobs.c.version_id == version_id, _jobs.c.name.in_(bundle.jobs), lacks)
    return tx.execute(sa.update(_jobs).where(these).values(bundle=bundle.sha256)).rowcount > 0


def named_bundles(tx: Tx, dag: str, content_hash: str) -> set[str]:
    """Return the bundles that a version names, if it was deployed before."""
    query = (
        sa.select(_jobs.c.bundle)
        .join(_versions, _versions.c.id == _jobs.c.version_id)
        .where(_versions.c.dag == dag, _versions.c.content_hash == content_hash, _jobs.c.bundle.is_not(None))
    )
    return set(tx.execute(query.distinct()).scalars())


def find_missing(store: BundleStore, bundles: Collection[str]) -> set[str]:
    """Return the bundles whose files are missing. Calls the store, so do not call it within a transaction."""
    return {each for each in bundles if not store.has(each)}
