"""qo datasets: what pipelines have made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import quote

import typer

from qo.cli.dispatching import ask, check_limit, pages
from qo.cli.session import Session, command, new_app, new_group
from qo.cli.timing import shown_bytes, shown_count, shown_extent, shown_instant

app = new_app()
datasets = new_group(app, "datasets", "Look at what pipelines have made.")

Name = Annotated[
    str,
    typer.Argument(metavar="DATASET", help="A published name, or dag.job, or dag.job[1] for its second output."),
]
Limit = Annotated[int, typer.Option("--limit", help="Show at most this many [100].", show_default=False)]


def path_of(name: str, more: str = "") -> str:
    return f"/v1/datasets/{quote(name, safe='')}{more}"


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
        }
    )
    session.output.line("")
    headers = ("generation", "status", "versions", "partitions", "segments", "cursor", "rows", "bytes", "created")
    session.output.table(headers, [_generation(each) for each in answer["generations"]])


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
    generation: Annotated[
        str | None,
        typer.Option("--generation", metavar="ID", help="Of this generation instead of the current one."),
    ] = None,
    limit: Limit = 100,
) -> None:
    """List the committed partitions of a dataset."""
    check_limit(limit)
    found, more = ask(
        session,
        lambda client: pages(client, path_of(name, "/partitions"), "partitions", limit, generation_id=generation),
    )
    if session.json:
        session.output.document(found)
        return
    headers = ("partition", "rows", "bytes", "files", "revision", "task", "committed")
    rows = [
        (
            shown_extent(each),
            shown_count(each["rows"]),
            shown_bytes(each["bytes"]),
            str(each["files"]),
            str(each["revision"]),
            each["task_id"],
            shown_instant(each["committed_at"]),
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
    return edge["partition_key"] or "all"


def label(each: Mapping[str, Any]) -> str:
    output = f"[{each['output']}]" if each["output"] else ""
    return f"{each['dag']}.{each['job']}{output}"


def _note(session: Session, more: bool, limit: int) -> None:
    if more:
        session.output.note(f"stopped after {limit}; --limit shows more")
