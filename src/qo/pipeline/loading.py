"""A pipeline as a command is given it, in a file or declared in Python: read, and made complete for a deploy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from qo.core.pipeline.dag import Dag, Job
from qo.errors import QoError, UsageError
from qo.pipeline.code.bundling import Bundle, Project, pack, read_project
from qo.pipeline.code.fingerprint import fingerprint
from qo.pipeline.code.modules import Unresolvable
from qo.pipeline.operators.built_in import BUILT_IN
from qo.pipeline.reading import read
from qo.pipeline.registry import DEFAULT, FUNCTION, Registry
from qo.pipeline.target import resolve
from qo.pipeline.writing import to_yaml


def load(
    target: str, *, registry: Registry = DEFAULT, known_datasets: Callable[[str], bool] | None = None
) -> tuple[Dag, str]:
    """The resolved DAG and the text of its definition; of a declared one, the YAML that says the same.

    Raises UsageError for what cannot be opened or imported, and DefinitionError for what is wrong in it.
    """
    found = resolve(target)
    if found.pipeline is None:
        text = _text(str(found.file))
        return read(text, file=str(found.file), registry=registry, known_datasets=known_datasets), text
    dag = found.pipeline.document(registry=registry, known_datasets=known_datasets)
    return dag, to_yaml(dag)


@dataclass(frozen=True, slots=True)
class Whole:
    """A definition that stands on its own: everything that decides what its jobs make is in it."""

    dag: Dag
    source: str  # What to deploy.
    warnings: tuple[str, ...] = ()  # Of operators whose code is not in it.
    bundle: Bundle | None = None  # The code that travels with it; None: all jobs run the workers' own.


def load_whole(target: str, *, code: bool = True, registry: Registry = DEFAULT) -> Whole:
    """As ``load``, with the queries that lie in files of their own written into it, and each function by what its
    code is known by, unless ``code`` is False or the job says so itself.

    The code of these functions comes along as a bundle; all others run what their workers have. Raises
    UsageError for a file of a query that cannot be read, or a file to include that is not there.
    """
    dag, text = load(target, registry=registry)
    home = resolve(target).directory
    roots = tuple(dict.fromkeys((home, Path.cwd())))
    packing = _Packing(roots, read_project(home))
    warnings: list[str] = []
    jobs: list[Job] = []
    for job in dag.jobs:
        whole = _with_query(job, home)
        if code and whole.code is None and registry.get(job.runtime).functions and FUNCTION.match(job.operator):
            whole = packing.add(whole, warnings)
        jobs.append(whole)
    bundle = packing.bundle()
    if tuple(jobs) == dag.jobs:
        return Whole(dag, text, tuple(warnings), bundle)
    filled = replace(dag, jobs=tuple(jobs))
    return Whole(filled, _written(text, dag, filled, registry), tuple(warnings), bundle)


class _Packing:
    """Gathers the jobs whose code travels with the version."""

    def __init__(self, roots: Sequence[Path], project: Project) -> None:
        self._roots = roots
        self._project = project
        self._operators: dict[str, str] = {}

    def add(self, job: Job, warnings: list[str]) -> Job:
        """The job, known by its code. Warns of one whose code cannot be found: it runs the workers' own."""
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


def _with_query(job: Job, home: Path) -> Job:
    """Return the job with its query, where that lies in a ``file`` of its own."""
    name: Any = job.config.get("file")
    spec = BUILT_IN.get(job.operator)
    if spec is None or not spec.takes_query_file or not isinstance(name, str):
        return job
    if "query" in job.config:
        raise UsageError(f"job {job.name!r} has both 'query' and 'file' in its config: write one of them")
    config = {key: value for key, value in job.config.items() if key != "file"}
    return replace(job, config={**config, "query": _text(str(home / name))})


def _written(text: str, dag: Dag, filled: Dag, registry: Registry) -> str:
    """The file with what was filled in; as its author wrote it, comments and all, where lines can be added to it."""
    annotated = _annotated(text, {job.name: job.code for job in filled.jobs if job.code is not None})
    try:
        if annotated is not None and read(annotated, registry=registry) == filled:
            return annotated
    except QoError:
        pass  # It was not as simple as it looked.
    return to_yaml(filled)


def _annotated(text: str, codes: dict[str, str]) -> str | None:
    """``code`` below the operator of each job. None: the file is not written in lines."""
    lines = text.splitlines()
    names = _names_of_operators(lines)
    written: list[str] = []
    for index, line in enumerate(lines):
        written.append(line)
        if (name := names.get(index)) in codes:
            indent = len(line) - len(line.lstrip(" -"))
            written.append(f"{' ' * indent}code: {codes[name]!r}")
    return "\n".join(written) + "\n" if len(written) > len(lines) else None


def _names_of_operators(lines: Sequence[str]) -> dict[int, str]:
    """The job that each line with an operator belongs to: the last one that was named before, or the first after."""
    found: dict[int, str] = {}
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
            found.setdefault(operator, name)
    return found


def _text(path: str) -> str:
    try:
        return Path(path).read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not text in UTF-8: save it as such") from error
    except OSError as error:
        raise UsageError(
            f"cannot read {path}: {error.strerror or error}; give the path of a definition"
        ) from error
