"""Rules for the sinks of published datasets: each has the fields of its kind, and a place of its own."""

from __future__ import annotations

from qo.core.pipeline.dag import Publish, SinkKind
from qo.core.pipeline.file_pattern import is_numbered, pattern_problem
from qo.core.pipeline.sink import SINK_FIELDS, find_sink, table_problem
from qo.pipeline.draft import DagDraft
from qo.pipeline.problems import Path, Report

_KINDS_OF = {field: kind for kind, fields in SINK_FIELDS.items() for field in fields}
_WHAT = {
    SinkKind.POSTGRES: "datasets that are copied to a database",
    SinkKind.FILES: "datasets that are copied to files",
}


def check_sinks(draft: DagDraft, report: Report) -> None:
    owners: dict[tuple[str | None, ...], str] = {}
    for name, publish in draft.publish.items():
        path: Path = ("publish", name)
        _check_fields(name, publish, path, report)
        sink = find_sink(name, publish)
        if sink is None:
            continue
        field = SINK_FIELDS[sink.kind][0]
        spot = (*path, field if getattr(publish, field) is not None else "to")
        if sink.kind is SinkKind.POSTGRES:
            if (problem := table_problem(publish.table or name)) is not None:
                report.add(spot, problem, "write another 'table:'")
        else:
            _check_file(sink.file or "", publish, spot, report)
        owner = owners.setdefault(sink.key, name)
        if owner != name:
            report.add(spot, f"{owner!r} is copied to {sink} already", f"write another '{field}:'")


def _check_fields(name: str, publish: Publish, path: Path, report: Report) -> None:
    for field, kind in _KINDS_OF.items():
        if getattr(publish, field) is not None and publish.to is not kind:
            message = f"{field!r} of {name!r} is for {_WHAT[kind]}"
            report.add((*path, field), message, f"write 'to: {kind}' beside it, or remove it", key=True)


def _check_file(file: str, publish: Publish, spot: Path, report: Report) -> None:
    if (problem := pattern_problem(file)) is not None:
        report.add(spot, *problem)
    elif publish.keep_seconds and not is_numbered(file):
        message = "'keep_seconds' is for files with names of their own for each change"
        report.add((*spot[:-1], "keep_seconds"), message, "write {number} into 'file', or remove it", key=True)
