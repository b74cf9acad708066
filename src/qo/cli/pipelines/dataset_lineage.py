"""qo dataset lineage: of a partition, or of columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from qo.cli.invocation import Session
from qo.cli.pipelines.dataset_options import Name, dataset_path
from qo.cli.pipelines.dispatcher_client import ask
from qo.core.words import plural
from qo.errors import UsageError

Column = Annotated[
    str | None,
    typer.Argument(metavar="COLUMN", help="With --columns: only this column.", show_default=False),
]
Partition = Annotated[str | None, typer.Option("--partition", "-p", metavar="KEY", help="The partition.")]
Columns = Annotated[
    bool, typer.Option("--columns", help="Of columns: what they are made from, and what is made from them.")
]
Depth = Annotated[
    int | None,
    typer.Option(
        "--depth", min=1, max=32, help="How many jobs to follow [1; with COLUMN, 32].", show_default=False
    ),
]


def lineage(
    session: Session,
    name: Name,
    column: Column = None,
    partition: Partition = None,
    columns: Columns = False,
    depth: Depth = None,
) -> None:
    """Show what a partition was made from, and what was made from it; with --columns, the same of columns.

    The lineage of columns is that of the current generation, as Spark has analysed the jobs that made it.
    """
    if columns == (partition is not None) or (column is not None and not columns):
        raise UsageError("give --partition for the lineage of a partition, or --columns for that of columns")
    if columns:
        _show_columns(session, name, column, depth or (1 if column is None else 32))
    else:
        _show_partition(session, name, partition or "", depth or 1)


def _show_columns(session: Session, name: str, column: str | None, depth: int) -> None:
    path = dataset_path(name, "/column-lineage")
    answer = ask(session, lambda client: client.get(path, column=column, depth=depth))
    if session.json:
        session.output.document(answer)
        return
    rows = [
        (each["column"], way, str(edge["depth"]), f"{edge['dataset']}.{edge['column'] or '*'}", edge["how"])
        for each in answer["columns"]
        for way, edges in (("from", each["upstream"]), ("into", each["downstream"]))
        for edge in edges
    ]
    rows += [("*", "from", "1", f"{edge['dataset']}.{edge['column']}", edge["how"]) for edge in answer["rows"]]
    rows += [(each["column"], "from", "", "unknown", "") for each in answer["columns"] if not each["is_known"]]
    session.output.table(("column", "way", "jobs", "of", "how"), rows)
    for reason in answer["unknown"]:
        session.output.note(f"not all is known: {reason}")
    if answer["more"]:
        session.output.note("the lineage is longer than this: ask for a single column, or for less --depth")


def _show_partition(session: Session, name: str, partition: str, depth: int) -> None:
    path = dataset_path(name, "/lineage")
    answer = ask(session, lambda client: client.get(path, partition_key=partition, depth=depth))
    if session.json:
        session.output.document(answer)
        return
    rows = [
        (
            way,
            str(edge["depth"]),
            edge["dataset"],
            _describe_read(edge),
            str(edge["revision"] or ""),
            edge["task_id"],
        )
        for way, edges in (("from", answer["upstream"]), ("into", answer["downstream"]))
        for edge in edges
    ]
    session.output.table(("way", "steps", "dataset", "what", "revision", "task"), rows)
    if answer["more"]:
        session.output.note("the lineage is longer than this: ask for the lineage of the last datasets shown")


def _describe_read(edge: Mapping[str, Any]) -> str:
    if edge["cursor_upto"] is not None:
        return f"cursor ({edge['cursor_after']}, {edge['cursor_upto']}]"
    if edge["partition_key"] is not None:
        return edge["partition_key"]
    pieces = "" if edge["pieces"] is None else f", {plural(edge['pieces'], 'piece')}"
    return f"whole as of {edge['as_of'] or 0}{pieces}"
