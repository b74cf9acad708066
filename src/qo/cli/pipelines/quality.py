"""qo quality."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, cast

import typer

from qo.cli.invocation import Session, command, new_app
from qo.cli.output import one_line
from qo.cli.pipelines.dispatcher_client import ask, check_limit, pages
from qo.cli.pipelines.formatting import format_bytes, format_count, format_extent, format_timestamp
from qo.errors import UsageError

app = new_app()

HEADERS = ("at", "data", "expectation", "result", "found", "expected")
REJECTED = ("at", "data", "rows", "bytes", "files", "where", "why")


@command(app, "quality")
def quality(
    session: Session,
    dataset: Annotated[
        str | None,
        typer.Argument(metavar="DATASET", help="Only this dataset: a published name, dag.job, or dag.job[1]."),
    ] = None,
    failed: Annotated[bool, typer.Option("--failed", help="Only checks that failed.")] = False,
    rejected: Annotated[
        bool, typer.Option("--rejected", help="Outputs that were rejected by a check, and where they are kept.")
    ] = False,
    limit: Annotated[int, typer.Option("--limit", help="Show at most this many [100].", show_default=False)] = 100,
) -> None:
    """Show the results of data checks, and rejected outputs.

    Lists the expected and the actual value of each check, newest first.
    """
    check_limit(limit)
    if failed and rejected:
        raise UsageError("--failed and --rejected exclude each other: what was rejected has failed")
    path, key = ("/v1/rejections", "rejections") if rejected else ("/v1/checks", "checks")
    query = {"failed": True} if failed else {}
    items, more = ask(session, lambda client: pages(client, path, key, limit, "before", dataset=dataset, **query))
    if session.json:
        session.output.document(items)
        return
    if rejected:
        session.output.table(REJECTED, [_rejection(each) for each in items])
    else:
        session.output.table(HEADERS, [_check(each) for each in items])
    if more:
        session.output.note(f"stopped after {limit} {key}; --limit shows more")


def _check(each: Mapping[str, Any]) -> tuple[str, ...]:
    result = "met" if each["passed"] else "failed" if each["severity"] == "fail" else "warning"
    return (
        format_timestamp(each["at"]),
        _data(each),
        one_line(each["name"]),
        result,
        _value(each["observed"]),
        _value(each["expected"]),
    )


def _rejection(each: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        format_timestamp(each["at"]),
        _data(each),
        format_count(each["rows"]),
        format_bytes(each["bytes"]),
        str(len(each["files"])),
        each["location"],
        one_line(each["reason"]),
    )


def _data(each: Mapping[str, Any]) -> str:
    extent = format_extent(each)
    return f"{each['dataset']}@{extent}" if extent else str(each["dataset"])


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_value(part)}" for key, part in cast("dict[str, Any]", value).items())
    if isinstance(value, list):
        return " ".join(map(_value, cast("list[Any]", value)))
    return "" if value is None else one_line(str(value))
