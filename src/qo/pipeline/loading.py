"""Loads a pipeline from a file or a Python declaration, and completes it for a deploy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from qo.core.pipeline.dag import Dag, Job
from qo.errors import QoError, UsageError
from qo.pipeline.code.bundling import Bundle, Project, pack, read_project
from qo.pipeline.code.fingerprint import fingerprint
from qo.pipeline.code.modules import Unresolvable
from qo.pipeline.operators.built_in import BUILT_IN
from qo.pipeline.parsing import read
from qo.pipeline.query_inputs import QueryFile, write_plain_names
from qo.pipeline.registry import DEFAULT, FUNCTION, Registry
from qo.pipeline.rendering import to_yaml
from qo.pipeline.target import resolve


def load(
    target: str, *, registry: Registry = DEFAULT, known_datasets: Mapping[str, str] | None = None
) -> tuple[Dag, str]:
    """Return the resolved DAG and the text of its definition, which is YAML for a declaration in Python.

    Raises UsageError for a target that cannot be opened or imported, and DefinitionError for mistakes in it.
    """
    resolved = resolve(target)

    def open_query(name: str) -> QueryFile:
        path = str(resolved.directory / name)
        return QueryFile(path, _read_text(path))

    context: dict[str, Any] = {"registry": registry, "known_datasets": known_datasets, "open_query": open_query}
    if resolved.pipeline is None:
        text = _read_text(str(resolved.file))
        return read(text, file=str(resolved.file), **context), text
    dag = resolved.pipeline.document(**context)
    return dag, to_yaml(dag)


@dataclass(frozen=True, slots=True)
class DeployableDefinition:
    """A definition that contains everything that decides what its jobs make."""

    dag: Dag
    source: str  # The text to deploy.
    warnings: tuple[str, ...] = ()  # About operators whose code is not in it.
    bundle: Bundle | None = None  # The code of its functions; None: all jobs run the workers' own.


def load_for_deploy(target: str, *, code: bool = True, registry: Registry = DEFAULT) -> DeployableDefinition:
    """Load a pipeline, write queries from files into it, and add the fingerprint of each function's code, unless
    ``code`` is False or the job sets it.

    The code of these functions is packed into a bundle; all others run what their workers have. Raises UsageError for
    a query file that cannot be read, or a file to include that does not exist.
    """
    dag, text = load(target, registry=registry)
    home = resolve(target).directory
    roots = tuple(dict.fromkeys((home, Path.cwd())))
    packing = _Packing(roots, read_project(home))
    warnings: list[str] = []
    jobs: list[Job] = []
    for job in dag.jobs:
        complete = _with_query(dag.name, job, home)
        if code and complete.code is None and registry.get(job.runtime).functions and FUNCTION.match(job.operator):
            complete = packing.add(complete, warnings)
        jobs.append(complete)
    bundle = packing.bundle()
    if tuple(jobs) == dag.jobs:
        return DeployableDefinition(dag, text, tuple(warnings), bundle)
    filled = replace(dag, jobs=tuple(jobs))
    return DeployableDefinition(filled, _definition_text(text, dag, filled, registry), tuple(warnings), bundle)


class _Packing:
    """Collects the jobs whose code is packed with the version."""

    def __init__(self, roots: Sequence[Path], project: Project) -> None:
        self._roots = roots
        self._project = project
        self._operators: dict[str, str] = {}

    def add(self, job: Job, warnings: list[str]) -> Job:
        """Return the job with the fingerprint of its code. If that cannot be found, add a warning: it runs the
        workers' own."""
        try:
            code = fingerprint(job.operator, self._roots, self._project.files)
        except Unresolvable as error:
            warnings.append(
                f"job {job.name!r} runs whatever code its worker has, and a change of it rebuilds nothing: {error}"
            )
            return job
        self._operators[job.name] = job.operator
        return replace(job, code=code)

    def bundle(self) -> Bundle | None:
        return pack(self._operators, self._roots, self._project) if self._operators else None


def _with_query(dag: str, job: Job, home: Path) -> Job:
    """Return the job with its query, where that lies in a ``file`` of its own."""
    name: Any = job.config.get("file")
    spec = BUILT_IN.get(job.operator)
    if spec is None or not spec.takes_query_file or not isinstance(name, str):
        return job
    if "query" in job.config:
        raise UsageError(f"job {job.name!r} has both 'query' and 'file' in its config: write one of them")
    config = {key: value for key, value in job.config.items() if key != "file"}
    query = write_plain_names(_read_text(str(home / name)), dag, msgspec.to_builtins(job.inputs))
    return replace(job, config={**config, "query": query})


def _definition_text(text: str, dag: Dag, filled: Dag, registry: Registry) -> str:
    """Return the completed definition: the author's text with added lines, comments and all, where that is possible."""
    annotated = _add_code_lines(text, {job.name: job.code for job in filled.jobs if job.code is not None})
    try:
        if annotated is not None and read(annotated, registry=registry) == filled:
            return annotated
    except QoError:
        pass  # Adding lines did not work: write the file anew.
    return to_yaml(filled)


def _add_code_lines(text: str, codes: dict[str, str]) -> str | None:
    """Add a line with ``code`` below the operator of each job. None if no operator has a line of its own."""
    lines = text.splitlines()
    names = _jobs_by_operator_line(lines)
    annotated: list[str] = []
    for index, line in enumerate(lines):
        annotated.append(line)
        if (name := names.get(index)) in codes:
            indent = len(line) - len(line.lstrip(" -"))
            annotated.append(f"{' ' * indent}code: {codes[name]!r}")
    return "\n".join(annotated) + "\n" if len(annotated) > len(lines) else None


def _jobs_by_operator_line(lines: Sequence[str]) -> dict[int, str]:
    """Return the job of each line with an operator: the last one named before it, or the first one after."""
    names: dict[int, str] = {}
    name, operator = "", None
    for index, line in enumerate(lines):
        begins = line.lstrip().startswith("- ")
        if begins and line.strip()[2:].startswith(("name:", "operator:", "activation:", "runtime:")):
            name, operator = "", None
        bare = line.lstrip(" -")
        if bare.startswith("name:") and not name:
            name = bare.removeprefix("name:").partition(" #")[0].strip().strip("\"'")
        if bare.startswith("operator:") and operator is None:
            operator = index
        if name and operator is not None:
            names.setdefault(operator, name)
    return names


def _read_text(path: str) -> str:
    try:
        return Path(path).read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not text in UTF-8: save it as such") from error
    except OSError as error:
        raise UsageError(
            f"cannot read {path}: {error.strerror or error}; give the path of a definition"
        ) from error
