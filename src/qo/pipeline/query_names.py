"""What a name in a query stands for: a job of the pipeline, or a published dataset.

The answer depends on the pipeline alone, so it is the same before a deploy, where the datasets of other pipelines are
not known, and at the dispatcher, which refuses those that nobody publishes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from qo.pipeline.problems import closest
from qo.pipeline.query_tables import TableName
from qo.pipeline.texts import NAME

# Formats that Spark reads from a path, as in parquet.`/data/old`.
_FORMATS = frozenset({"avro", "binaryfile", "csv", "delta", "json", "orc", "parquet", "text", "xml"})

From = dict[str, str]  # As in a document: {"job": name} or {"dataset": name}.


@dataclass(frozen=True, slots=True)
class WrongName:
    """A name that stands for nothing, or for two things."""

    message: str
    hint: str


@dataclass(frozen=True, slots=True)
class Names:
    """What the queries of a pipeline can name."""

    dag: str
    jobs: frozenset[str]
    publish: Mapping[str, str]  # Job by the name under which this pipeline publishes one of its outputs.
    others: Mapping[str, str] | None  # Pipeline by published dataset; None: not known.

    def resolve(self, table: TableName, own: str) -> From | WrongName:
        """Return what a name stands for in the query of the job ``own``, which never means itself."""
        *qualifier, name = table.parts
        if not qualifier or qualifier[0] == self.dag:
            if name in self.jobs and name != own:
                return self._resolve_job(name)
            if name in self.publish:
                return {"dataset": name}
        if (not qualifier or qualifier[0] != self.dag) and NAME.matcher.match(name):
            if self.others is None:
                return {"dataset": name}
            owner = self.others.get(name)
            if owner is not None and qualifier in ([], [owner]):
                return {"dataset": name}
        return self._unknown(table, own)

    def _resolve_job(self, name: str) -> From | WrongName:
        publisher = self.publish.get(name, name)
        if publisher == name:
            return {"job": name}
        message = f"reads {name!r}, which is a job here, and also the published dataset of {publisher!r}"
        return WrongName(message, "list the one that is meant under 'inputs'")

    def _unknown(self, table: TableName, own: str) -> WrongName:
        others = self.others or {}
        if len(table.parts) == 1:
            candidates = {*self.jobs, *self.publish, *others} - {own}
            catalog = "spark_catalog.default"
        else:
            inside = {f"{self.dag}.{each}" for each in (*self.jobs - {own}, *self.publish)}
            candidates = {f"{dag}.{name}" for name, dag in others.items()} | inside
            catalog = "spark_catalog"
        namesakes = [each for each in candidates if each.endswith(f".{table.parts[-1]}")]
        hint = f"did you mean {min(namesakes)!r}?" if namesakes else closest(str(table), candidates)
        if not hint.startswith("did you mean"):
            hint = f"publish it first, or write {catalog}.{table} for a table of Spark's own catalog"
        if table.parts in ((own,), (self.dag, own)):
            return WrongName(f"reads {str(table)!r}, which is the job itself", hint)
        return WrongName(f"reads {str(table)!r}, and there is no such job or published dataset", hint)


def names_of(whole: Mapping[str, Any], others: Mapping[str, str] | None) -> Names:
    """Return the names of a document, whose parts may have any shape."""
    publish: dict[str, str] = {}
    published = whole.get("publish")
    for name, each in cast("dict[Any, Any]", published if isinstance(published, dict) else {}).items():
        producer = member(member(each, "from"), "job")
        if isinstance(producer, str):
            publish[str(name)] = producer
    jobs = (member(each, "name") for each in whole["jobs"])
    return Names(
        str(whole.get("name")), frozenset(each for each in jobs if isinstance(each, str)), publish, others
    )


def member(value: Any, name: str) -> Any:
    """Return a field of a value, None if it is not a mapping or has no such field."""
    return cast("dict[str, Any]", value).get(name) if isinstance(value, dict) else None


def is_outside(table: TableName) -> bool:
    """Whether Spark alone knows what a name stands for: one of three parts, or a path such as parquet.`/data/old`."""
    if len(table.parts) > 2:
        return True
    return len(table.parts) == 2 and table.parts[0] in _FORMATS and NAME.matcher.match(table.parts[1]) is None
