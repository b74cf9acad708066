"""Completes jobs whose query says what they read: every table that it names becomes an input.

The result is the document that an author would have written by hand. So all other rules hold for it, and a job has the
same edition whether its inputs are declared or not. A plain name is a job of the pipeline or a published dataset; a
name with a dot is that of a pipeline and its dataset. Names of three parts, and paths of files, are left to Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from qo.pipeline.operators.built_in import BUILT_IN
from qo.pipeline.problems import Document, Path, Report, Spot
from qo.pipeline.query_names import From, Names, WrongName, is_outside, member, names_of
from qo.pipeline.query_tables import TableName, UnreadableQuery, find_tables

Input = dict[str, Any]  # As in a document.


@dataclass(frozen=True, slots=True)
class QueryFile:
    name: str  # In messages.
    text: str


OpenQuery = Callable[[str], QueryFile]  # By the name that a config has.


def complete_queries(
    document: Document, report: Report, others: Mapping[str, str] | None, open_query: OpenQuery | None
) -> Document:
    """Return the document with the inputs that queries read.

    ``others``: the pipeline that publishes each dataset; None: not known. ``open_query`` reads a query that lies in a
    file; None: it is not at hand, so its job has to declare what it reads. Problems are reported where queries have
    them.
    """
    whole: Any = document.value
    jobs = member(whole, "jobs")
    if not isinstance(jobs, list):
        return document
    names = names_of(whole, others)
    completed = [
        _Completion(document, report, names, raw, ("jobs", at)).complete(open_query)
        if _has_query(raw) and not report.full
        else raw
        for at, raw in enumerate(cast("list[Any]", jobs))
    ]
    return replace(document, value={**whole, "jobs": completed})


def takes_query(operator: str) -> bool:
    spec = BUILT_IN.get(operator)
    return spec is not None and spec.takes_query_file


def write_plain_names(query: str, dag: str, inputs: Sequence[Input]) -> str:
    """Return the query with the names of inputs in place of names with a dot, which Spark would look up elsewhere."""
    try:
        tables = find_tables(query)
    except UnreadableQuery:
        return query
    for each in reversed(tables):
        readers = _readers(each, dag, inputs)
        if len(each.parts) == 2 and readers:
            query = query[: each.start] + readers[0] + query[each.end :]
    return query


def _has_query(raw: Any) -> bool:
    """Whether a job has a query that may say what it reads. Wrong shapes are reported elsewhere."""
    operator, config, inputs = member(raw, "operator"), member(raw, "config"), member(raw, "inputs")
    if not isinstance(operator, str) or not takes_query(operator) or not isinstance(member(raw, "name"), str):
        return False
    if "source" in raw or raw.get("activation") == "source":
        return False
    if inputs is not None and not _are_mappings(inputs):
        return False
    return isinstance(member(config, "query"), str) != isinstance(member(config, "file"), str)


def _are_mappings(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, dict) for each in cast("list[Any]", value))


def _source(each: Input) -> tuple[str, str]:
    """Return which output an input reads. No query can name any but the first of a job."""
    from_ = member(each, "from")
    if isinstance(member(from_, "dataset"), str):
        return ("dataset", from_["dataset"])
    job = member(from_, "job")
    return ("job", job) if isinstance(job, str) and member(from_, "output") in (None, 0) else ("", "")


def _name(each: Input) -> str:
    name = each.get("as") or member(member(each, "from"), "job") or member(member(each, "from"), "dataset")
    return name if isinstance(name, str) else ""


def _readers(table: TableName, dag: str, inputs: Sequence[Input]) -> list[str]:
    """Return the names of the inputs that read what a name in a query stands for."""
    *qualifier, name = table.parts
    sources = [("dataset", name)]
    if not qualifier or qualifier[0] == dag:
        sources.append(("job", name))
    return [_name(each) for each in inputs if _source(each) in sources]


class _Completion:
    """Adds what the query of one job reads to its inputs."""

    def __init__(self, document: Document, report: Report, names: Names, job: dict[str, Any], path: Path) -> None:
        self._document = document
        self._report = report
        self._names = names
        self._job = job
        self._path = path
        self._declared: list[Input] = job.get("inputs") or []
        self._added: dict[str, tuple[Input, Spot]] = {}  # By the name in the operator.
        self._query = QueryFile("", "")

    def complete(self, open_query: OpenQuery | None) -> dict[str, Any]:
        """Return the job with all its inputs."""
        config: dict[str, Any] = self._job["config"]
        if "query" in config:
            self._query = QueryFile("", config["query"])
        elif open_query is not None:
            self._query = open_query(config["file"])
        else:
            self._require_declared()
            return self._job
        try:
            tables = find_tables(self._query.text)
        except UnreadableQuery as error:
            if not self._declared:  # Spark may understand it.
                hint = "correct it, or list what it reads under 'inputs'"
                self._refuse(error.line, error.column, f"cannot be read: {error}", hint)
            return self._job
        problems = sum(not self._add(each) for each in tables if not is_outside(each))
        if not self._declared and not self._added and not problems:
            hint = "name a job or a published dataset in its FROM"
            self._refuse(1, 1, "reads nothing, so nothing starts it", hint)
        return self._completed()

    def _require_declared(self) -> None:
        if not self._declared:
            message = f"what {self._job['name']!r} reads is not known: the file of its query is not at hand"
            hint = "deploy it with qo dag deploy, or list what it reads under 'inputs'"
            self._report.add((*self._path, "config", "file"), message, hint)

    def _add(self, table: TableName) -> bool:
        """Add the input that a table stands for, unless the job has it. False: a problem was reported."""
        is_plain, name = len(table.parts) == 1, table.parts[-1]
        used = {*map(_name, self._declared), *self._added}
        if is_plain and name in used:
            return True
        inputs = [*self._declared, *(each for each, _ in self._added.values())]
        readers = _readers(table, self._names.dag, self._declared if is_plain else inputs)
        if len(readers) == 1 and not is_plain:
            return True
        resolved = self._rename(table, readers) if readers else self._names.resolve(table, self._job["name"])
        if isinstance(resolved, WrongName):
            self._refuse(table.line, table.column, resolved.message, resolved.hint)
            return False
        added = "_".join(table.parts) if name in used else name
        renamed = {"as": added} if added != name else {}
        self._added[added] = ({"from": resolved, **renamed}, self._locate(table.line, table.column)[0])
        return True

    def _rename(self, table: TableName, readers: Sequence[str]) -> From | WrongName:
        """Return the problem of a name whose input the job calls otherwise, or has twice."""
        names = " or ".join(readers)
        return WrongName(f"reads {str(table)!r}, which this job calls {names}", f"write {names} in the query")

    def _completed(self) -> dict[str, Any]:
        """Return the job with its inputs: those that are declared, then the others by name."""
        added = [self._added[name] for name in sorted(self._added)]
        inputs = [*self._declared, *(each for each, _ in added)]
        job = dict(self._job)
        if added:
            job["inputs"] = inputs
            self._place([spot for _, spot in added])
        if "query" in job["config"]:
            text = write_plain_names(self._query.text, self._names.dag, inputs)
            job["config"] = {**job["config"], "query": text}
        return job

    def _place(self, added: Sequence[Spot]) -> None:
        """Make problems of added inputs point to the query."""
        spot = self._document.spot.at(self._path)
        inputs = spot.parts.get("inputs") or added[0]
        parts = {**inputs.parts, **{len(self._declared) + at: each for at, each in enumerate(added)}}
        spot.parts = {**spot.parts, "inputs": replace(inputs, parts=parts)}

    def _refuse(self, line: int, column: int, message: str, hint: str) -> None:
        spot, is_exact = self._locate(line, column)
        where = "" if is_exact or line == 1 else f"line {line} of "
        self._report.add_at(spot, f"{where}the query of {self._job['name']!r} {message}", hint)

    def _locate(self, line: int, column: int) -> tuple[Spot, bool]:
        """Return where a place of the query is in its file, and whether that is exact."""
        if self._query.name:
            return Spot(self._query.name, line, column), True
        return self._document.locate((*self._path, "config", "query"), self._query.text, line, column)
