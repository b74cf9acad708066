"""One attempt at one pipeline task, as an operator sees it.

    def clean(run: qo.Run) -> None:
        rows = [json.loads(line) for line in run.input("orders").lines()]
        run.output().write("part-0.jsonl", ..., rows=len(rows))

Files written below an output's prefix become part of its dataset when the operator has returned and the dispatcher has
accepted the result. Until then, and if either does not happen, they are not read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from qo.agent.code.loaded import Code, OwnCode
from qo.agent.dataset_files import Storage
from qo.agent.file_measures import FileMeasures
from qo.agent.parquet_footers import named_columns
from qo.agent.run_input import MorePieces, RunInput
from qo.agent.run_logger import RunLogger
from qo.api.contract.column_origins import LineageBody
from qo.api.contract.task import (
    FILES_MAX,
    CheckBody,
    ColumnBody,
    EventBody,
    KeptAnswer,
    LastSegment,
    OutputBody,
    Piece,
    StandingAnswer,
    Work,
    WorkOutput,
)
from qo.config.location import local_path
from qo.core.pipeline.file_stats import FileStats
from qo.errors import Forbidden, NotFound, QoError, UsageError
from qo.store.private import make_data_directory
from qo.store.secret_files import read_secret
from qo.worker.loop.cancel import CancelToken
from qo.worker.observe.secrets import register_secret

if TYPE_CHECKING:
    from qo.agent.attempt_credentials import AttemptCredentials
    from qo.agent.segments import Segments

READERS_LOOK_S = 0.1  # How often a source that waits for its readers looks whether it may go on.


class QualityFailed(QoError):
    """The output of an operator does not meet its expectations. A retry would not help."""


class RunOutput:
    """An output of the task, to which it writes files."""

    def __init__(
        self,
        details: WorkOutput,
        storage: Storage,
        standing: Callable[[int, str | None, int | None], StandingAnswer],
    ) -> None:
        self.details = details
        self._standing = standing
        # Of the rows that were written, where known; or types by name.
        self.columns: list[ColumnBody] | dict[str, Any] | None = None
        self.lineage: LineageBody | None = None  # What the columns are made from, where known.
        self.sends_lineage = False  # Whether this attempt reports it: once in a while is enough.
        self.stats: dict[str, Any] = {}  # Statistics of the rows; small.
        self.based_on: int | None = None  # The commit is refused if another followed this revision.
        self.prefix = details.prefix.rstrip("/")
        self._storage = storage
        self._files: list[str] = []
        self._bytes = 0
        self._rows: int | None = None
        self._measures = FileMeasures()
        self._about: dict[str, Any] = {}
        self.skipped = False
        self.parts: list[RunOutput] = []  # If there are any, they are committed in place of the whole.

    def write(self, name: str, body: bytes | str, *, rows: int | None = None) -> str:
        """Write one file. Return its URI."""
        data = body.encode() if isinstance(body, str) else body
        uri = self.uri(name)
        self._storage.write(uri, data)
        self.add(name, size=len(data), rows=rows)
        self._measures.read(name, data)
        return uri

    def path(self, name: str = "") -> Path:
        """Return the path to write to, if the data root is on this machine. Then ``add`` the file."""
        path = local_path(self.uri(name) if name else self.prefix)
        make_data_directory(path.parent if name else path)
        return path

    def uri(self, name: str) -> str:
        if not name or name.startswith("/") or ":/" in name or ".." in name.split("/"):
            raise UsageError(f"{name!r} cannot name an output file: it is relative to the output's own prefix")
        return f"{self.prefix}/{name}"

    def add(self, name: str, *, size: int = 0, rows: int | None = None, stats: FileStats | None = None) -> None:
        """Add a file that was written by other means to the output."""
        if name in self._files:
            raise UsageError(f"{name!r} was written twice: give every file a name of its own")
        if len(self._files) == FILES_MAX:
            raise UsageError(
                f"output {self.details.index} has more than {FILES_MAX:,} files, which is the most that one commit may "
                "name: write fewer and larger ones"
            )
        self._files.append(name)
        self._bytes += size
        if rows is not None:
            self._rows = (self._rows or 0) + rows

        if stats is not None:
            self._measures.add(name, stats)
        elif self.prefix.startswith("file:"):
            self._measures.read(name, local_path(self.uri(name)))

    def describe(
        self,
        *,
        partition_key: str | None = None,
        start: int | None = None,
        end: int | None = None,
        cursor: int | None = None,
    ) -> None:
        """Set the partition or cursor of the output, where it is not that of the task."""
        self._about = {"partition_key": partition_key, "start": start, "end": end, "cursor": cursor}

    def standing(self) -> tuple[int, Iterator[Piece]]:
        """Return the revision and the pieces of what is committed already."""
        first = self._standing(self.details.index, None, None)
        revision = first.revision or 0

        def pieces() -> Iterator[Piece]:
            page = first
            yield from page.pieces
            while page.after is not None:
                page = self._standing(self.details.index, page.after, revision)
                yield from page.pieces

        return revision, pieces()

    def positions(self) -> tuple[Any, list[Any]]:
        """Return how far the newest commit has read, and how far those did that the task replaces.

        An operator that reads a system outside by a position of its own sets ``stats["position"]`` to a small value,
        which is committed with the rows.
        """
        first = self._standing(self.details.index, None, None)
        return first.position, first.own_positions

    def below(self, cursor: int) -> RunOutput:
        """Return a part of the output that is committed by itself, with a prefix of its own."""
        details = self.details.model_copy(update={"prefix": f"{self.prefix}/{cursor}/"})
        part = RunOutput(details, self._storage, self._standing)
        part.describe(cursor=cursor)
        return part

    def partition(self, key: str, directory: str) -> RunOutput:
        """Return a partition of the output, with files in a directory of its own; it is committed with the others."""
        details = self.details.model_copy(update={"prefix": f"{self.prefix}/{directory}/"})
        part = RunOutput(details, self._storage, self._standing)
        part.describe(partition_key=key)
        self.parts.append(part)
        return part

    def skip(self) -> None:
        """Commit nothing, and so start nothing downstream."""
        self.skipped = True

    def body(self, work: Work) -> OutputBody:
        """Return the output as it is sent to the dispatcher. Without files, it is committed empty."""
        about: dict[str, Any] = {"partition_key": work.partition_key, "start": work.start, "end": work.end}
        if work.partition_key is None:
            about = {"cursor": work.cursor}
        described = {key: value for key, value in self._about.items() if value is not None}
        columns = named_columns(self.columns)
        return OutputBody(
            output=self.details.index,
            location=self.prefix + "/",
            files=self._files,
            rows=self._rows if self._files else 0,
            bytes=self._bytes,
            columns=columns,
            columns_seen=None if columns is None else len(self.details.columns or ()),
            stats=self.stats,
            file_stats=self._measures.pack(columns),
            based_on=self.based_on,
            lineage=self.lineage if self.sends_lineage else None,
            **(described or about),
        ).with_full_lineage(self.lineage)


class Run:
    """One attempt at one task: its inputs, its outputs, and how to talk to the dispatcher meanwhile."""

    def __init__(
        self,
        work: Work,
        storage: Storage,
        *,
        cancel: CancelToken,
        progress: Callable[[Any], None],
        emit: Callable[[list[EventBody]], Coroutine[Any, Any, bool]],
        wait: Callable[[Coroutine[Any, Any, bool]], bool],
        more: MorePieces,
        standing: Callable[[int, str | None, int | None], StandingAnswer],
        previous_output: Callable[[int], KeptAnswer] | None = None,
        secrets_dir: Path = Path(),
        segments: Segments | None = None,
        code: Code | None = None,
        credentials: AttemptCredentials | None = None,
    ) -> None:
        self.credentials = credentials  # Of its own; None: it uses those of the worker.
        self._secrets_dir = secrets_dir
        self.code: Code = code or OwnCode()  # The code that it runs.
        self._previous_output = previous_output
        self._segments = segments
        self.work = work
        self.storage = storage
        self.cancel = cancel  # Threads cannot be interrupted: look at it in loops (``cancel.check()``).
        self.progress = progress
        self._emit = emit
        self._wait = wait
        self.inputs = {each.name: RunInput(each, storage, more) for each in work.inputs}
        self.outputs = [RunOutput(each, storage, standing) for each in work.outputs]
        self.result: Any = None  # A small value for people to see.
        self.checks: list[CheckBody] = []  # The results of expectations.
        self.rejected: list[OutputBody] = []  # Outputs that failed, kept for inspection.
        label = run_label(work)
        about = {"task_id": work.task_id, "attempt": work.attempt, "job": f"{work.dag}.{work.job}"}
        self.log = RunLogger(logging.getLogger("qo.run"), about | {"run_label": label}, label)

    @property
    def config(self) -> Mapping[str, Any]:
        return self.work.config

    @property
    def partition_key(self) -> str | None:
        return self.work.partition_key

    @property
    def cursor(self) -> int | None:
        return self.work.cursor

    @property
    def attributes(self) -> Mapping[str, Any]:
        """Further information from the event."""
        return self.work.attributes

    def input(self, name: str | None = None) -> RunInput:
        """Return an input by its name; without one, the only input. Raises NotFound."""
        if name is None and len(self.inputs) == 1:
            return next(iter(self.inputs.values()))
        if name not in self.inputs:
            raise NotFound(f"{self.work.job} has no input {name!r}: it has {', '.join(self.inputs) or 'none'}")
        return self.inputs[name]

    def output(self, index: int = 0) -> RunOutput:
        if not 0 <= index < len(self.outputs):
            raise NotFound(f"{self.work.job} has no output {index}: it has {len(self.outputs)}")
        return self.outputs[index]

    def previous_output(self, index: int = 0) -> KeptAnswer:
        """Return the last commit of an output for the partition of the task. Raises NotFound if there is none."""
        if self._previous_output is None:
            raise NotFound("nothing was committed before: this run belongs to no task")
        return self._previous_output(index)

    def secret(self, name: str) -> str:
        """Return a secret that the job lists under ``secrets``, from ``secret-NAME`` in the worker's secrets directory.

        Raises Forbidden for a secret that is not listed, NotFound for one that the worker does not have.
        """
        if name not in self.work.secrets:
            raise Forbidden(f"{self.work.job} may not read the secret {name!r}: name it under its secrets")
        path = self._secrets_dir / f"secret-{name}"
        try:
            return register_secret(read_secret(path).decode().rstrip("\n"))
        except FileNotFoundError:
            raise NotFound(f"this worker has no secret {name!r}: put it into {path}") from None

    def emit(self, *, output: int | None = None, **event: Any) -> bool:
        """Emit an event while running, as sources do. Return False if its readers cannot keep up: hold back.

        Without ``output`` or ``dataset_id`` it is about the first output. For plain functions; an ``async def`` awaits
        ``announce``.
        """
        if _in_event_loop():
            raise UsageError("run.emit would block the event loop: in an async def, write await run.announce(...)")
        return self._wait(self.announce(output=output, **event))

    async def announce(self, *, output: int | None = None, **event: Any) -> bool:
        """``emit`` for ``async def`` operators."""
        body = EventBody(output=output, **event)
        if body.output is None and body.dataset_id is None:
            body = body.model_copy(update={"output": 0})
        return await self._emit([body])

    def segment(self, cursor: int, output: int = 0) -> RunOutput:
        """Return an output for what an always-on source commits while it runs. Pass it to ``commit``."""
        whole = self.output(output)
        whole.skip()  # What is committed while running is not committed at the end.
        return whole.below(cursor)

    def commit(self, *segments: RunOutput) -> bool:
        """Commit segments now, all or none. Return False if their readers cannot keep up: hold back.

        A cursor that any attempt has committed before stays as it is, so this may be repeated. Waits for a dispatcher
        that does not answer. Raises Stopped when the attempt was asked to end, and LeaseLost when another attempt has
        taken over: write nothing more.
        """
        return self._committing().commit([each.body(self.work) for each in segments])

    def last_segment(self, output: int = 0) -> LastSegment:
        """Return how far the output is committed, which is where an always-on source continues."""
        return self._committing().last(self.output(output).details.index)

    @property
    def paused(self) -> bool:
        """Whether a source should hold back, by the last answer of the dispatcher."""
        return self._segments is not None and self._segments.paused()

    def wait_for_readers(self) -> None:
        """Wait while ``paused`` is set, as a source does before it announces more. Raises Stopped when the attempt was
        asked to end. For plain functions; an ``async def`` awaits ``await_readers``."""
        if _in_event_loop():
            raise UsageError("this would block the event loop: in an async def, write await run.await_readers()")
        self.cancel.check()
        while self.paused:
            self.cancel.wait(READERS_LOOK_S)
            self.cancel.check()

    async def await_readers(self) -> None:
        """``wait_for_readers`` for ``async def`` operators."""
        self.cancel.check()
        while self.paused:
            await asyncio.sleep(READERS_LOOK_S)
            self.cancel.check()

    def _committing(self) -> Segments:
        if _in_event_loop():
            raise UsageError(
                "this would block the event loop: in an async def, write await asyncio.to_thread(...)"
            )
        if self._segments is None:
            raise UsageError("this run belongs to no task: there is nowhere to commit to")
        return self._segments

    def reject(self, reason: str) -> NoReturn:
        """End the run without committing. Its files are kept for inspection. Raises QualityFailed."""
        self.rejected = self.committed()
        raise QualityFailed(reason)

    def committed(self) -> list[OutputBody]:
        """Return every output as it is sent to the dispatcher."""
        outputs = [each for each in self.outputs if not each.skipped]
        return [part.body(self.work) for each in outputs for part in (each.parts or [each])]


def run_label(work: Work) -> str:
    """Return the name of a run in the log."""
    what = work.partition_key if work.partition_key is not None else work.cursor
    about = "" if what is None else f"@{what}"
    return f"{work.dag}.{work.job}{about}, task {work.task_id}"


def _in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
