"""qo try: run one job here and now on committed inputs, without committing anything."""

from __future__ import annotations

import linecache
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qo.cli.invocation import Session, command, new_app
from qo.cli.pipelines.dispatcher_client import require_extra
from qo.errors import QoError, UsageError

if TYPE_CHECKING:
    from qo.up.trial import TrialOutput

app = new_app()

LINES_SHOWN = 20  # Of a file of text.


@command(app, "try")
def try_(
    session: Session,
    job: Annotated[
        str, typer.Argument(metavar="[DAG.]JOB[@PARTITION]", help="The job, and which partition of it.")
    ],
    target: Annotated[
        str,
        typer.Option(
            "--pipeline",
            metavar="FILE|DIRECTORY|MODULE:PIPELINE",
            help="The pipeline that has the job [.].",
            show_default=False,
        ),
    ] = ".",
    rows: Annotated[int, typer.Option("--rows", min=1, max=10_000, help="How many rows to print.")] = 20,
    pdb: Annotated[bool, typer.Option("--pdb", help="Start Python's debugger where your code fails.")] = False,
) -> None:
    """Run one job here, on committed inputs, without committing.

    Prints what it makes. The code is that of your files, deployed or not. Inputs are read from the installation, as a
    task would read them. Expectations are checked after the rows are printed. If your code fails, its own line comes
    first.
    """
    with require_extra():
        from qo.cli.pipelines.runtime import find_registry
        from qo.up.trial import TryRequest, prepare, run_trial
    name, _, partition = job.partition("@")
    with tempfile.TemporaryDirectory(prefix="qo-try-") as directory:
        place = Path(directory)
        settings = session.settings()
        request = TryRequest(target, name, partition or None, place)
        prepared = prepare(request, settings, find_registry(session, offline=True))
        try:
            with run_trial(prepared, settings, place) as results:
                _show(session, results, rows)
        except Exception as error:
            _explain(session, error, pdb=pdb)


def _show(session: Session, results: Sequence[TrialOutput], rows: int) -> None:
    if session.json:
        session.output.document([_document(each, rows) for each in results])
        return
    for each in results:
        if len(results) > 1:
            session.output.line(f"output {each.output}")
        if each.frame is not None:
            _show_frame(session, each.frame, rows)
        for path in each.files:
            session.output.line(f"{path.name}, {path.stat().st_size:,} B")
            for line in path.read_text("utf-8", "replace").splitlines()[:LINES_SHOWN]:
                session.output.line(f"  {line}")


def _show_frame(session: Session, frame: Any, rows: int) -> None:
    sample: list[Any] = frame.take(rows + 1)
    session.output.data(tuple(frame.columns), [tuple(map(_text, row)) for row in sample[:rows]])
    if len(sample) > rows:
        session.output.note(f"there are more rows than these {rows}; --rows shows more")
    elif not sample:
        session.output.note("no rows")


def _document(result: TrialOutput, rows: int) -> dict[str, Any]:
    if result.frame is None:
        return {"output": result.output, "files": [each.name for each in result.files]}
    sample: list[Any] = result.frame.take(rows)
    return {"output": result.output, "rows": [{k: _plain(v) for k, v in row.asDict().items()} for row in sample]}


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _explain(session: Session, error: Exception, *, pdb: bool) -> None:
    """Print the line of the user's code that failed; raise the error, shorter, unless a debugger was asked for."""
    from qo.worker.loop.outcome import is_user_code

    frames = [each for each in _walk(error.__traceback__) if is_user_code(each.tb_frame.f_code.co_filename)]
    for each in frames[-1:]:
        code = each.tb_frame.f_code
        line = linecache.getline(code.co_filename, each.tb_lineno).strip()
        session.output.note(f"{code.co_filename}:{each.tb_lineno}: in {code.co_name}: {line}")
    if pdb and frames:
        _debug(session, error, frames)
    if isinstance(error, QoError):
        raise error
    raise UsageError(f"{type(error).__name__}: {error}") from error


def _debug(session: Session, error: Exception, frames: Sequence[TracebackType]) -> None:
    """Start the debugger in the user's own frames: those below belong to libraries."""
    import pdb

    session.output.note(f"{type(error).__name__}: {error}")
    below: TracebackType | None = None
    for each in reversed(frames):
        below = TracebackType(below, each.tb_frame, each.tb_lasti, each.tb_lineno)
    pdb.post_mortem(below)


def _walk(traceback: TracebackType | None) -> list[TracebackType]:
    steps: list[TracebackType] = []
    while traceback is not None:
        steps.append(traceback)
        traceback = traceback.tb_next
    return steps
