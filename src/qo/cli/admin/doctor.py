"""qo doctor."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from qo.cli.session import Session, command, new_app, start_logging
from qo.config.location import S3, parse
from qo.config.settings import LogLevel, Settings
from qo.errors import ConfigError, QoError, StoreError, Unavailable, Unproven
from qo.store import manifest
from qo.store.checks import CHECKS
from qo.store.opening import needs_proof, open_store
from qo.store.port import ObjectStore
from qo.store.proof import CheckResult, Report, prove

if TYPE_CHECKING:
    from qo.spark.engine.archive import Archive
    from qo.spark.engine.java import Java
    from qo.store.s3.transport import Transport

app = new_app()

WIDTHS = (max(len(check.name) for check in CHECKS), len("fail"), 0)


@command(app, "doctor")
def doctor(
    session: Session,
    fix: Annotated[
        bool,
        typer.Option(
            "--fix",
            help="First create the bucket, enable versioning and set lifecycle rules, if need be; then make the "
            "archive of Spark's classes.",
        ),
    ] = False,
) -> None:
    """Prove that a store can be trusted with a queue.

    Races real writers on it, checks what comes back, and records the proof in the bucket; without one, no other
    command uses a bucket. Exits with 6 if a check that matters fails. Run it again whenever the server changes.
    """
    settings = session.settings()
    start_logging(LogLevel.WARNING)

    def tell(result: CheckResult) -> None:
        if not session.json:
            session.output.row((result.name, "pass" if result.passed else "fail", result.detail), WIDTHS)

    fixed, report, problem = asyncio.run(_examine(settings, fix, tell))
    unfinished = asyncio.run(_unfinished_uploads(settings))
    spark = _spark(settings, fix)
    if session.json:
        session.output.document(
            {
                "store": settings.store,
                "ok": problem is None,
                "problem": None if problem is None else str(problem),
                "fixed": fixed,
                "checks": [asdict(result) for result in report.results],
                "keeps_unfinished_uploads": unfinished,
                "spark": spark,
            }
        )
    else:
        _advise(session, fixed, report)
        for place in unfinished:
            session.output.line(
                f"\nuploads (would be better): parts of files that nobody finished stay in {place}, unseen and paid "
                "for: qo doctor --fix sets a lifecycle rule that removes them after a week"
            )
        session.output.line("\n" + "\n".join(f"{name}: {value}" for name, value in spark.items()))
        if problem is None:
            session.output.line(f"\n{settings.store} is proven; the proof is in its queue.json")
    if problem is not None:
        raise problem


async def _examine(
    settings: Settings, fix: bool, tell: Callable[[CheckResult], None]
) -> tuple[list[str], Report, QoError | None]:
    """What was fixed, the report, and why the store may not be used with these settings, if so."""
    store, _ = await open_store(settings)
    try:
        bucket = settings.location.as_bucket()
        fixed = await _fix(settings, bucket) if fix and bucket is not None else []
        await manifest.load(store)  # A store that is not there, or not ours to use, fails here with its own code.
        report = await prove(store, allow_no_versioning=settings.allow_no_versioning, on_check=tell)
        return fixed, report, await _record(settings, store, report)
    finally:
        await store.close()


async def _record(settings: Settings, store: ObjectStore, report: Report) -> QoError | None:
    """Keep the proof, or take an old one back; then say whether these settings may use the store."""
    if not report.ok:
        failed = [result for result in report.results if result.required and not result.passed]
        named = ", ".join(result.name for result in failed)
        if not any(_disproved(result) for result in failed):
            return Unavailable(f"{settings.store} did not answer, so nothing is known about it: {named}")
        if await manifest.load(store) is not None:
            await manifest.record_proof(store, None)
        return Unproven(f"{settings.store} cannot be trusted with a queue: {named}")
    proof = report.proof(at=await store.now(), server=_server(settings))
    await manifest.record_proof(store, proof, prefix_len=settings.shard_prefix_len)
    try:
        await manifest.require(
            store,
            prefix_len=settings.shard_prefix_len,
            needs_proof=needs_proof(settings),
            allow_no_versioning=settings.allow_no_versioning,
        )
    except Unproven as problem:
        return problem
    return None


def _disproved(result: CheckResult) -> bool:
    """Whether the store gave a wrong answer. One that gave none gets other advice, and keeps its old proof."""
    return any(check.name == result.name and check.advice == result.advice for check in CHECKS)


def _server(settings: Settings) -> str:
    if not settings.location.is_remote:
        return "embedded"
    return settings.s3.endpoint or "AWS S3"


def _spark(settings: Settings, fix: bool) -> dict[str, str]:
    """Which Spark and Java a worker would use. A queue needs neither, so that nothing here is a failure."""
    from qo.spark.engine import archive, java

    version = archive.spark_version()
    told = {"spark": version or "not installed: from a checkout, pip install '.[spark]'"}
    try:
        found = java.find(settings.spark, os.environ)
    except ConfigError as error:
        return told | {"java": str(error)}
    told["java"] = str(found)
    there = archive.archive_of(found, settings.spark, os.environ)
    if there is not None and settings.spark.class_archive:
        told["class archive"] = _archived(there, found, settings, fix)
    return told


def _archived(there: Archive, found: Java, settings: Settings, fix: bool) -> str:
    from qo.spark.engine import archive

    if fix and not there.there:
        try:
            archive.build(found, settings.spark)
        except Unavailable as error:
            return f"not made: {error}"
    if there.there:
        return str(there.path)
    return f"not made: {why}; --fix tries again" if (why := there.why_not) else "not yet made; --fix makes it"


async def _fix(settings: Settings, place: S3) -> list[str]:
    from qo.store.s3.setup import UPLOADS_DONE, add_upload_rule, set_up

    async with _transport(settings, place.bucket) as transport:
        fixed = await set_up(transport, place.prefix, versioning=not settings.allow_no_versioning)
    for data in _buckets(settings)[1:]:
        try:
            async with _transport(settings, data.bucket) as transport:
                if await add_upload_rule(transport, data.prefix):
                    fixed.append(f"{_url(data)}: {UPLOADS_DONE}")
        except StoreError as error:  # Of the queue's own bucket it would matter.
            fixed.append(f"{_url(data)}: no lifecycle rule was set: {error}")
    return fixed


async def _unfinished_uploads(settings: Settings) -> list[str]:
    """Where no rule removes the parts of files that nobody finished. Where that cannot be known, nothing is said."""
    from qo.store.s3.setup import aborts_uploads

    found: list[str] = []
    for place in _buckets(settings):
        async with _transport(settings, place.bucket) as transport:
            if await aborts_uploads(transport, place.prefix) is False:
                found.append(_url(place))
    return found


def _buckets(settings: Settings) -> list[S3]:
    """Of the queue, and of the data if that lies in a bucket, too."""
    data = settings.dispatcher.data.rstrip("/")
    buckets = [settings.location.as_bucket(), parse(data).as_bucket() if data.startswith("s3://") else None]
    return list(dict.fromkeys(bucket for bucket in buckets if bucket is not None))


def _url(place: S3) -> str:
    return f"s3://{place.bucket}/{place.prefix}"


@asynccontextmanager
async def _transport(settings: Settings, bucket: str) -> AsyncGenerator[Transport]:
    from qo.store.s3 import S3Store

    store = await S3Store.open(bucket, endpoint=settings.s3.endpoint, region=settings.s3.region)
    try:
        yield store.transport
    finally:
        await store.close()


def _advise(session: Session, fixed: list[str], report: Report) -> None:
    for what in fixed:
        session.output.note(what)
    for result in report.results:
        if not result.passed:
            kind = "must be mended" if result.required else "would be better"
            session.output.line(f"\n{result.name} ({kind}): {result.advice}")
