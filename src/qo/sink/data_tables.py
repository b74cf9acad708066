"""The table of a sink in its database: what it has, and the transactions that change it. Every call blocks.

Whatever happens in between, a transaction changes rows and books together or not at all. Readers of the view see the
dataset as of one revision of one generation.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager

import psycopg
from psycopg import sql

from qo.api.contract.sink import LiveSink, SinkStep
from qo.api.contract.task import Piece
from qo.core.pipeline.sink import STORAGE_SCHEMA
from qo.errors import Refused, Unavailable, UsageError
from qo.sink import books, relations
from qo.sink.arrow_columns import REVISION, column_types, find_missing, rows
from qo.sink.books import Connection, Entry, GenerationEntry, storage_name
from qo.sink.content import Busy, SinkContent
from qo.sink.piece_files import Files, batches, file_uris, open_file

CONNECT_S = 10
# A view is replaced, and a table dropped, when no reader holds it. Later readers wait behind, so not for long.
LOCK_WAIT = "5s"


class _NewColumns(Exception):
    """The table lacks columns of a file: add them first, since readers wait for that."""

    def __init__(self, columns: dict[str, str]) -> None:
        self.columns = columns


class DataTable:
    """One table. ``close`` it after use."""

    def __init__(self, connection: Connection, sink: LiveSink, files: Files) -> None:
        self._connection, self._sink, self._files = connection, sink, files
        self._table = sink.table or ""
        schema, _, name = self._table.partition(".")
        self._view = sql.Identifier(schema, name)

    def close(self) -> None:
        self._connection.close()

    def revision_of(self, generation_id: str) -> int:
        """Return the revision as of which the rows of a generation are there; 0: none are."""
        with self._transaction() as (_, connection):
            entry = books.enter_generation(connection, self._table, generation_id)
            storage = self._storage(entry)
            if not relations.exists(connection, storage):
                relations.create_storage(connection, storage)
            return entry.revision

    def apply(self, step: SinkStep) -> bool:
        """Apply a step; return whether the table was at its start. If it was not, nothing changes."""
        while True:
            try:
                return self._apply(step)
            except _NewColumns as missing:
                # In a transaction of its own: the view does not show them before the rows are there.
                with self._transaction() as (_, connection):
                    entry = books.enter_generation(connection, self._table, step.generation_id)
                    have = relations.columns_of(connection, self._storage(entry))
                    columns = find_missing(have, missing.columns)
                    relations.add_columns(connection, self._storage(entry), columns)

    def _apply(self, step: SinkStep) -> bool:
        with self._transaction() as (entry, connection):
            generation = books.enter_generation(connection, self._table, step.generation_id)
            if generation.revision != step.after:
                return False
            storage = self._storage(generation)
            if step.drop:
                delete = sql.SQL("DELETE FROM {} WHERE {} = ANY(%s)").format(storage, sql.Identifier(REVISION))
                connection.execute(delete, [step.drop])
            columns = relations.columns_of(connection, storage)
            for piece in step.add:
                self._copy(piece, storage, columns)
            books.record_revision(connection, self._table, step.generation_id, step.upto)
            if entry.generation_id == step.generation_id:
                self._show(storage)
            return True

    def _copy(self, piece: Piece, storage: sql.Identifier, columns: dict[str, str]) -> None:
        for uri in file_uris(piece):
            with open_file(uri, self._files) as file:
                types = column_types(file.schema_arrow, uri)
                if missing := find_missing(columns, types):
                    raise _NewColumns(missing)
                names = sql.SQL(", ").join(map(sql.Identifier, (*types, REVISION)))
                statement = sql.SQL("COPY {} ({}) FROM STDIN").format(storage, names)
                with self._connection.cursor() as cursor, cursor.copy(statement) as copy:
                    for batch in batches(file):
                        for row in rows(batch):
                            copy.write_row((*row, piece.revision))

    def show_current(self) -> SinkContent:
        """Let readers see the current generation, which is loaded. Return what they see.

        Raises Refused if somebody who knew of a later cutover let them see another one.
        """
        sink = self._sink
        with self._transaction() as (entry, connection):
            if sink.current is not None and entry.generation_id != sink.current:
                if entry.epoch > sink.epoch:
                    raise Refused(
                        f"the table {self._table} follows a later cutover than this dispatcher knows of: if its state "
                        "was restored, or another installation loads this table, drop its view and its row in qo.sinks"
                    )
                self._switch(entry, sink.current)
                entry = Entry(entry.dataset_id, sink.current, sink.epoch)
            if sink.epoch > entry.epoch or entry.generation_id == sink.current:
                books.record_shown(connection, self._table, entry.generation_id, max(entry.epoch, sink.epoch))
            if entry.generation_id is None:
                return SinkContent(None, 0)
            return SinkContent(
                entry.generation_id,
                books.enter_generation(connection, self._table, entry.generation_id).revision,
            )

    def _switch(self, entry: Entry, generation_id: str) -> None:
        connection, table = self._connection, self._table
        storage = self._storage(books.enter_generation(connection, table, generation_id))
        if entry.generation_id is None:
            self._make_way()
        else:
            before = self._storage(books.enter_generation(connection, table, entry.generation_id))
            if not relations.columns_of(connection, storage):
                # Nothing was ever committed to it: readers find the columns that they know, and no rows.
                relations.add_columns(connection, storage, relations.columns_of(connection, before))
            relations.copy_indexes(connection, before, storage)
        self._show(storage)

    def _make_way(self) -> None:
        """Raise Refused if something else has the name of the view."""
        connection = self._connection
        if relations.exists(connection, self._view):
            raise Refused(
                f"there is a table or view {self._table} already, and qo did not make it: drop it, or name "
                "another table"
            )
        schema = self._table.partition(".")[0]
        if connection.execute("SELECT to_regnamespace(%s)", [schema]).fetchone() == (None,):
            connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))

    def _show(self, storage: sql.Identifier) -> None:
        connection = self._connection
        if (
            relations.source_of(connection, self._view) != storage.as_string(connection)
            or relations.columns_of(connection, self._view).keys()
            != relations.columns_of(connection, storage).keys()
        ):
            relations.replace_view(connection, self._view, storage)

    def drop_unneeded(self, needed_ids: Sequence[str]) -> None:
        """Drop the rows of all generations but these and the one that readers see."""
        with self._transaction() as (entry, connection):
            needed = {*needed_ids, *([entry.generation_id] if entry.generation_id is not None else ())}
            for storage in books.forget_generations(connection, self._table, needed):
                name = storage_name(self._table, storage)
                connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(name))

    def _storage(self, entry: GenerationEntry) -> sql.Identifier:
        return storage_name(self._table, entry.storage)

    @contextmanager
    def _transaction(self) -> Generator[tuple[Entry, Connection]]:
        try:
            with self._connection.transaction():
                yield books.enter(self._connection, self._table, self._sink.dataset_id), self._connection
        except psycopg.errors.LockNotAvailable as error:
            raise Busy(f"{self._table} is in use: {_first_line(error)}") from error
        except psycopg.OperationalError as error:
            raise Unavailable(f"the database {self._sink.database!r} failed: {_first_line(error)}") from error
        except psycopg.Error as error:
            raise UsageError(f"{self._table} cannot be loaded: {_first_line(error)}") from error


def open_table(url: str, sink: LiveSink, files: Files) -> DataTable:
    """Connect to the database of a sink. Raises Unavailable, and UsageError if its books cannot be created."""
    try:
        connection = psycopg.connect(
            url, connect_timeout=CONNECT_S, application_name="qo sink", options=f"-c lock_timeout={LOCK_WAIT}"
        )
    except psycopg.Error as error:
        raise Unavailable(f"the database {sink.database!r} does not answer: {_first_line(error)}") from error
    try:
        books.create_books(connection)
    except psycopg.Error as error:
        connection.close()
        raise UsageError(
            f"the database {sink.database!r} has no schema {STORAGE_SCHEMA!r}, and it cannot be created: "
            f"{_first_line(error)}"
        ) from error
    connection.autocommit = True  # Transactions are opened explicitly.
    return DataTable(connection, sink, files)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
