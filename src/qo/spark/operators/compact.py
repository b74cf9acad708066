"""compact: writes the same rows to few files of about the same size."""

from __future__ import annotations

from collections.abc import Iterable

from qo.api.contract.task import Piece
from qo.spark.operators.operator_context import Context, Frames

TARGET_MB = 128
FILES_MAX = 10_000  # As many as one commit takes.


def run(context: Context) -> Frames:
    name, frame = context.only_input()
    target_bytes = int(context.config.get("target_mb", TARGET_MB)) * 1024 * 1024
    files = target_files(context.run.input(name).pieces, target_bytes)
    context.details["files_wanted"] = files
    # One file needs no shuffle; several have the same size only after one.
    return {context.only_output(): frame.coalesce(1) if files == 1 else frame.repartition(files)}


def target_files(pieces: Iterable[Piece], target_bytes: int) -> int:
    """Return how many files of the target size the pieces fill. A piece of unknown size counts as one full file."""
    size = sum(target_bytes if piece.bytes is None else piece.bytes for piece in pieces)
    return min(FILES_MAX, max(1, -(-size // target_bytes)))
