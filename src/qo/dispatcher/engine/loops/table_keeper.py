"""The loop that keeps published datasets as tables of Apache Iceberg, a moment after their commits.

    {data}/{dataset}/metadata/v7.metadata.json        what the table shows: its seventh document
    {data}/{dataset}/metadata/version-hint.text       the number of the latest, for readers of files
    {data}/{dataset}/metadata/000007-….avro           manifests and lists of them

Manifests are written first, then the document, then the row that names it, then the hint. Each file has its own name
for its own contents and is never changed, so a dispatcher that was killed anywhere is followed by one that repeats or
completes what it did. Two that write the same table at once are told apart by the row: one of them looks again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence

import msgspec

from qo.config.location import path_text
from qo.config.settings import Settings
from qo.core.iceberg import table_state
from qo.core.iceberg.table_document import Place, document_name, table_document
from qo.core.iceberg.table_state import TableState
from qo.dispatcher.state import commit_locks
from qo.dispatcher.state.database import State
from qo.dispatcher.tables import due_tables, table_records
from qo.dispatcher.tables.data_files import NotATable
from qo.dispatcher.tables.due_tables import DueTable, table_uuid
from qo.dispatcher.tables.table_records import Outdated, StoredTable
from qo.dispatcher.tables.table_update import TablePlan, make_files, plan_table
from qo.errors import Contended
from qo.store.directory import Directory, open_directory

log = logging.getLogger(__name__)

HINT = "version-hint.text"
VERSIONS_TRIED = 20  # Numbers of documents that dispatchers which were killed have left behind.
FILES_AT_ONCE = 16


async def tick(state: State, settings: Settings) -> int:
    """Bring the tables that are due up to date; return how many."""
    due = await asyncio.to_thread(_find_due, state)
    if not due:
        return 0
    root = await open_directory(settings.dispatcher.data_root, settings)
    try:
        for each in due:
            try:
                await _keep(state, root, settings.dispatcher.data_root, each)
            except Outdated:
                log.debug("the table of %s was changed meanwhile: the next tick looks again", each.names[0])
    finally:
        await root.close()
    return len(due)


def _find_due(state: State) -> list[DueTable]:
    with state.read() as tx:
        due, withdrawn = due_tables.find_due(tx)
    if withdrawn:
        with state.write() as tx:
            table_records.delete_rows(tx, withdrawn)
    # Commits under way may get earlier revisions than those that are shown.
    commit_locks.await_commits_first(state, {generation for each in due for generation in each.generations})
    return due


async def _keep(state: State, root: Directory, data_root: str, due: DueTable) -> None:
    """Bring one table up to date. Raises Outdated if another dispatcher came first."""
    stored, plan, problem = await asyncio.to_thread(_plan, state, due)
    try:
        if plan is None:
            raise NotATable(problem)
        sizes = await _measure(root, data_root, plan.unmeasured)
        if _shows_all(plan):
            version = stored.version
        else:
            version = await _write(state, root, plan, sizes)
    except NotATable as error:
        await asyncio.to_thread(_store_problem, state, due, stored, str(error))
        return
    hint = f"{version}\n".encode()
    await root.update(f"{due.dataset_id}/metadata/{HINT}", lambda old: hint if _number(old) < version else None)
    await asyncio.to_thread(_store_hint, state, due, version)


def _plan(state: State, due: DueTable) -> tuple[StoredTable, TablePlan | None, str]:
    """Return what was written last, and what is to be done, or why nothing can be."""
    with state.read() as tx:
        stored = table_records.load_table(tx, due)
        try:
            plan, problem = plan_table(tx, due, stored), ""
        except NotATable as error:
            plan, problem = None, str(error)
    if not stored.version:
        with state.write() as tx:
            table_records.add_rows(tx, due)
    return stored, plan, problem


def _shows_all(plan: TablePlan) -> bool:
    """Whether the last document shows what it should, and only the hint is missing."""
    stored, due = plan.stored, plan.due
    heads = tuple(None if each is None else each.revision for each in (due.main, due.next))
    is_whole = stored.metadata_location is not None and len(set(stored.versions.values())) == 1
    return is_whole and stored.expire_before is None and heads == (stored.state.main, stored.state.next)


async def _write(state: State, root: Directory, plan: TablePlan, sizes: Mapping[str, int]) -> int:
    """Write the files of the next document, and store it. Return its version."""
    due, directory = plan.due, f"{plan.due.dataset_id}/metadata"
    place = _place(root, due)
    version = plan.stored.version + 1
    table, files = await asyncio.to_thread(make_files, plan, sizes, version, place.metadata("")[:-1])
    bodies = [(f"{directory}/{name}", body) for name, body in files.bodies.items()]
    for at in range(0, len(bodies), FILES_AT_ONCE):
        await asyncio.gather(*(root.create(*each) for each in bodies[at : at + FILES_AT_ONCE]))
    body = msgspec.json.encode(table_document(table, place))
    version = await _write_document(state, root, plan, version, body)
    table = table_state.add_document(table, version)
    location = place.metadata(document_name(version))
    await asyncio.to_thread(_store, state, plan, table, version, location)
    return version


async def _write_document(state: State, root: Directory, plan: TablePlan, version: int, body: bytes) -> int:
    """Write a document under the first number that is free, and return that.

    A number may be taken by a dispatcher that was killed before it could store it, or by one that is about to.
    """
    for number in range(version, version + VERSIONS_TRIED):
        path = f"{plan.due.dataset_id}/metadata/{document_name(number)}"
        if await root.create(path, body) or await root.read(path) == body:
            return number
        if await asyncio.to_thread(_load, state, plan.due) != plan.stored.versions:
            raise Outdated
    raise Contended(f"{VERSIONS_TRIED} documents of the table {plan.due.names[0]} were left behind: look why")


def _load(state: State, due: DueTable) -> Mapping[str, int]:
    with state.read() as tx:
        return table_records.load_table(tx, due).versions


def _store(state: State, plan: TablePlan, table: TableState, version: int, location: str) -> None:
    with state.write() as tx:
        table_records.store_table(tx, plan.due, plan.stored, table, version, location)


def _store_problem(state: State, due: DueTable, stored: StoredTable, problem: str) -> None:
    with state.write() as tx:
        table_records.store_problem(tx, due, stored, problem)


def _store_hint(state: State, due: DueTable, version: int) -> None:
    with state.write() as tx:
        table_records.store_hint(tx, due, version)


async def _measure(root: Directory, data_root: str, uris: Sequence[str]) -> dict[str, int]:
    """Return the sizes of files that no worker has measured. Raises NotATable for one that is not there."""
    base = f"{data_root.rstrip('/')}/"
    sizes: dict[str, int] = {}
    for at in range(0, len(uris), FILES_AT_ONCE):
        some = uris[at : at + FILES_AT_ONCE]
        outside = next((each for each in some if not each.startswith(base)), None)
        if outside is not None:
            raise NotATable(f"its file {outside} is not below {base}: move the data there, or make it again")
        files = await asyncio.gather(*(root.find(each.removeprefix(base)) for each in some))
        for uri, file in zip(some, files, strict=True):
            if file is None:
                raise NotATable(f"its file {uri} is not there: make the partition again (qo invalidate)")
            sizes[uri] = file.size
    return sizes


def _place(root: Directory, due: DueTable) -> Place:
    url = root.url(due.dataset_id)
    location = path_text(url) if url.startswith("file:") else url
    about = {"qo.pipeline": due.dag, "qo.dataset": due.dataset_id}
    return Place(table_uuid(due.dataset_id), location, about)


def _number(hint: bytes | None) -> int:
    try:
        return int(hint or b"0")
    except ValueError:
        return 0  # Damaged: replace it.
