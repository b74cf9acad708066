"""qo dataset show --columns and --quality: what is known of columns, and how a dataset moved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qo.cli.invocation import Session
from qo.cli.pipelines.dataset_options import dataset_path
from qo.cli.pipelines.dispatcher_client import ask
from qo.cli.pipelines.formatting import format_bytes, format_count, format_extent, format_timestamp
from qo.core.pipeline.columns import describe_type
from qo.core.words import plural


def show_columns(session: Session, name: str, partition: str | None) -> None:
    path = dataset_path(name, "/columns")
    answer = ask(session, lambda client: client.get(path, partition_key=partition))
    if session.json:
        session.output.document(answer)
        return
    headers = ("column", "type", "nulls", "share", "distinct", "least", "greatest", "bytes")
    session.output.table(headers, [_column(each) for each in answer["columns"] or ()])
    if answer["columns"] is None:
        session.output.note("its columns are not known yet: they come with its first commit")
    elif not answer["complete"]:
        session.output.note(
            f"of {format_count(answer['rows'])} rows in {plural(answer['measured'], 'commit')}, the newest ones: the "
            "others were not looked at, or their workers measured nothing"
        )


def _column(each: Mapping[str, Any]) -> tuple[str, ...]:
    share = each["null_share"]
    return (
        each["name"],
        describe_type(each["type"]),
        format_count(each["nulls"]),
        "" if share is None else f"{share:.1%}",
        format_count(each["distinct"]),
        _bound(each["least"], shortened=each["least_shortened"]),
        _bound(each["greatest"], shortened=each["greatest_shortened"]),
        format_bytes(each["bytes"]),
    )


def _bound(text: str | None, *, shortened: bool) -> str:
    return "" if text is None else f"{text}…" if shortened else text


def show_quality(
    session: Session, name: str, by: str, column: str | None, partition: str | None, limit: int
) -> None:
    path = dataset_path(name, "/trend")
    answer = ask(
        session,
        lambda client: client.get(path, by=by, column=column, partition_key=partition, limit=limit),
    )
    if session.json:
        session.output.document(answer)
        return
    nulls = "nulls" if column is None else f"nulls of {column}"
    headers = ("when", "what", "revision", "rows", "bytes", nulls, "passed", "warned", "failed", "rejected")
    session.output.table(headers, [_point(each) for each in answer["points"]])
    if answer["expectations"]:
        session.output.line("")
        rows = [
            (each["name"], each["severity"], format_count(each["passed"]), format_count(each["violated"]))
            for each in answer["expectations"]
        ]
        session.output.table(("expectation", "severity", "passed", "violated"), rows)
    if answer["next"] is not None:
        session.output.note(f"stopped after {limit}; --limit shows more, 200 at most")


def _point(each: Mapping[str, Any]) -> tuple[str, ...]:
    rejected = "" if not each["rejected"] else plural(each["rejected"], "output")
    if each["rejected_rows"] is not None:
        rejected += f", {plural(each['rejected_rows'], 'row')}"
    return (
        format_timestamp(each["at"]),
        format_extent(each),
        format_count(each["revision"]) + (" (replaced)" if each["replaced"] else ""),
        format_count(each["rows"]),
        format_bytes(each["bytes"]),
        format_count(each["nulls"]),
        *(format_count(each[name] or None) for name in ("passed", "warned", "failed")),
        rejected,
    )
