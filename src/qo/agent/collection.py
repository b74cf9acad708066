"""Deletes files that nobody needs any more: lists the data root, asks which prefixes may go, deletes those.

Each prefix is judged and deleted by itself, so an interrupted collection is simply started again. Only files below the
prefix of an attempt, its log, manifests of versions and metadata of tables are touched, never bundles, latest manifests
or foreign files.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from qo.api.contract.garbage import PREFIXES_MAX, PrefixVerdict
from qo.core import run_log
from qo.dispatcher.engine.garbage import PREFIX
from qo.dispatcher.tables.table_retention import KEY as TABLE_KEY
from qo.dispatcher.views.manifests import KEY
from qo.errors import NotFound
from qo.store.directory import Directory

PATHS_MAX = 100_000  # That are held in memory at a time.

Judge = Callable[[Sequence[str]], Awaitable[Sequence[PrefixVerdict]]]


@dataclass(slots=True)
class Candidate:
    """The prefix of an attempt with the files below it, the same of its log, or a file of a manifest or a table."""

    prefix: str  # Below the data root, without a slash at its end.
    is_manifest: bool = False
    is_log: bool = False
    files: int = 0
    bytes: int = 0
    paths: list[str] = field(default_factory=list[str])


@dataclass(slots=True)
class Collected:
    """What was deleted; of a dry run, what would be."""

    prefixes: int = 0  # Of attempts.
    logs: int = 0  # Of attempts.
    files: int = 0  # Of all these, and manifests.
    bytes: int = 0
    kept_by_reason: dict[str, int] = field(
        default_factory=dict[str, int]
    )  # Prefixes of attempts that were not deleted.


async def collect(
    root: Directory,
    judge: Judge,
    *,
    dry_run: bool,
    on_deleted: Callable[[Candidate, str], None] = lambda candidate, why: None,
) -> Collected:
    """Delete every prefix of the data root that may go. ``on_deleted`` is called for each, after it is deleted."""
    collected = Collected()
    batch: list[Candidate] = []
    async for each in _candidates(root):
        batch.append(each)
        if len(batch) == PREFIXES_MAX or sum(len(one.paths) for one in batch) > PATHS_MAX:
            await _delete_judged(root, judge, batch, collected, dry_run, on_deleted)
            batch = []
    if batch:
        await _delete_judged(root, judge, batch, collected, dry_run, on_deleted)
    return collected


async def _candidates(root: Directory) -> AsyncIterator[Candidate]:
    """Every prefix of an attempt, every log, and every file of a manifest or a table, each once."""
    current: Candidate | None = None
    with suppress(NotFound):  # Nothing was written yet.
        async for page in root.list():
            for file in page:
                is_manifest = KEY.match(file.path) is not None or TABLE_KEY.match(file.path) is not None
                prefix = file.path if is_manifest else "/".join(file.path.split("/")[:4])
                is_log = run_log.PREFIX.match(prefix) is not None
                if not is_manifest and (file.path == prefix or not (is_log or PREFIX.match(prefix))):
                    continue
                if current is not None and current.prefix != prefix:
                    yield current
                    current = None
                current = current or Candidate(prefix, is_manifest, is_log)
                current.paths.append(file.path)
                current.files += not file.path.endswith("/")
                current.bytes += file.size
    if current is not None:
        yield current


async def _delete_judged(
    root: Directory,
    judge: Judge,
    batch: Sequence[Candidate],
    collected: Collected,
    dry_run: bool,
    on_deleted: Callable[[Candidate, str], None],
) -> None:
    verdicts = {each.prefix: each for each in await judge([each.prefix for each in batch])}
    for each in batch:
        verdict = verdicts[each.prefix]
        if not verdict.gone:
            if not each.is_manifest and not each.is_log:
                collected.kept_by_reason[verdict.why] = collected.kept_by_reason.get(verdict.why, 0) + 1
            continue
        if not dry_run:
            await root.delete(each.paths)
        collected.prefixes += not each.is_manifest and not each.is_log
        collected.logs += each.is_log
        collected.files += each.files
        collected.bytes += each.bytes
        on_deleted(each, verdict.why)
