"""A directory of queries and nothing else, as a pipeline: no definition is written at all.

    reports/daily.sql      the job daily, and the dataset daily
    reports/weekly.sql     the job weekly, which may read daily

The pipeline is named after its directory. Every table is published, not only those that no other reads: so a query that
is added or removed never takes a dataset away from readers elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qo.core.pipeline.dag import Dag
from qo.errors import UsageError
from qo.pipeline.document import plain
from qo.pipeline.parsing import build_dag
from qo.pipeline.problems import Document, Report, Spot
from qo.pipeline.query_inputs import OpenQuery
from qo.pipeline.registry import DEFAULT, Registry
from qo.pipeline.texts import NAME

QUERY = ".sql"


@dataclass(frozen=True, slots=True)
class QueryFolder:
    """A directory with queries, and without any file that could be a definition."""

    directory: Path

    def document(
        self,
        *,
        registry: Registry = DEFAULT,
        known_datasets: Mapping[str, str] | None = None,
        open_query: OpenQuery | None = None,
    ) -> Dag:
        """Return the resolved DAG. Raises DefinitionError, whose problems point to the files of the queries, and
        UsageError for a file or directory whose name is none of a job or a pipeline."""
        name = _pipeline_name(self.directory)
        queries = list_queries(self.directory)
        jobs = [{"name": _job_name(each), "sql": each.name} for each in queries]
        report = Report(Spot(str(self.directory)))
        whole: dict[str, Any] = {"name": name, "jobs": jobs, "publish": [each["name"] for each in jobs]}
        document = Document(plain(whole, report).value, _spots(self.directory, queries))
        return build_dag(document, report, registry=registry, known_datasets=known_datasets, open_query=open_query)


def list_queries(directory: Path) -> list[Path]:
    """Return the queries of a directory, by name. Hidden files, as editors leave them, are none."""
    files = (each for each in directory.glob(f"*{QUERY}") if each.is_file() and not each.name.startswith("."))
    return sorted(files, key=lambda each: each.name)


def _pipeline_name(directory: Path) -> str:
    name = directory.resolve().name
    if NAME.matcher.match(name) is None:
        raise UsageError(
            f"a directory of queries is named as its pipeline, and {name!r} is no name of one: rename the directory "
            f"({NAME.form}), or add a pipeline.yaml"
        )
    return name


def _job_name(query: Path) -> str:
    if NAME.matcher.match(query.stem) is None:
        raise UsageError(
            f"{query} is named as its table, and {query.stem!r} is no name of one: rename the file ({NAME.form})"
        )
    return query.stem


def _spots(directory: Path, queries: list[Path]) -> Spot:
    """Return the positions of a document that nobody has written: each job is its query's file."""
    jobs: dict[str | int, Spot] = {at: Spot(str(each)) for at, each in enumerate(queries)}
    return Spot(str(directory), parts={"jobs": Spot(str(directory), parts=jobs)})
