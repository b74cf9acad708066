"""What has changed in an input since the job read it before, as frames."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame

from qo.agent.run_input import RunInput
from qo.api.contract.task import InputMode, InputPart, Piece
from qo.errors import UsageError
from qo.spark.io.appending import uris_of
from qo.spark.io.columns import columns_from_bodies, struct_of
from qo.spark.io.input_frames import filter_rows, read_files
from qo.spark.operators.operator_context import Context


@dataclass(frozen=True, slots=True)
class InputChanges:
    name: str
    added: DataFrame
    removed: DataFrame | None  # None: nothing was replaced or removed.
    is_first: bool  # Nothing was read before: all there is was added.
    rows: int | None  # That were added; None: not known.
    whole: Callable[[], DataFrame]  # Everything that is there now.


def open_changes(context: Context) -> InputChanges | None:
    """Return the changes of the only input; None if there are none."""
    name = next(iter(context.inputs))
    source = context.run.input(name)
    if source.details.mode is not InputMode.CHANGES:
        # A run without a task, as tests have it: all of its input is new.
        _, frame = context.only_input()
        return InputChanges(name, frame, None, True, None, lambda: frame)
    added = list(source.pieces)
    removed = list(source.part(InputPart.REMOVED)) if source.details.changed_after else []
    if not added and not removed:
        return None
    if not source.details.columns:
        raise UsageError(
            f"{name!r} has files whose columns are not known: let a job such as ingest read them, and "
            f"{context.operator} what that makes"
        )
    return InputChanges(
        name=name,
        added=_read(context, source, added),
        removed=_read(context, source, removed) if removed else None,
        is_first=not source.details.changed_after,
        rows=_count_rows(added),
        whole=lambda: _read(context, source, list(source.part(InputPart.WHOLE))),
    )


def _count_rows(pieces: Sequence[Piece]) -> int | None:
    """Return the rows of pieces; None if some have not been counted."""
    counts = [each.rows for each in pieces if each.rows is not None]
    return sum(counts) if len(counts) == len(pieces) else None


def _read(context: Context, source: RunInput, pieces: Sequence[Piece]) -> DataFrame:
    struct = struct_of(columns_from_bodies(source.details.columns))
    rows = read_files(context.spark, uris_of(pieces), struct, context.files, source.name)
    return filter_rows(rows, source.where, source.name)
