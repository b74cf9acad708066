"""qo dataset: what pipelines have made, and what of it is to be no more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from qo.cli.pipelines.dispatcher import ask, check_limit, extra, pages, route
from qo.cli.pipelines.emit import fresh_key
from qo.cli.pipelines.formatting import shown_bytes, shown_count, shown_extent, shown_instant
from qo.cli.session import Session, command, new_app, new_group
from qo.core.words import plural

app = new_app()
datasets = new_group(app, "dataset", "Show the data that pipelines have made, and remove it.")

Name = Annotated[
    str,
    typer.Argument(metavar="DATASET", help="A published name, or dag.job, or dag.job[1] for its second output."),
]
Generation = Annotated[
    str | None, typer.Option("--generation", metavar="ID", help="Of this generation instead of the current one.")
]
Revision = Annotated[
    int | None, typer.Option("--revision", metavar="N", min=0, help="As of this version; see qo dataset history.")
]
Limit = Annotated[int, typer.Option("--limit", help="Show at most this many [100].", show_default=False)]


def path_of(name: str, more: str = "") -> str:
    return route("datasets", name) + more


@command(datasets, "list")
def list_(
    session: Session,
    dag: Annotated[str | None, typer.Option("--dag", help="Only those of this DAG.")] = None,
    limit: Limit = 100,
) -> None:
    """List the datasets."""
    check_limit(limit)
    found, more = ask(session, lambda client: pages(client, "/v1/datasets", "datasets", limit, dag=dag))
    if session.json:
        session.output.document(found)
        return
    headers = ("dataset", "published as", "current generation")
    rows = [(label(each), each["name"] or "", each["generation_id"] or "") for each in found]
    session.output.table(headers, rows)
    _note(session, more, limit)


@command(datasets, "show")
def show(session: Session, name: Name) -> None:
    """Show a dataset, its generations and its readers."""
    answer = ask(session, lambda client: client.get(path_of(name)))
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
        }
    )
    session.output.line("")
    headers = ("generation", "status", "versions", "partitions", "segments", "cursor", "rows", "bytes", "created")
    session.output.table(headers, [_generation(each) for each in answer["generations"]])


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
        shown_count(each["partitions"]),
        shown_count(each["segments"]),
        shown_count(each["cursor"]),
        shown_count(each["rows"]),
        shown_bytes(each["bytes"]),
        shown_instant(each["created_at"]),
    )


@command(datasets, "partitions")
def partitions(
    session: Session,
    name: Name,
    generation: Generation = None,
    stale: Annotated[
        bool, typer.Option("--stale", help="Only those made from inputs that have changed since.")
    ] = False,
    limit: Limit = 100,
) -> None:
    """List the committed partitions of a dataset.

    One is stale if it was made from inputs that have changed since.
    """
    check_limit(limit)
    found, more = ask(
        session,
        lambda client: pages(
            client,
            path_of(name, "/partitions"),
            "partitions",
            limit,
            generation_id=generation,
            stale=True if stale else None,
        ),
    )
    if session.json:
        session.output.document(found)
        return
    headers = ("partition", "rows", "bytes", "files", "revision", "task", "committed", "stale", "location")
    rows = [
        (
            shown_extent(each),
            shown_count(each["rows"]),
            shown_bytes(each["bytes"]),
            str(each["files"]),
            str(each["revision"]),
            each["task_id"],
            shown_instant(each["committed_at"]),
            "; ".join(one["text"] for one in each["stale_inputs"]),
            each["location"] or "",
        )
        for each in found
    ]
    session.output.table(headers, rows)
    _note(session, more, limit)


@command(datasets, "events")
def events(
    session: Session,
    name: Name,
    partition: Annotated[
        str | None, typer.Option("--partition", "-p", metavar="KEY", help="Only of this partition.")
    ] = None,
    limit: Limit = 100,
) -> None:
    """List the events of a dataset, newest first, and what became of each."""
    check_limit(limit)
    found, more = ask(
        session,
        lambda client: pages(client, path_of(name, "/events"), "events", limit, "before", partition_key=partition),
    )
    if session.json:
        session.output.document(found)
        return
    rows = [(shown_instant(each["received_at"]), shown_extent(each), *_fate(each)) for each in found]
    session.output.table(("received", "what", "state", "readers"), rows)
    _note(session, more, limit)


def _fate(each: Mapping[str, Any]) -> tuple[str, str]:
    state = each["state"] + (f" ({each['reason']})" if each["reason"] else "")
    readers = [
        f"{one['dag']}.{one['job']} {one['outcome']}" + (f" ({one['reason']})" if one["reason"] else "")
        for one in each["deliveries"]
    ]
    return state, ", ".join(readers)


@command(datasets, "lineage")
def lineage(
    session: Session,
    name: Name,
    partition: Annotated[str, typer.Option("--partition", "-p", metavar="KEY", help="The partition.")],
) -> None:
    """Show what a partition was made from, and what was made from it."""
    answer = ask(session, lambda client: client.get(path_of(name, "/lineage"), partition_key=partition))
    if session.json:
        session.output.document(answer)
        return
    rows = [
        (way, str(edge["depth"]), edge["dataset"], _read(edge), str(edge["revision"] or ""), edge["task_id"])
        for way, edges in (("from", answer["upstream"]), ("into", answer["downstream"]))
        for edge in edges
    ]
    session.output.table(("way", "steps", "dataset", "what", "revision", "task"), rows)
    if answer["more"]:
        session.output.note("there is more than is shown: ask for the lineage of what is at the end")


def _read(edge: Mapping[str, Any]) -> str:
    if edge["cursor_upto"] is not None:
        return f"cursor ({edge['cursor_after']}, {edge['cursor_upto']}]"
    if edge["partition_key"] is not None:
        return edge["partition_key"]
    pieces = "" if edge["pieces"] is None else f", {plural(edge['pieces'], 'piece')}"
    return f"whole as of {edge['as_of'] or 0}{pieces}"


@command(datasets, "history")
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
    found, more = ask(
        session,
        lambda client: pages(
            client,
            path_of(name, "/commits"),
            "commits",
            limit,
            "before",
            partition_key=partition,
            generation_id=generation,
        ),
    )
    if session.json:
        session.output.document(found)
        return
    headers = ("revision", "what", "rows", "bytes", "task", "committed", "replaced by")
    rows = [
        (
            str(each["revision"]),
            shown_extent(each),
            shown_count(each["rows"]),
            shown_bytes(each["bytes"]),
            each["task_id"],
            shown_instant(each["committed_at"]),
            _end_of(each),
        )
        for each in found
    ]
    session.output.table(headers, rows)
    _note(session, more, limit)


def _end_of(each: Mapping[str, Any]) -> str:
    if each["removed"]:
        return "(it was removed)"
    replaced = each["replaced_by"]
    return "" if replaced is None else f"{replaced} at {shown_instant(each['replaced_at'])}"


@command(datasets, "remove")
def remove(
    session: Session,
    name: Name,
    partitions: Annotated[
        list[str], typer.Argument(metavar="PARTITION...", help="Keys of partitions; see qo dataset partitions.")
    ],
    reason: Annotated[
        str | None, typer.Option("--reason", metavar="TEXT", help="Why, for those who ask qo why.")
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", help="Idempotency key: the same key again removes nothing.")
    ] = None,
) -> None:
    """Remove partitions of a dataset, and what was made of them alone.

    Versions that are live have them no more, and later ones do not make anything of them. Earlier revisions keep them.
    """
    body: dict[str, Any] = {"partitions": partitions, "key": key or fresh_key()}
    if reason is not None:
        body["reason"] = reason
    answer = ask(session, lambda client: client.post(path_of(name, "/removals"), body))
    if session.json:
        session.output.document(answer)
        return
    session.output.line(f"removed {plural(len(answer['removed']), 'partition')} of {name}")
    if answer["already"]:
        session.output.note(f"not there any more: {', '.join(answer['already'])}")


@command(datasets, "diff")
def diff(
    session: Session,
    name: Name,
    first: Annotated[int, typer.Argument(metavar="REVISION", min=0, help="The earlier version; 0: nothing.")],
    second: Annotated[int, typer.Argument(metavar="REVISION", min=0, help="The later one.")],
    generation: Generation = None,
    limit: Limit = 100,
) -> None:
    """Show what changed in a dataset from one revision to another."""
    check_limit(limit)
    found, more = ask(
        session,
        lambda client: pages(
            client,
            path_of(name, "/changes"),
            "changes",
            limit,
            from_revision=first,
            to_revision=second,
            generation_id=generation,
        ),
    )
    if session.json:
        session.output.document(found)
        return
    rows = [
        (each["change"], shown_extent(each), f"{each['rows']:+,}", f"{each['bytes']:+,}", str(each["revision"]))
        for each in found
    ]
    session.output.table(("change", "what", "rows", "bytes", "revision"), rows)
    _note(session, more, limit)


@command(datasets, "preview")
def preview(
    session: Session,
    name: Name,
    rows: Annotated[
        int, typer.Option("--rows", "-n", min=1, max=10_000, help="So many [10].", show_default=False)
    ] = 10,
    partition: Annotated[
        str | None, typer.Option("--partition", "-p", metavar="KEY", help="Only of this partition.")
    ] = None,
    revision: Revision = None,
) -> None:
    """Show a few rows of a dataset, read from its committed files."""
    from qo.cli.pipelines.preview import first_rows

    columns, found = ask(
        session,
        lambda client: first_rows(client, session.settings(), path_of(name, "/pieces"), rows, partition, revision),
    )
    if session.json:
        session.output.document([dict(zip(columns, each, strict=True)) for each in found])
        return
    session.output.table(columns, [[str(cell) for cell in each] for each in found])


@command(datasets, "manifest")
def manifest(session: Session, name: Name, revision: Revision = None) -> None:
    """Print the committed files of a dataset as one JSON document.

    Of published datasets the dispatcher writes the same beside the data, below _manifests.
    """
    with extra():
        from qo.cli.pipelines.preview import every_page
        from qo.dispatcher.views.manifests import document

    found = ask(session, lambda client: every_page(client, path_of(name, "/pieces"), revision))
    session.output.document(document(name, found))


def label(each: Mapping[str, Any]) -> str:
    output = f"[{each['output']}]" if each["output"] else ""
    return f"{each['dag']}.{each['job']}{output}"


def _note(session: Session, more: bool, limit: int) -> None:
    if more:
        session.output.note(f"stopped after {limit}; --limit shows more")
