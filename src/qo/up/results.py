"""Sample rows and origins of the tables that a pipeline has published."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from qo.api.contract.task import Piece
from qo.config.location import local_path
from qo.core.pipeline.plan import Plan, upstream
from qo.dispatcher.views.published import Table

CELL_MAX = 28


def sample(table: Table, rows: int) -> tuple[list[str], list[list[str]]]:
    """Return the names of the columns, and a few rows as text. Only local files are read.

    A column that a file lacks is empty.
    """
    samples: list[dict[str, str]] = []
    for path in _files(table.sample):
        samples += _parquet(path, rows) if path.suffix == ".parquet" else _lines(path, rows)
        if len(samples) >= rows:
            break
    header = list(dict.fromkeys(name for row in samples[:rows] for name in row))
    return header, [[row.get(name, "") for name in header] for row in samples[:rows]]


def _files(pieces: Sequence[Piece]) -> Iterator[Path]:
    for piece in pieces:
        for name in piece.files:
            uri = name if ":/" in name else f"{(piece.location or '').rstrip('/')}/{name}"
            if uri.startswith("file:") and local_path(uri).is_file():
                yield local_path(uri)


def _parquet(path: Path, rows: int) -> list[dict[str, str]]:
    parquet: Any = importlib.import_module("pyarrow.parquet")  # Slow to import, and needed only for such files.
    file = parquet.ParquetFile(path)
    try:
        batch = next(file.iter_batches(batch_size=rows), None)
    finally:
        file.close()
    if batch is None:
        return []
    return [{name: cell(value) for name, value in row.items()} for row in batch.to_pylist()]


def _lines(path: Path, rows: int) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", errors="replace") as file:
        return [{"line": line.rstrip("\n")[:200]} for line in itertools.islice(file, rows)]


def cell(value: Any) -> str:
    """Return the value as text that fits into a narrow column."""
    if value is None:
        return ""
    text = f"{value:.2f}" if isinstance(value, float) else str(value)
    return text if len(text) <= CELL_MAX else f"{text[: CELL_MAX - 1]}…"


def origins(plan: Plan) -> list[tuple[str, str]]:
    """Return each published name with the jobs that lead to it from its source; other inputs are in brackets."""
    jobs = {job.job.name: job.job for job in plan.jobs}

    def path_to(name: str) -> str:
        job = jobs[name]
        inputs = [(upstream(plan.dag, each), each.trigger) for each in job.inputs]
        first = next((job_name for job_name, trigger in inputs if trigger and job_name is not None), None)
        beside = sorted({job_name for job_name, _ in inputs if job_name is not None and job_name != first})
        step = f"{name} [{', '.join(beside)}]" if beside else name
        return f"{path_to(first)} -> {step}" if first is not None else step

    published = ((name, publish.from_.job or "") for name, publish in plan.dag.publish.items())
    return [(name, path_to(job)) for name, job in published]
