"""qo dataset diff: by rows, or by commits."""

from __future__ import annotations

from typing import Annotated

import typer

from qo.cli.invocation import Session
from qo.cli.pipelines.dataset_options import Generation, Limit, Name, dataset_path, note_more
from qo.cli.pipelines.diff.row_diff_command import DIFFERENT, RowDiffOptions, run
from qo.cli.pipelines.dispatcher_client import ask, check_limit, pages
from qo.cli.pipelines.formatting import format_extent
from qo.errors import UsageError

_FROM_HELP = "Compare rows: a revision, v3 or v3@REVISION of a version of the DAG, active, or staged."
_KEYS_HELP = "Columns that tell rows apart; '': compare rows as a whole [those that the job declares]."
_SAMPLES_HELP = "How many rows of each kind to show [10]."

First = Annotated[
    int | None,
    typer.Argument(
        metavar="REVISION", min=0, help="Compare commits: the earlier revision; 0: nothing.", show_default=False
    ),
]
Second = Annotated[
    int | None, typer.Argument(metavar="REVISION", min=0, help="The later one.", show_default=False)
]
FromVersion = Annotated[str | None, typer.Option("--from", metavar="VERSION", help=_FROM_HELP)]
ToVersion = Annotated[str | None, typer.Option("--to", metavar="VERSION", help="The version to compare it with.")]
Keys = Annotated[str | None, typer.Option("--keys", metavar="A,B", help=_KEYS_HELP)]
Partition = Annotated[
    str | None, typer.Option("--partition", "-p", metavar="KEY", help="Only rows of this partition.")
]
Samples = Annotated[int, typer.Option("--samples", min=0, max=10_000, help=_SAMPLES_HELP, show_default=False)]
Spark = Annotated[bool, typer.Option("--spark", help="Compare with the Spark of the settings.")]
ExitCode = Annotated[bool, typer.Option("--exit-code", help="End with exit code 1 if there are differences.")]


def diff(
    session: Session,
    name: Name,
    first: First = None,
    second: Second = None,
    from_: FromVersion = None,
    to: ToVersion = None,
    keys: Keys = None,
    partition: Partition = None,
    samples: Samples = 10,
    spark: Spark = False,
    exit_code: ExitCode = False,
    generation: Generation = None,
    limit: Limit = 100,
) -> int | None:
    """Compare two versions of a dataset.

    Without REVISION the rows are compared: by default of the active and the staged version, or, if no version is
    staged, of the last two revisions. Only files that one version has and the other has not are read. With two
    revisions: shows which partitions changed in between, without reading files.
    """
    if first is None:
        if generation is not None:
            raise UsageError("--generation is for two revisions: name versions with --from and --to")
        options = RowDiffOptions(from_, to, keys, partition, samples, spark=spark)
        differs = run(session, name, dataset_path(name), options)
    elif second is None or (from_, to, keys, partition) != (None, None, None, None):
        raise UsageError("give two revisions to compare commits, or --from and --to to compare rows")
    else:
        differs = _show_commits(session, name, first, second, generation, limit)
    return DIFFERENT if exit_code and differs else None


def _show_commits(
    session: Session, name: str, first: int, second: int, generation: str | None, limit: int
) -> bool:
    """Print which partitions changed. Return whether any did."""
    check_limit(limit)
    changes, more = ask(
        session,
        lambda client: pages(
            client,
            dataset_path(name, "/changes"),
            "changes",
            limit,
            from_revision=first,
            to_revision=second,
            generation_id=generation,
        ),
    )
    if session.json:
        session.output.document(changes)
        return bool(changes)
    rows = [
        (each["change"], format_extent(each), f"{each['rows']:+,}", f"{each['bytes']:+,}", str(each["revision"]))
        for each in changes
    ]
    session.output.table(("change", "what", "rows", "bytes", "revision"), rows)
    note_more(session, more, limit)
    return bool(changes)
