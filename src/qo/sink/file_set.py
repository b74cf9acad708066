"""The files of a sink in their directory or bucket, and the record that says which of them count.

Files are written first, and the record that names them last. Both are replaced only if they are as this loader knows
them, so one that is late changes nothing that another has written since.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from datetime import datetime

import msgspec

from qo.ambient import SYSTEM
from qo.api.contract.sink import LiveSink
from qo.api.contract.task import Piece
from qo.api.internal_client import DispatcherClient
from qo.core.pipeline import sink_files
from qo.core.pipeline.file_pattern import RESERVED, file_format
from qo.core.pipeline.sink_files import Change, SinkFile, SinkRecord, follow, plan_change, standing_files
from qo.errors import CorruptRecord, NotFound, Refused
from qo.sink.content import Busy, SinkContent
from qo.sink.file_formats import make_file
from qo.sink.piece_files import Files
from qo.store.directory import Directory


class FileSet:
    """The files of one sink."""

    def __init__(self, client: DispatcherClient, sink: LiveSink, directory: Directory, files: Files) -> None:
        self._client, self._sink, self._directory, self._files = client, sink, directory, files
        self._pattern, self._keep_s = sink.file or "", sink.keep_s or 0
        self._path = f"{RESERVED}/{sink.name}.json"
        self._loader = SYSTEM.token()
        self._record: bytes | None = None  # As it was read or written last.

    async def load(self, now: datetime) -> SinkContent:
        """Let the files show the current generation as of its latest revision. ``now``: by the dispatcher.

        Raises Busy if another loader changes them, Refused if they are not what the record says.
        """
        record = await self._read_record()
        current = self._sink.current
        if current is None:
            return SinkContent(record.generation_id, record.revision)
        standing = standing_files(record, self._pattern, current)
        is_shown = record.generation_id == current and record.file == self._pattern
        if record.generation_id != current and record.epoch > self._sink.epoch:
            raise Refused(
                f"the files {self._pattern} follow a later cutover than this dispatcher knows of: if its state was "
                f"restored, or another installation writes them, delete them and {self._directory.url(self._path)}"
            )
        pieces, dropped, revision = await self._follow_steps(current, record.revision if is_shown else 0)
        if not is_shown or revision != record.revision or record.pending:
            commits = follow(standing, {each.revision: _partition(each) for each in pieces.values()}, dropped)
            change = plan_change(record, self._pattern, standing, commits)
            if not change.revisions <= pieces.keys():
                # Files with rows that were there before: their commits are needed, too.
                pieces, _, revision = await self._follow_steps(current, 0)
                commits = {each.revision: _partition(each) for each in pieces.values()}
                change = plan_change(record, self._pattern, standing, commits)
            record = await self._apply(record, change, pieces, current, revision, now)
        await self._delete_replaced(record, now)
        return SinkContent(current, revision)

    async def _follow_steps(self, generation_id: str, after: int) -> tuple[dict[int, Piece], set[int], int]:
        """Return the commits since a revision that are current now, those from before that are not, and the revision
        as of which."""
        pieces: dict[int, Piece] = {}
        dropped: set[int] = set()
        while True:
            step = await self._client.sink_step(self._sink.name, generation_id, after)
            if after > step.latest:
                raise Refused(
                    f"the files {self._pattern} are as of revision {after}, and the dispatcher has {step.latest} only: "
                    "if its state was restored, or another installation writes them, delete them and "
                    f"{self._directory.url(self._path)}"
                )
            for revision in step.drop:
                if pieces.pop(revision, None) is None:
                    dropped.add(revision)
            pieces |= {each.revision: each for each in step.add}
            after = step.upto
            if step.upto == step.latest:
                return pieces, dropped, after

    async def _apply(
        self,
        record: SinkRecord,
        change: Change,
        pieces: Mapping[int, Piece],
        generation_id: str,
        revision: int,
        now: datetime,
    ) -> SinkRecord:
        replaceable = {name: {each.sha256} for name, each in record.files.items()}
        for name in record.pending:
            # A change was cut off: whatever it has left under these names is replaced.
            if (digest := await self._digest(name)) is not None:
                replaceable.setdefault(name, set()).add(digest)
        under_way = record
        if change.write:
            under_way = sink_files.begin(record, change, self._loader)
            await self._write_record(under_way)
        new_files: dict[str, SinkFile] = {}
        for name, (partition, revisions) in change.write.items():
            its_pieces = [pieces[each] for each in revisions]
            new_files[name] = await self._write(name, partition, its_pieces, replaceable.get(name, set()))
        finished = sink_files.finish(
            under_way,
            change,
            new_files,
            now=now.timestamp(),
            dataset_id=self._sink.dataset_id,
            file=self._pattern,
            generation_id=generation_id,
            epoch=max(record.epoch, self._sink.epoch),
            revision=revision,
            number=change.number,
            changed_at=now.isoformat(timespec="seconds"),
            loader=self._loader,
        )
        await self._write_record(finished)
        return finished

    async def _write(
        self, name: str, partition: str | None, pieces: Sequence[Piece], replaceable: set[str]
    ) -> SinkFile:
        body, rows = await asyncio.to_thread(make_file, file_format(self._pattern), pieces, self._files)
        digest = hashlib.sha256(body).hexdigest()
        unknown = False

        def change(content: bytes | None) -> bytes | None:
            nonlocal unknown
            before = None if content is None else hashlib.sha256(content).hexdigest()
            unknown = before is not None and before != digest and before not in replaceable
            return None if unknown or before == digest else body

        await self._directory.update(name, change)
        if unknown:
            raise Refused(
                f"{self._directory.url(name)} has other content than qo wrote last: if others write there, name "
                "another file; otherwise move it away, and qo writes it anew"
            )
        revisions = tuple(each.revision for each in pieces)
        return SinkFile(partition=partition, revisions=revisions, rows=rows, bytes=len(body), sha256=digest)

    async def _delete_replaced(self, record: SinkRecord, now: datetime) -> None:
        due = sink_files.list_due(record, self._keep_s, now=now.timestamp())
        if due:
            await self._directory.delete(due)
            await self._write_record(sink_files.without(record, due, self._loader))

    async def _digest(self, name: str) -> str | None:
        try:
            return hashlib.sha256(await self._directory.read(name)).hexdigest()
        except NotFound:
            return None

    async def _read_record(self) -> SinkRecord:
        try:
            body = await self._directory.read(self._path)
        except NotFound:
            return SinkRecord(dataset=self._sink.name, dataset_id=self._sink.dataset_id, file=self._pattern)
        self._record = body
        try:
            record = msgspec.json.decode(body, type=SinkRecord)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise CorruptRecord(
                f"{self._directory.url(self._path)} is no record of a sink: delete it, and the files of the "
                f"sink ({error})"
            ) from error
        if record.dataset_id != self._sink.dataset_id:
            raise Refused(
                f"{self._directory.url(self._path)} is the record of another dataset: name another directory, or "
                "delete it and its files"
            )
        return record

    async def _write_record(self, record: SinkRecord) -> None:
        body = msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n"
        is_ours = False

        def change(content: bytes | None) -> bytes | None:
            nonlocal is_ours
            # Our own write whose reply was lost is recognised by the loader and the number in it.
            is_ours = content in (self._record, body)
            return body if is_ours and content != body else None

        await self._directory.update(self._path, change)
        if not is_ours:
            raise Busy(f"another loader has changed {self._directory.url(self._path)}")
        self._record = body


def _partition(piece: Piece) -> str:
    return piece.partition_key if piece.partition_key is not None else f"cursor-{piece.cursor}"
