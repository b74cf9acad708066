"""Reads and validates a definition: for commands, for deploys over HTTP and for Python declarations alike."""

from __future__ import annotations

from collections.abc import Mapping

from qo.core.pipeline.dag import Dag, resolve_defaults
from qo.pipeline.document import parse
from qo.pipeline.draft import draft_dag
from qo.pipeline.expectations import check_expectations
from qo.pipeline.inference import infer
from qo.pipeline.operators.operator_rules import check_operator
from qo.pipeline.partition_rules import check_maps
from qo.pipeline.problems import Document, Report, Spot
from qo.pipeline.query_inputs import OpenQuery, complete_queries
from qo.pipeline.references import check_references
from qo.pipeline.registry import DEFAULT, SPARK, Registry
from qo.pipeline.rules import RULES
from qo.pipeline.short_form import expand


def read(
    text: str,
    *,
    file: str = "pipeline.yaml",
    registry: Registry = DEFAULT,
    known_datasets: Mapping[str, str] | None = None,
    open_query: OpenQuery | None = None,
) -> Dag:
    """Return the resolved DAG of a YAML or JSON text. ``file``: its name in messages.

    ``known_datasets``: the pipeline that publishes each name; None: names of other pipelines are not checked.
    ``open_query`` reads the files of queries; None: their jobs have to declare what they read.
    Raises DefinitionError with everything that is wrong.
    """
    report = Report(Spot(file))
    document = parse(text, report)
    return build_dag(document, report, registry=registry, known_datasets=known_datasets, open_query=open_query)


def build_dag(
    document: Document | None,
    report: Report,
    *,
    registry: Registry,
    known_datasets: Mapping[str, str] | None,
    open_query: OpenQuery | None = None,
) -> Dag:
    """Return the resolved DAG of plain data, in the short or the explicit form.

    Raises DefinitionError, also for problems that were reported before.
    """
    if document is not None:
        explicit = complete_queries(expand(document, report), report, known_datasets, open_query)
        drafted = draft_dag(infer(explicit), report)
        for job_draft in drafted.jobs:
            if report.full:
                break
            for rule in RULES:
                rule(job_draft, report)
            runtime = registry.runtimes.get(job_draft.job.runtime)
            check_expectations(job_draft, runtime is not None and runtime.works_like == SPARK, report)
            check_operator(job_draft, registry, report)
        check_references(drafted, known_datasets, report)
        if not report.problems:
            check_maps(drafted, report)
        if not report.problems:
            return resolve_defaults(drafted.dag())
    raise report.error()
