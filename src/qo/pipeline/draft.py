"""A draft of a DAG: the jobs of a document whose fields have the right shape, and where they were written.

A job of the wrong shape is left out, so that the rules need not look at it, but its name is kept, so that references
to it are not reported as wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import msgspec

from qo.core.pipeline.dag import Dag, Defaults, Job, Publish
from qo.pipeline.fields import DAG, DEFAULTS, JOB, PUBLISH
from qo.pipeline.problems import Document, Path, Report
from qo.pipeline.shape import check


@dataclass(frozen=True, slots=True)
class JobDraft:
    """A job, and its fields as its author wrote them: a field that is not in ``raw`` has its default."""

    job: Job
    raw: Mapping[str, Any]
    path: Path


@dataclass(frozen=True, slots=True)
class DagDraft:
    name: str
    description: str | None
    defaults: Defaults
    jobs: tuple[JobDraft, ...]
    names: frozenset[str]  # Of all jobs, including those that were left out.
    publish: Mapping[str, Publish]

    def dag(self) -> Dag:
        return Dag(
            name=self.name,
            description=self.description,
            defaults=self.defaults,
            jobs=tuple(each.job for each in self.jobs),
            publish=dict(self.publish),
        )


def draft_dag(document: Document, report: Report) -> DagDraft:
    """Return the parts of an explicit document that have the right shape, and report the others."""
    whole: Any = document.value
    sound = check(whole, DAG, (), report)
    value = cast("dict[str, Any]", whole) if isinstance(whole, dict) else {}
    listed, published, defaults = value.get("jobs"), value.get("publish"), value.get("defaults")
    jobs = cast("list[Any]", listed if isinstance(listed, list) else [])
    publish = cast("dict[str, Any]", published if isinstance(published, dict) else {})

    def fits(part: Any, kind: Any) -> bool:
        return sound or check(part, kind, (), Report(document.spot, limit=1))

    return DagDraft(
        name=_text(value.get("name")) or "",
        description=_text(value.get("description")),
        defaults=msgspec.convert(defaults, Defaults) if defaults and fits(defaults, DEFAULTS) else Defaults(),
        jobs=tuple(
            _draft_job(raw, at) for at, raw in enumerate(map(_without_unknown_fields, jobs)) if fits(raw, JOB)
        ),
        names=frozenset(each for raw in jobs if isinstance(raw, dict) and (each := _text(_name(raw)))),
        publish={key: msgspec.convert(raw, Publish) for key, raw in publish.items() if fits(raw, PUBLISH)},
    )


def _without_unknown_fields(raw: Any) -> Any:
    """Return the job without unknown fields, which are reported by themselves."""
    if not isinstance(raw, dict) or JOB.by_name.keys() >= raw.keys():
        return cast("Any", raw)
    return {key: value for key, value in cast("dict[str, Any]", raw).items() if key in JOB.by_name}


def _draft_job(raw: dict[str, Any], at: int) -> JobDraft:
    if raw.get("idle_timeout") == 0:
        raw = {**raw, "idle_timeout": "0"}  # YAML reads a number there.
    return JobDraft(msgspec.convert(raw, Job), raw, ("jobs", at))


def _name(raw: Any) -> Any:
    return cast("dict[str, Any]", raw).get("name")


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
