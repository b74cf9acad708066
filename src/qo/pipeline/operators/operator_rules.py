"""Rules for a job's runtime and operator: both exist, and the job is one that the operator can run."""

from __future__ import annotations

from qo.core.pipeline.dag import SourceKind, Strategy
from qo.core.words import plural
from qo.pipeline.draft import JobDraft
from qo.pipeline.operators.built_in import BUILT_IN, CONTAINER, UDF
from qo.pipeline.operators.spec import OperatorSpec
from qo.pipeline.problems import Report, closest
from qo.pipeline.registry import Launcher, Registry, Runtime
from qo.pipeline.shape import check
from qo.pipeline.sources import CODELESS_JOB, CODELESS_KINDS

# Names that other systems use for runtimes.
_RUNTIME_HINTS = {
    "ecs_platform": "write 'runtime: spark' for Spark, or 'runtime: python' for functions",
    "ecs": "write 'runtime: spark' for Spark, or 'runtime: python' for functions",
    "ecs_udf": "write 'runtime: lambda' with 'operator: udf' for code of users",
    "pyspark": "write 'runtime: spark'",
}


def check_operator(job_draft: JobDraft, registry: Registry, report: Report) -> None:
    job = job_draft.job
    runtime = registry.runtimes.get(job.runtime)
    if job.is_source and job.source is not None and job.source.kind in CODELESS_KINDS:
        _check_runs_nothing(job_draft, job.source.kind, report)
        if runtime is not None:
            _check_queue(job_draft, runtime, report)
    elif runtime is None:
        hint = _RUNTIME_HINTS.get(job.runtime) or closest(job.runtime, registry.runtimes)
        report.add((*job_draft.path, "runtime"), f"there is no runtime {job.runtime[:80]!r}", hint)
    elif not runtime.accepts(job.operator):
        message = f"the runtime {runtime.name} has no operator {job.operator[:80]!r}"
        report.add((*job_draft.path, "operator"), message, _operator_hint(job.operator, runtime, registry))
    else:
        _check_runtime(job_draft, runtime, report)
        _check_queue(job_draft, runtime, report)
        spec = BUILT_IN.get(job.operator)
        if spec is not None and spec.config is not None and job.operator in runtime.operators:
            _check_activation(job_draft, spec, report)
            _check_counts(job_draft, spec, report)
            _check_config(job_draft, spec, report)
        _check_strategy(job_draft, spec, report)
    _check_udf(job_draft, report)


def _check_runs_nothing(job_draft: JobDraft, kind: SourceKind, report: Report) -> None:
    """Refuse code that would never be called."""
    wrong = [name for name, only in CODELESS_JOB.items() if getattr(job_draft.job, name) != only]
    if wrong:
        message = f"a {kind} source runs no code of its own, and {job_draft.job.name!r} names some"
        hint = (
            "write 'runtime: dispatcher' and 'operator: noop', or leave both out; a job that reads it can run code, "
            "and so can a source of 'kind: always_on'"
        )
        report.add((*job_draft.path, wrong[0]), message, hint)


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


def _check_runtime(job_draft: JobDraft, runtime: Runtime, report: Report) -> None:
    source = job_draft.job.source
    always_on = source is not None and source.kind is SourceKind.ALWAYS_ON
    if always_on and runtime.launcher is not Launcher.QUEUE:
        message = f"an always_on source runs for ever, which the runtime {runtime.name} cannot"
        report.add((*job_draft.path, "runtime"), message, "write a runtime with workers: spark or python")


def _check_queue(job_draft: JobDraft, runtime: Runtime, report: Report) -> None:
    queue = job_draft.job.queue
    if queue is None:
        return
    path = (*job_draft.path, "queue")
    if runtime.launcher is not Launcher.QUEUE:
        message = f"the runtime {runtime.name} has no queues: the dispatcher starts its tasks itself"
        report.add(path, message, "remove it", key=True)
    elif queue not in runtime.queues:
        hint = (
            f"{closest(queue, runtime.queues)}; queues are added under [runtimes.{runtime.name}] of the settings"
        )
        report.add(path, f"the runtime {runtime.name} has no queue {queue!r}", hint)


def _check_activation(job_draft: JobDraft, spec: OperatorSpec, report: Report) -> None:
    job, path = job_draft.job, job_draft.path
    if spec.is_source:
        if not job.is_source:
            hint = "write 'activation: source' and 'source: {kind: always_on}'"
            report.add((*path, "activation"), f"{spec.name} is a source: it reads no inputs", hint)
    elif job.is_source:
        hint = "write 'activation: reactive' and 'inputs:'"
        report.add((*path, "activation"), f"{spec.name} works on the events of its input", hint)
    elif spec.strategy is not None and job.execution_strategy not in (None, spec.strategy):
        message = f"{spec.name} does not work with {job.execution_strategy}"
        report.add((*path, "execution_strategy"), message, f"write 'execution_strategy: {spec.strategy}'")


def _check_strategy(job_draft: JobDraft, spec: OperatorSpec | None, report: Report) -> None:
    """Check that only operators that can work by changes do."""
    if job_draft.job.execution_strategy is Strategy.PER_CHANGE and (
        spec is None or spec.strategy is not Strategy.PER_CHANGE
    ):
        names = ", ".join(each.name for each in BUILT_IN.values() if each.strategy is Strategy.PER_CHANGE)
        message = f"'PerChange' is for {names}, and {job_draft.job.name!r} is none of them"
        hint = "write 'execution_strategy: PerPartition' or 'PerUpdate'"
        report.add((*job_draft.path, "execution_strategy"), message, hint)


def _check_counts(job_draft: JobDraft, spec: OperatorSpec, report: Report) -> None:
    job, path = job_draft.job, job_draft.path
    if spec.outputs_of is None and job.outputs != 1 and not (spec.has_side_effects and job.outputs == 0):
        count = "one output or none" if spec.has_side_effects else "one output"
        report.add((*path, "outputs"), f"{spec.name} has {count}, not {job.outputs}", "write 'outputs: 1'")
    if spec.inputs_max == 1 and len(job.inputs) > 1:
        hint = "join them in a job of their own, before it"
        report.add((*path, "inputs"), f"{spec.name} reads one input, not {len(job.inputs)}", hint)


def _check_config(job_draft: JobDraft, spec: OperatorSpec, report: Report) -> None:
    if spec.config is None:
        return
    if "config" not in job_draft.raw:
        if spec.needs_config:
            hint = f"write 'config: {{{spec.example}}}'"
            report.add(job_draft.path, f"{spec.name} needs its 'config'", hint)
        return
    has_shape = check(job_draft.raw["config"], spec.config, (*job_draft.path, "config"), report)
    if not has_shape:
        return
    if spec.validate is not None:
        spec.validate(job_draft, report)
    if spec.outputs_of is not None and job_draft.job.outputs != (count := spec.outputs_of(job_draft.job.config)):
        message = f"{spec.name} has {plural(count, 'output')} with this config, not {job_draft.job.outputs}"
        report.add((*job_draft.path, "outputs"), message, f"write 'outputs: {count}'")


def _check_udf(job_draft: JobDraft, report: Report) -> None:
    job, path = job_draft.job, job_draft.path
    if job.operator == UDF.name and job.udf is None:
        hint = "write 'udf: {bundle_id: ..., entrypoint: ...}'"
        report.add(path, f"the operator {job.operator} of {job.name!r} needs 'udf'", hint)
    if job.udf is not None and job.operator != UDF.name:
        hint = "remove it, or write 'runtime: lambda' and 'operator: udf'"
        report.add((*path, "udf"), f"'udf' is for the operator udf, not for {job.operator[:80]!r}", hint, key=True)
    elif job.udf is not None and job.runtime != "lambda":
        hint = "write 'runtime: lambda'"
        report.add((*path, "runtime"), "code of users runs in the runtime lambda only", hint)
    if job.operator == CONTAINER.name and job.secrets:
        hint = "remove them, and request variables that the runtime offers under 'env' of its 'config'"
        report.add((*path, "secrets"), f"{job.name!r} runs in a container, which gets no secrets", hint, key=True)
    if (job.operator == UDF.name or job.udf is not None) and job.secrets:
        hint = "remove them: code of users is not trusted with secrets"
        report.add((*path, "secrets"), f"{job.name!r} runs code of a user", hint, key=True)
