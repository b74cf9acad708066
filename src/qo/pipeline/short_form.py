"""The short form of a definition: turns what an author may abbreviate into the explicit document, before validation.

    inputs: [clean, tables.1]                   - {from: {job: clean}} and {from: {job: tables, output: 1}}
    sql: SELECT ...                             operator: sql, with the query in its config
    source: manual                              source: {kind: manual}
    columns: day date, delay int                - {name: day, type: date} and {name: delay, type: int}
    files: landing/*.csv                        a source of files, and a job that ingests them
    publish: [daily]                            daily: {from: {job: daily}}

What follows from the rest, such as the runtime of an operator, is filled in by ``inference``, once ``query_inputs`` has
added what queries read. They see nothing but the document, so the short and the explicit form are one document before
editions are computed. Values of a wrong shape are left as they are, for validation to report.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from qo.core.pipeline.dag import SourceKind
from qo.core.pipeline.partitions import PartitionKind
from qo.pipeline.ddl import parse_columns
from qo.pipeline.fields import FILES
from qo.pipeline.file_fields import FORMAT
from qo.pipeline.operators.built_in import BUILT_IN
from qo.pipeline.operators.spark import INGEST, SQL
from qo.pipeline.problems import Document, Path, Report, Spot
from qo.pipeline.shape import check
from qo.pipeline.sources import SOURCES, all_source_fields
from qo.pipeline.texts import OUTPUT_NAME

Fields = dict[str, Any]

QUERY_FILE = re.compile(r"\S+\.sql\Z")
FORMATS = {
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".parquet": "parquet",
    ".txt": "text",
}
_PACKED = (".gz", ".bz2", ".zst")
_WILDCARD = re.compile(r"[*?]")
# Fields of a job with ``files`` that are about the announcement of the files.
_OF_THE_SOURCE = ("partitions", "bootstrap", "backpressure_mode")
_OF_BOTH = ("group",)


def expand(document: Document, report: Report) -> Document:
    """Return the explicit document with the same meaning. Fields that contradict a short form are reported."""
    whole: Any = document.value
    if not isinstance(whole, dict):
        return document
    value, spot = cast("Fields", whole), document.spot
    listed = value.get("jobs")
    if isinstance(listed, list):
        jobs, spots = _expand_jobs(cast("list[Any]", listed), spot.at(("jobs",)), report)
        value = {**value, "jobs": jobs}
        spot = replace(spot, parts={**spot.parts, "jobs": spots})
    if "publish" in value:
        value = {**value, "publish": _expand_publish(value["publish"])}
    report.spot = spot
    return replace(document, value=value, spot=spot)


def _expand_jobs(jobs: list[Any], spot: Spot, report: Report) -> tuple[list[Any], Spot]:
    """Return the explicit jobs and their positions: one in the short form may stand for two."""
    expanded: list[Any] = []
    parts: dict[str | int, Spot] = {}
    for at, job in enumerate(jobs):
        path: Path = ("jobs", at)
        for each in _expand_job(cast("Fields", job), path, report) if isinstance(job, dict) else [job]:
            parts[len(expanded)] = _move_spots(spot.at((at,)))
            expanded.append(each)
    return expanded, replace(spot, parts=parts)


def _move_spots(spot: Spot) -> Spot:
    """Return the spot of a job with those of its short forms where the explicit fields are looked for."""
    moved = dict(spot.parts)
    if "sql" in spot.parts:
        query = spot.parts["sql"]
        moved.setdefault("config", replace(query, parts={"query": query, "file": query}))
    if "files" in spot.parts:
        moved |= {"config": spot.parts["files"], "source": spot.parts["files"]}
    return replace(spot, parts=moved) if moved.keys() != spot.parts.keys() else spot


def _expand_job(job: Fields, path: Path, report: Report) -> list[Fields]:
    job = dict(job)
    if "source" in job:
        job["source"] = _expand_source(job["source"])
    if isinstance(job.get("inputs"), list):
        job["inputs"] = [_expand_input(each) for each in job["inputs"]]
    if "sql" in job:
        job = _expand_sql(job, path, report)
    jobs = _expand_files(job, path, report) if "files" in job else [job]
    return [_expand_columns(each) for each in jobs]


def _expand_source(source: Any) -> Any:
    if isinstance(source, str):
        return {"kind": source}
    if not isinstance(source, dict):
        return source
    fields = _split_path(cast("Fields", source))
    return fields if "kind" in fields else {**_kind_of(fields), **fields}


def _kind_of(fields: Mapping[str, Any]) -> Fields:
    """Return the kind of source that one of the fields belongs to, and no other kind has."""
    for field in all_source_fields():
        owners = [kind for kind, spec in SOURCES.items() if field.name in spec.config.by_name]
        if field.name in fields and len(owners) == 1:
            return {"kind": owners[0].value}
    return {}


def _split_path(fields: Fields) -> Fields:
    """Return the fields with a pattern at the end of the path in a field of its own."""
    path = fields.get("path")
    if "pattern" in fields or not isinstance(path, str):
        return fields
    directory, slash, name = path.rpartition("/")
    if not _WILDCARD.search(name) or _WILDCARD.search(directory):
        return fields
    directory = directory if directory or not slash else "/"
    return {**fields, "path": directory or ".", "pattern": name}


def _expand_output(text: str) -> Fields:
    job, _, output = text.partition(".")
    return {"job": job, "output": int(output)} if output else {"job": job}


def _is_output(value: Any) -> bool:
    return isinstance(value, str) and OUTPUT_NAME.matcher.match(value) is not None


def _expand_from(part: Any) -> Any:
    """Return a mapping with ``from`` with the job that it names written out."""
    if isinstance(part, dict) and _is_output(cast("Fields", part).get("from")):
        fields = cast("Fields", part)
        return {**fields, "from": _expand_output(fields["from"])}
    return cast("Any", part)


def _expand_input(each: Any) -> Any:
    return {"from": _expand_output(each)} if _is_output(each) else _expand_from(each)


def _expand_publish(publish: Any) -> Any:
    if isinstance(publish, list):
        names = cast("list[Any]", publish)
        return {name: {"from": {"job": name}} for name in names} if all(map(_is_output, names)) else names
    if isinstance(publish, dict):
        return {name: _expand_input(each) for name, each in cast("Fields", publish).items()}
    return publish


def _expand_sql(job: Fields, path: Path, report: Report) -> Fields:
    text, config = job["sql"], job.get("config", {})
    contradiction = "config" if isinstance(config, dict) and {"query", "file"} & config.keys() else "operator"
    if _contradicts(job, "sql", ("files", contradiction, "source"), path, report):
        return job
    if not isinstance(text, str) or not isinstance(config, dict):
        return {"operator": SQL.name, **job}
    rest = {name: value for name, value in job.items() if name not in ("sql", "operator", "config")}
    query = {"file" if QUERY_FILE.match(text) else "query": text}
    return {**rest, "operator": SQL.name, "config": {**cast("Fields", config), **query}}


def _contradicts(job: Fields, form: str, names: tuple[str, ...], path: Path, report: Report) -> bool:
    """Report a field that the short form stands for, and remove the short form."""
    wrong = next((name for name in names if name in job), None)
    if wrong is not None:
        message = f"{form!r} is the operator of the job and what it works on, and so is {wrong!r}"
        report.add((*path, wrong), message, "remove one of them", key=True)
        del job[form]
    return wrong is not None


def _expand_files(job: Fields, path: Path, report: Report) -> list[Fields]:
    if _contradicts(job, "files", ("operator", "source", "inputs", "config"), path, report):
        return [job]
    files = {"path": job["files"]} if isinstance(job["files"], str) else _expand_ddl(job["files"])
    if not check(files, FILES, (), Report(report.spot, limit=1)) or not isinstance(job.get("name"), str):
        return [{**job, "files": files, "operator": INGEST.name}]
    files = _split_path(files)
    if _WILDCARD.search(files["path"]):
        hint = "write one directory, and a pattern for the names of the files in it, such as landing/*.csv"
        report.add((*path, "files"), f"the directory of {files['path'][:80]!r} is a pattern", hint)
    watch = SOURCES[SourceKind.FILES].config.by_name
    source = {name: value for name, value in files.items() if name in watch}
    name = files.get("source", f"{job['name']}_files")
    announcing = {"name": name, "source": {"kind": SourceKind.FILES.value, **source}}
    announcing |= {each: job[each] for each in (*_OF_THE_SOURCE, *_OF_BOTH) if each in job}
    _find_key(announcing["source"], job.get("partitions"))
    rest = {each: value for each, value in job.items() if each not in ("files", *_OF_THE_SOURCE)}
    config = _ingest_config(files, source)
    if "format" not in config:
        hint = f"write 'format: {' | '.join(FORMAT.values)}', or a path such as landing/*.csv"
        report.add((*path, "files"), "the names of the files do not say what format they have", hint)
        config["format"] = FORMAT.values[0]
    return [announcing, {**rest, "operator": INGEST.name, "inputs": [{"from": {"job": name}}], "config": config}]


def _find_key(source: Fields, partitions: Any) -> None:
    """Where partitions have a kind, take what the one * of the pattern stands for as their keys."""
    kind = cast("Fields", partitions).get("kind") if isinstance(partitions, dict) else None
    pattern = source.get("pattern", "")
    if kind not in (None, PartitionKind.TEXT) and _WILDCARD.findall(pattern) == ["*"] and "key" not in source:
        source["key"] = pattern.replace("*", "{key}")


def _ingest_config(files: Fields, source: Fields) -> Fields:
    """Return how the files are read: in the format of their names, and CSV with a header."""
    of_ingest = INGEST.config.by_name if INGEST.config is not None else {}
    config = {each: value for each, value in files.items() if each in of_ingest and each not in source}
    format_ = config.get("format", _format_of(source.get("pattern", source["path"])))
    if format_ is not None:
        config["format"] = format_
    if config.get("format") == "csv":
        config["options"] = {"header": True, **config.get("options", {})}
    return config


def _format_of(name: str) -> str | None:
    for suffix in _PACKED:
        name = name.removesuffix(suffix)
    return FORMATS.get(name[name.rfind(".") :].lower()) if "." in name else None


def _expand_columns(job: Fields) -> Fields:
    spec = BUILT_IN.get(str(job.get("operator")))
    if spec is None or spec.config is None or "columns" not in spec.config.by_name or "config" not in job:
        return job
    return {**job, "config": _expand_ddl(job["config"])}


def _expand_ddl(config: Any) -> Any:
    fields = cast("Fields", config) if isinstance(config, dict) else {}
    columns = fields.get("columns")
    return {**fields, "columns": parse_columns(columns)} if isinstance(columns, str) else cast("Any", config)
