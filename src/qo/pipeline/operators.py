"""Runtimes and operators: that there are such, and that the job fits them."""

from __future__ import annotations

import re

from qo.core.pipeline.dag import SourceKind, Strategy, UpdateStrategy
from qo.pipeline.configuration import OPERATOR_CONFIG
from qo.pipeline.draft import Written
from qo.pipeline.fields import SILENT, SILENT_JOB
from qo.pipeline.problems import Report, closest
from qo.pipeline.registry import Launcher, Registry, Runtime
from qo.pipeline.shape import check

BUNDLED = "udf"  # The operator whose code is an uploaded bundle.

_STRATEGY = {"range_splitter": Strategy.PER_PARTITION, "range_aggregator": Strategy.PER_UPDATE}
_ONE_INPUT = frozenset({"compact", "check"})
_SIDE_EFFECTS = frozenset({"alert"})
_EXAMPLES = {"sql": "SELECT ...", "ingest": "csv", "alert": "SELECT ...", "stream": "rate"}
_PLACES = ("partition_key", "start", "end", "cursor")
# What each channel needs, and which fields that can be.
_CHANNELS = {
    "log": ("", ()),
    "webhook": ("'url' or 'url_secret'", ("url", "url_secret")),
    "file": ("'path'", ("path",)),
}
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
    if job.operator not in runtime.operators or job.operator not in OPERATOR_CONFIG:
        return
    if job.operator == "stream":
        if not job.is_source:
            hint = "write 'activation: source' and 'source: {kind: always_on}'"
            report.add((*path, "activation"), "stream is a source: it reads no inputs", hint)
    elif job.is_source:
        hint = "write 'activation: reactive' and 'inputs:'"
        report.add((*path, "activation"), f"{job.operator} works on the events of its input", hint)
    elif in_process and job.execution_strategy not in (None, _STRATEGY[job.operator]):
        message = f"{job.operator} does not work with {job.execution_strategy}"
        hint = f"write 'execution_strategy: {_STRATEGY[job.operator]}'"
        report.add((*path, "execution_strategy"), message, hint)
    _counts(written, report)
    _config(written, report)


def _counts(written: Written, report: Report) -> None:
    job, path = written.job, written.path
    if job.outputs != 1 and not (job.operator in _SIDE_EFFECTS and job.outputs == 0):
        has = "one output or none" if job.operator in _SIDE_EFFECTS else "one output"
        report.add((*path, "outputs"), f"{job.operator} has {has}, not {job.outputs}", "write 'outputs: 1'")
    if job.operator in _ONE_INPUT and len(job.inputs) > 1:
        hint = "join them in a job of their own, before it"
        report.add((*path, "inputs"), f"{job.operator} reads one input, not {len(job.inputs)}", hint)


def _config(written: Written, report: Report) -> None:
    job, path = written.job, written.path
    kind = OPERATOR_CONFIG[job.operator]
    if "config" in written.raw:
        if check(written.raw["config"], kind, (*path, "config"), report):
            _CLOSER.get(job.operator, _nothing)(written, report)
    elif kind.one_of or any(field.required for field in kind.fields):
        first = next((field for field in kind.fields if field.required), kind.fields[0])
        example = _EXAMPLES.get(job.operator, "1000")
        report.add(path, f"{job.operator} needs its 'config'", f"write 'config: {{{first.name}: {example}}}'")


def _nothing(written: Written, report: Report) -> None:
    pass


def _ingest(written: Written, report: Report) -> None:
    config, path = written.job.config, (*written.path, "config")
    if "columns" in config and config["format"] == "text":
        hint = "remove 'columns', or write another format"
        report.add((*path, "columns"), "text has one column, which is called value", hint, key=True)
    if config.get("missing") == "keep" and written.job.update_strategy is UpdateStrategy.APPEND:
        hint = "write 'update_strategy: replace', or 'missing: fail'"
        report.add((*path, "missing"), "rows that were appended cannot be told apart to be kept", hint)
    seen: set[str] = set()
    for at, column in enumerate(config.get("columns", ())):
        name = str(column["name"]).lower()
        if name in seen:
            report.add((*path, "columns", at, "name"), f"there are two columns {name[:80]!r}", "keep one")
        seen.add(name)
    for place in re.findall(r"\{([^{}]*)\}", config.get("path", "")):
        if place not in _PLACES:
            hint = closest(place, _PLACES)
            report.add((*path, "path"), f"nothing stands for {{{place[:80]}}} in a path", hint)


def _alert(written: Written, report: Report) -> None:
    job, path = written.job, (*written.path, "config")
    channel = job.config.get("channel", "log")
    needed, allowed = _CHANNELS[channel]
    given = [name for name in ("url", "url_secret", "path") if name in job.config]
    for name in given:
        if name not in allowed:
            hint = f"remove it, or write 'channel: {'file' if name == 'path' else 'webhook'}'"
            report.add((*path, name), f"{name!r} is not for the channel {channel}", hint, key=True)
    if needed and len([name for name in given if name in allowed]) != 1:
        report.add(path, f"the channel {channel} needs {needed}", "write exactly one of them")
    secret = job.config.get("url_secret")
    if secret is not None and secret not in job.secrets:
        hint = f"write 'secrets: [{secret}]'"
        report.add((*path, "url_secret"), f"{job.name!r} does not list the secret {secret!r}", hint)


def _stream(written: Written, report: Report) -> None:
    config, path = written.job.config, (*written.path, "config")
    for name in ("path", "columns"):
        if config["source"] == "files" and name not in config:
            report.add(path, f"a stream of files needs its {name!r}", f"write '{name}:' beside 'source: files'")
    for name in ("path", "columns", "format"):
        if config["source"] != "files" and name in config:
            message = f"{name!r} is for 'source: files', not for {config['source']}"
            report.add((*path, name), message, "remove it", key=True)


_CLOSER = {"ingest": _ingest, "alert": _alert, "stream": _stream}


def _udf(written: Written, report: Report) -> None:
    job, path = written.job, written.path
    if job.operator == BUNDLED and job.udf is None:
        hint = "write 'udf: {bundle_id: ..., entrypoint: ...}'"
        report.add(path, f"the operator {job.operator} of {job.name!r} needs 'udf'", hint)
    if job.udf is not None and job.operator != BUNDLED:
        hint = "remove it, or write 'runtime: lambda' and 'operator: udf'"
        report.add((*path, "udf"), f"'udf' is for the operator udf, not for {job.operator[:80]!r}", hint, key=True)
    elif job.udf is not None and job.runtime != "lambda":
        hint = "write 'runtime: lambda'"
        report.add((*path, "runtime"), "code of users runs in the runtime lambda only", hint)
    if (job.operator == BUNDLED or job.udf is not None) and job.secrets:
        hint = "remove them: code of users is not trusted with secrets"
        report.add((*path, "secrets"), f"{job.name!r} runs code of a user", hint, key=True)
