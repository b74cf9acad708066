"""Runtimes and operators: that there are such, and that the job fits them."""

from __future__ import annotations

from qo.core.flow.dag import SourceKind, Strategy
from qo.dispatcher.definition.draft import Written
from qo.dispatcher.definition.fields import OPERATOR_CONFIG, SILENT, SILENT_JOB
from qo.dispatcher.definition.problems import Report, closest
from qo.dispatcher.definition.shape import check
from qo.dispatcher.registry import Launcher, Registry, Runtime

BUNDLED = frozenset({"udf", "alert_evaluate"})  # Operators that run code of users.

_STRATEGY = {"range_splitter": Strategy.PER_PARTITION, "range_aggregator": Strategy.PER_UPDATE}
_ELSEWHERE = {
    "ecs_platform": "write 'runtime: spark' for Spark, or 'runtime: python' for functions",
    "ecs": "write 'runtime: spark' for Spark, or 'runtime: python' for functions",
    "ecs_udf": "write 'runtime: lambda' with 'operator: udf' for code of users",
    "pyspark": "write 'runtime: spark'",
}


def operator(written: Written, registry: Registry, report: Report) -> None:
    job = written.job
    runtime = registry.runtimes.get(job.runtime)
    if job.is_source and job.source is not None and job.source.kind in SILENT:
        _silent(written, job.source.kind, report)
    elif runtime is None:
        hint = _ELSEWHERE.get(job.runtime) or closest(job.runtime, registry.runtimes)
        report.add((*written.path, "runtime"), f"there is no runtime {job.runtime[:80]!r}", hint)
    elif not runtime.accepts(job.operator):
        message = f"the runtime {runtime.name} has no operator {job.operator[:80]!r}"
        report.add((*written.path, "operator"), message, _operator_hint(job.operator, runtime, registry))
    else:
        _fits(written, runtime, report)
    _udf(written, report)


def _silent(written: Written, kind: SourceKind, report: Report) -> None:
    """Refuse code that nobody would ever call."""
    wrong = [name for name, only in SILENT_JOB.items() if getattr(written.job, name) != only]
    if wrong:
        message = f"a {kind} source runs no code of its own, and {written.job.name!r} names some"
        hint = (
            "write 'runtime: dispatcher' and 'operator: noop', or leave both out; a job that reads it can run code, "
            "and so can a source of 'kind: always_on'"
        )
        report.add((*written.path, wrong[0]), message, hint)


def _operator_hint(name: str, runtime: Runtime, registry: Registry) -> str:
    homes = sorted(each.name for each in registry.runtimes.values() if each.accepts(name))
    if homes:
        return f"write 'runtime: {homes[0]}'"
    if "<locals>" in name or name.startswith("__main__:"):
        return "declare the function at the top of a module that can be imported"
    if runtime.functions:
        names = [*runtime.operators, "module:function"]
        return closest(name, names) if ":" not in name else "write module:function with plain names"
    return closest(name, runtime.operators)


def _fits(written: Written, runtime: Runtime, report: Report) -> None:
    job, path = written.job, written.path
    in_process = runtime.launcher is Launcher.IN_PROCESS
    if (
        job.source is not None
        and job.source.kind is SourceKind.ALWAYS_ON
        and runtime.launcher is not Launcher.QUEUE
    ):
        message = f"an always_on source runs for ever, which the runtime {runtime.name} cannot"
        report.add((*path, "runtime"), message, "write a runtime with workers: spark or python")
    if not in_process or job.operator not in OPERATOR_CONFIG:
        return
    if job.is_source:
        hint = "write 'activation: reactive' and 'inputs:'"
        report.add((*path, "activation"), f"{job.operator} works on the events of its input", hint)
    elif job.execution_strategy is not None and job.execution_strategy is not _STRATEGY[job.operator]:
        message = f"{job.operator} does not work with {job.execution_strategy}"
        hint = f"write 'execution_strategy: {_STRATEGY[job.operator]}'"
        report.add((*path, "execution_strategy"), message, hint)
    if job.outputs != 1:
        report.add((*path, "outputs"), f"{job.operator} has one output, not {job.outputs}", "write 'outputs: 1'")
    if "config" in written.raw:
        check(written.raw["config"], OPERATOR_CONFIG[job.operator], (*path, "config"), report)
    else:
        field = OPERATOR_CONFIG[job.operator].fields[0].name
        report.add(path, f"{job.operator} needs its 'config'", f"write 'config: {{{field}: 1000}}'")


def _udf(written: Written, report: Report) -> None:
    job, path = written.job, written.path
    if job.operator in BUNDLED and job.udf is None:
        hint = "write 'udf: {bundle_id: ..., entrypoint: ...}'"
        report.add(path, f"the operator {job.operator} of {job.name!r} needs 'udf'", hint)
    if job.udf is not None and job.operator not in BUNDLED:
        hint = "remove it, or write 'runtime: lambda' and 'operator: udf'"
        report.add((*path, "udf"), f"'udf' is for the operator udf, not for {job.operator[:80]!r}", hint, key=True)
    elif job.udf is not None and job.runtime != "lambda":
        hint = "write 'runtime: lambda'"
        report.add((*path, "runtime"), "code of users runs in the runtime lambda only", hint)
    if (job.operator in BUNDLED or job.udf is not None) and job.secrets:
        hint = "remove them: code of users is not trusted with secrets"
        report.add((*path, "secrets"), f"{job.name!r} runs code of a user", hint, key=True)
