"""qo dataset: show the data that pipelines have made, and remove it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from qo.cli.invocation import Session, command, new_app, new_group
from qo.cli.pipelines.dataset_lineage import lineage
from qo.cli.pipelines.dataset_options import Generation, Limit, Name, Revision, dataset_path, note_more
from qo.cli.pipelines.dataset_statistics import show_columns, show_quality
from qo.cli.pipelines.diff.diff_command import diff
from qo.cli.pipelines.dispatcher_client import ask, check_limit, pages, require_extra
from qo.cli.pipelines.emit import fresh_key
from qo.cli.pipelines.formatting import format_bytes, format_count, format_extent, format_timestamp
from qo.core.pipeline.columns import describe_type
from qo.core.words import plural
from qo.errors import UsageError

app = new_app()
dataset = new_group(app, "dataset", "Show the data that pipelines have made, and remove it.")


@command(dataset, "list")
def list_(
    session: Session,
    dag: Annotated[str | None, typer.Option("--dag", help="Only those of this DAG.")] = None,
    limit: Limit = 100,
) -> None:
    """List the datasets."""
    check_limit(limit)
    datasets, more = ask(session, lambda client: pages(client, "/v1/datasets", "datasets", limit, dag=dag))
    if session.json:
        session.output.document(datasets)
        return
    headers = ("dataset", "published as", "current generation")
    rows = [(label(each), each["name"] or "", each["generation_id"] or "") for each in datasets]
    session.output.table(headers, rows)
    note_more(session, more, limit)


@command(dataset, "show")
def show(
    session: Session,
    name: Name,
    columns: Annotated[
        bool,
        typer.Option("--columns", help="Nulls, distinct values, least and greatest value of each column."),
    ] = False,
    quality: Annotated[
        bool,
        typer.Option("--quality", help="How rows, bytes, nulls and results of expectations moved."),
    ] = False,
    partition: Annotated[
        str | None,
        typer.Option(
            "--partition", "-p", metavar="KEY", help="With --columns or --quality: only of this partition."
        ),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option("--by", help="With --quality: commit or partition [commit].", show_default=False),
    ] = None,
    column: Annotated[
        str | None,
        typer.Option("--column", metavar="NAME", help="With --quality: count the nulls of this column."),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit", min=1, max=200, help="With --quality: show at most this many [30].", show_default=False
        ),
    ] = None,
) -> None:
    """Show a dataset, its generations and its readers; or, of its data, what workers have measured.

    Neither --columns nor --quality reads data.
    """
    _check_show_options(columns=columns, quality=quality, partition=partition, trend=(by, column, limit))
    if columns:
        show_columns(session, name, partition)
        return
    if quality:
        show_quality(session, name, by or "commit", column, partition, limit or 30)
        return
    _show_summary(session, name)


def _show_summary(session: Session, name: str) -> None:
    answer = ask(session, lambda client: client.get(dataset_path(name)))
    if session.json:
        session.output.document(answer)
        return
    session.output.record(
        {
            "dataset": label(answer["dataset"]),
            "published as": answer["dataset"]["name"] or "",
            "id": answer["dataset"]["id"],
            "read by": ", ".join(answer["readers"]),
            "events": ", ".join(f"{count:,} {state}" for state, count in sorted(answer["events"].items())),
            "stale": _stale_count(answer["stale"]),
            **{f"freshness of {each['column']}": each["text"] for each in answer["freshness"]},
            **{f"sink {each['name']}": each["text"] for each in answer["sinks"]},
        }
    )
    session.output.line("")
    headers = ("generation", "status", "versions", "partitions", "segments", "cursor", "rows", "bytes", "created")
    session.output.table(headers, [_generation(each) for each in answer["generations"]])
    if columns := answer.get("columns"):
        session.output.line("")
        session.output.table(("column", "type", "since", "revision"), [_column(each) for each in columns])


def _check_show_options(*, columns: bool, quality: bool, partition: str | None, trend: tuple[Any, ...]) -> None:
    if columns and quality:
        raise UsageError("give --columns or --quality, not both")
    if partition is not None and not (columns or quality):
        raise UsageError("--partition goes with --columns or --quality; qo dataset partitions lists partitions")
    if not quality and any(each is not None for each in trend):
        raise UsageError("--by, --column and --limit go with --quality")
    if trend[0] not in (None, "commit", "partition"):
        raise UsageError(f"--by is commit or partition, not {trend[0]!r}")


def _column(each: Mapping[str, Any]) -> tuple[str, ...]:
    return (each["name"], describe_type(each["type"]), format_timestamp(each["since"]), str(each["revision"]))


def _stale_count(stale: Mapping[str, Any] | None) -> str:
    if stale is None:
        return ""
    least = "at least " if stale["at_least"] else ""
    return f"{least}{plural(stale['partitions'], 'partition')}"


def _generation(each: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        each["id"],
        each["status"],
        ",".join(map(str, each["versions"])),
        format_count(each["partitions"]),
        format_count(each["segments"]),
        format_count(each["cursor"]),
        format_count(each["rows"]),
        format_bytes(each["bytes"]),
        format_timestamp(each["created_at"]),
    )


@command(dataset, "partitions")
def partitions(
    session: Session,
    name: Name,
    generation: Generation = None,
    stale: Annotated[bool, typer.Option("--stale", help="Only stale ones.")] = False,
    limit: Limit = 100,
) -> None:
    """List the committed partitions of a dataset.

    A partition is stale if it was made from inputs that have changed since.
    """
    check_limit(limit)
    items, more = ask(
        session,
        lambda client: pages(
            client,
            dataset_path(name, "/partitions"),
            "partitions",
            limit,
            generation_id=generation,
            stale=True if stale else None,
        ),
    )
    if session.json:
        session.output.document(items)
        return
    headers = ("partition", "rows", "bytes", "files", "revision", "task", "committed", "stale", "location")
    rows = [
        (
            format_extent(each),
            format_count(each["rows"]),
            format_bytes(each["bytes"]),
            str(each["files"]),
            str(each["revision"]),
            each["task_id"],
            format_timestamp(each["committed_at"]),
            "; ".join(one["text"] for one in each["stale_inputs"]),
            each["location"] or "",
        )
        for each in items
    ]
    session.output.table(headers, rows)
    note_more(session, more, limit)


@command(dataset, "events")
def events(
    session: Session,
    name: Name,
    partition: Annotated[
        str | None, typer.Option("--partition", "-p", metavar="KEY", help="Only of this partition.")
    ] = None,
    limit: Limit = 100,
) -> None:
    """List the events of a dataset, newest first, and which jobs each has triggered."""
    check_limit(limit)
    items, more = ask(
        session,
        lambda client: pages(
            client, dataset_path(name, "/events"), "events", limit, "before", partition_key=partition
        ),
    )
    if session.json:
        session.output.document(items)
        return
    rows = [(format_timestamp(each["received_at"]), format_extent(each), *_outcome(each)) for each in items]
    session.output.table(("received", "what", "state", "readers"), rows)
    note_more(session, more, limit)


def _outcome(each: Mapping[str, Any]) -> tuple[str, str]:
    state = each["state"] + (f" ({each['reason']})" if each["reason"] else "")
    readers = [
        f"{one['dag']}.{one['job']} {one['outcome']}" + (f" ({one['reason']})" if one["reason"] else "")
        for one in each["deliveries"]
    ]
    return state, ", ".join(readers)


command(dataset, "lineage")(lineage)


@command(dataset, "history")
def history(
    session: Session,
    name: Name,
    partition: Annotated[
        str | None, typer.Option("--partition", "-p", metavar="KEY", help="Only of this partition.")
    ] = None,
    generation: Generation = None,
    limit: Limit = 100,
) -> None:
    """List the commits of a dataset, newest first: each revision is a version of it."""
    check_limit(limit)
    commits, more = ask(
        session,
        lambda client: pages(
            client,
            dataset_path(name, "/commits"),
            "commits",
            limit,
            "before",
            partition_key=partition,
            generation_id=generation,
        ),
    )
    if session.json:
        session.output.document(commits)
        return
    headers = ("revision", "what", "rows", "bytes", "task", "committed", "replaced by")
    rows = [
        (
            str(each["revision"]),
            format_extent(each),
            format_count(each["rows"]),
            format_bytes(each["bytes"]),
            each["task_id"],
            format_timestamp(each["committed_at"]),
            _describe_end(each),
        )
        for each in commits
    ]
    session.output.table(headers, rows)
    note_more(session, more, limit)


def _describe_end(each: Mapping[str, Any]) -> str:
    if each["removed"]:
        return "(it was removed)"
    replaced = each["replaced_by"]
    return "" if replaced is None else f"{replaced} at {format_timestamp(each['replaced_at'])}"


@command(dataset, "remove")
def remove(
    session: Session,
    name: Name,
    partitions: Annotated[
        list[str], typer.Argument(metavar="PARTITION...", help="Keys of partitions; see qo dataset partitions.")
    ],
    reason: Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="Why; qo why shows it.")] = None,
    key: Annotated[
        str | None, typer.Option("--key", help="Idempotency key: the same key again removes nothing.")
    ] = None,
) -> None:
    """Remove partitions of a dataset, and what was made from them alone.

    They disappear from all live versions, and later versions do not rebuild them. Earlier revisions keep them.
    """
    body: dict[str, Any] = {"partitions": partitions, "key": key or fresh_key()}
    if reason is not None:
        body["reason"] = reason
    answer = ask(session, lambda client: client.post(dataset_path(name, "/removals"), body))
    if session.json:
        session.output.document(answer)
        return
    session.output.line(f"removed {plural(len(answer['removed']), 'partition')} of {name}")
    if answer["already"]:
        session.output.note(f"not there any more: {', '.join(answer['already'])}")


command(dataset, "diff")(diff)


@command(dataset, "preview")
def preview(
    session: Session,
    name: Name,
    rows: Annotated[
        int,
        typer.Option("--rows", "-n", min=1, max=10_000, help="How many rows to show [10].", show_default=False),
    ] = 10,
    partition: Annotated[
        str | None, typer.Option("--partition", "-p", metavar="KEY", help="Only of this partition.")
    ] = None,
    revision: Revision = None,
) -> None:
    """Show a few rows of a dataset, read from its committed files."""
    from qo.api.first_rows import first_rows

    columns, values = ask(
        session,
        lambda client: first_rows(
            client, session.settings(), dataset_path(name, "/pieces"), rows, partition, revision
        ),
    )
    if session.json:
        session.output.document([dict(zip(columns, each, strict=True)) for each in values])
        return
    session.output.data(columns, [[str(cell) for cell in each] for each in values])


@command(dataset, "manifest")
def manifest(session: Session, name: Name, revision: Revision = None) -> None:
    """Print the committed files of a dataset as one JSON document.

    For published datasets the dispatcher writes the same document beside the data, below _manifests.
    """
    with require_extra():
        from qo.api.first_rows import every_page
        from qo.dispatcher.views.manifests import document

    pieces = ask(session, lambda client: every_page(client, dataset_path(name, "/pieces"), revision))
    session.output.document(document(name, pieces))


def label(each: Mapping[str, Any]) -> str:
    output = f"[{each['output']}]" if each["output"] else ""
    return f"{each['dag']}.{each['job']}{output}"
