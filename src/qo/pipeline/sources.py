"""The declarations of the kinds of sources. Everything that other modules must know of a kind is said here, once.

To add a kind, name it in ``core.pipeline.dag`` with the fields that no other kind has, declare it here, and write the
module of ``qo.scheduler`` that its ``poller`` or ``place`` names.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from qo.core.pipeline.dag import Source, SourceKind
from qo.core.pipeline.key_pattern import pattern_problem
from qo.core.pipeline.partitions import is_zone
from qo.pipeline.kinds import Field, Items, Record, Whole
from qo.pipeline.problems import Path, Report
from qo.pipeline.texts import FILE_URL, HOOK, LINE, LOGICAL, ZONE

# Sources that run no code have these, and may leave them out.
CODELESS_JOB = {"runtime": "dispatcher", "operator": "noop"}

_RATE = re.compile(r"rate\([1-9][0-9]{0,5} (?:minute|hour|day)s?\)\Z")
_CRON_FIELD = re.compile(r"[0-9A-Za-z*,/#-]{1,100}\Z")
_CRON_MAX = (59, 23, 31, 12, 7)
_STEP = re.compile(r"[/#][0-9]+")  # What follows these is not a time.


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSpec:
    """A kind of source: its fields, and who makes it emit."""

    config: Record  # Without ``kind``.
    runs_code: bool = False
    emits_cursors: bool = False  # And nothing else, unless its partitions are declared.
    coalesces: bool = False  # May announce once what came while it was held back.
    # "module:function", imported by the scheduler. None: the scheduler has nothing to do for it.
    poller: str | None = None  # Called with the kind, an emitter and the settings; returns a Poller.
    place: str | None = None  # Called with the source's config and the settings; returns where its files arrive.
    validate: Callable[[Source, Path, Report], None] | None = None


def _check_cron(source: Source, path: Path, report: Report) -> None:
    if source.schedule is not None and not is_schedule(source.schedule):
        hint = "write five fields, such as '0 6 * * *', or rate(5 minutes), rate(1 hour), rate(1 day)"
        report.add((*path, "schedule"), f"{source.schedule[:80]!r} is not a schedule", hint)
    if source.timezone is not None and not is_zone(source.timezone):
        message = f"there is no time zone {source.timezone!r}"
        report.add((*path, "timezone"), message, "write one such as UTC or Europe/Berlin")


def _check_key(source: Source, path: Path, report: Report) -> None:
    if source.key is not None and (problem := pattern_problem(source.key)) is not None:
        report.add((*path, "key"), *problem)


def is_schedule(text: str) -> bool:
    """Whether a text has the form of a schedule. When it is due, only the scheduler works out."""
    if _RATE.match(text):
        return True
    fields = text.split()
    return len(fields) == len(_CRON_MAX) and all(
        _CRON_FIELD.match(field)
        and all(int(number) <= most for number in re.findall(r"[0-9]+", _STEP.sub("", field)))
        for field, most in zip(fields, _CRON_MAX, strict=True)
    )


_KEY = Field(
    "key",
    LINE,
    "which part of the path is the key of the partition, such as {year}/{month}/{day}.csv. Unset: all of it.",
)
_POLL_SECONDS = Field("poll_seconds", Whole(1, 86_400), "how often to look, in seconds.", default=30)

SOURCES: dict[SourceKind, SourceSpec] = {
    SourceKind.MANUAL: SourceSpec(config=Record("manual", "Somebody says that there is something new.", ())),
    SourceKind.CRON: SourceSpec(
        config=Record(
            "cron",
            "A schedule comes round.",
            (
                Field("schedule", LINE, "five fields, or rate(5 minutes).", required=True),
                Field("timezone", ZONE, "the time zone of the schedule.", default="UTC"),
                Field(
                    "offset",
                    Whole(-400, 400),
                    "with declared partitions: by how many the one that is announced is moved from that of the "
                    "planned time; -1 announces the one before.",
                    default=0,
                ),
            ),
        ),
        emits_cursors=True,
        coalesces=True,
        poller="qo.scheduler.cron:CronPoller",
        validate=_check_cron,
    ),
    SourceKind.WEBHOOK: SourceSpec(
        config=Record(
            "webhook",
            "A signed request arrives.",
            (
                Field("webhook_path", HOOK, "where requests are taken.", required=True),
                Field("secret", LOGICAL, "the name of the secret that requests are signed with.", required=True),
            ),
        )
    ),
    SourceKind.ALWAYS_ON: SourceSpec(
        config=Record("always_on", "A function runs for ever, and emits.", ()), runs_code=True
    ),
    SourceKind.FILES: SourceSpec(
        config=Record(
            "files",
            "A file arrives or changes in a directory or bucket.",
            (
                Field("path", LINE, "a directory, or s3://bucket/prefix.", required=True),
                Field("pattern", LINE, "which names count.", default="*"),
                _KEY,
                _POLL_SECONDS,
            ),
        ),
        coalesces=True,
        validate=_check_key,
        poller="qo.scheduler.file_source:Watchers",
        place="qo.scheduler.file_source:open_directory",
    ),
    SourceKind.HTTP: SourceSpec(
        config=Record(
            "http",
            "A file behind a URL appears or changes.",
            (
                Field("urls", Items(FILE_URL, at_least=1, at_most=1_000, unique=True), "the files."),
                Field(
                    "index_url",
                    FILE_URL,
                    "a file that lists them, one URL on each line or as a JSON array of texts; relative ones count "
                    "from its own.",
                ),
                Field(
                    "url",
                    FILE_URL,
                    "one file for each of the declared partitions, such as https://HOST/{year}/{month}/{day}.csv.",
                ),
                _KEY,
                _POLL_SECONDS,
            ),
            one_of=("urls", "index_url", "url"),
        ),
        coalesces=True,
        validate=_check_key,
        poller="qo.scheduler.file_source:Watchers",
        place="qo.scheduler.http_files:open_urls",
    ),
}

CODELESS_KINDS = tuple(kind for kind, spec in SOURCES.items() if not spec.runs_code)


def all_source_fields() -> tuple[Field, ...]:
    """Every field that some kind of source has, once; its help begins with the kinds that have it."""
    owners: dict[str, list[str]] = {}
    fields: dict[str, Field] = {}
    for kind, spec in SOURCES.items():
        for field in spec.config.fields:
            owners.setdefault(field.name, []).append(kind.value)
            fields.setdefault(field.name, field)
    return tuple(
        replace(field, help=f"{', '.join(owners[name])}: {field.help}", required=False)
        for name, field in fields.items()
    )


def load(name: str) -> Callable[..., Any]:
    """Import what a ``poller`` or ``place`` names."""
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)
