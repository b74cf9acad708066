"""qo doctor: prove a store, and set up a bucket."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from qo.cli.invocation import Session, command, new_app, start_logging
from qo.config.location import S3, parse
from qo.config.settings import LogLevel, Settings
from qo.errors import ConfigError, QoError, StoreError, Unavailable, Unproven
from qo.store import queue_manifest
from qo.store.checks import CHECKS
from qo.store.opening import needs_proof, open_store
from qo.store.port import ObjectStore
from qo.store.proof import CheckResult, Report, prove

if TYPE_CHECKING:
    from qo.spark.engine.class_archive import Archive
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
            help="First create the bucket, enable versioning and set lifecycle rules where necessary; then build the "
            "archive of Spark's classes.",
        ),
    ] = False,
) -> None:
    """Prove that a store can be trusted with a queue.

    Runs concurrent writers, checks the results, and records the proof in the bucket; without a proof no other command
    uses the bucket. Exits with 6 if a required check fails. Run it again whenever the server changes.
    """
    settings = session.settings()
    start_logging(LogLevel.WARNING)

    def print_result(result: CheckResult) -> None:
        if not session.json:
            session.output.row((result.name, "pass" if result.passed else "fail", result.detail), WIDTHS)

    fixed, report, problem = asyncio.run(_examine(settings, fix, print_result))
    unfinished = asyncio.run(_unfinished_uploads(settings))
    spark = _describe_spark(settings, fix)
    credentials = _describe_credentials(settings)
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
                "credentials": credentials,
            }
        )
    else:
        _advise(session, fixed, report)
        for place in unfinished:
            session.output.line(
                f"\nuploads (recommended): unfinished uploads stay in {place}, invisible but paid for; qo doctor --fix "
                "sets a lifecycle rule that removes them after a week"
            )
        session.output.line("\n" + "\n".join(f"{name}: {value}" for name, value in spark.items()))
        if credentials is not None:
            session.output.line(f"credentials of attempts: {credentials}")
        if problem is None:
            session.output.line(f"\n{settings.store} is proven; the proof is in its queue.json")
    if problem is not None:
        raise problem


async def _examine(
    settings: Settings, fix: bool, print_result: Callable[[CheckResult], None]
) -> tuple[list[str], Report, QoError | None]:
    """Return what was fixed, the report, and the error if the store may not be used with these settings."""
    store, _ = await open_store(settings)
    try:
        bucket = settings.location.as_bucket()
        fixed = await _fix(settings, bucket) if fix and bucket is not None else []
        await queue_manifest.load(
            store
        )  # Raises for a store that is missing, or that is not a queue of this version.
        report = await prove(store, allow_no_versioning=settings.allow_no_versioning, on_check=print_result)
        return fixed, report, await _record(settings, store, report)
    finally:
        await store.close()


async def _record(settings: Settings, store: ObjectStore, report: Report) -> QoError | None:
    """Record the proof, or remove an old one; return the error if these settings may not use the store."""
    if not report.ok:
        failed = [result for result in report.results if result.required and not result.passed]
        names = ", ".join(result.name for result in failed)
        if not any(_disproved(result) for result in failed):
            return Unavailable(f"{settings.store} did not answer, so nothing is known about it: {names}")
        if await queue_manifest.load(store) is not None:
            await queue_manifest.record_proof(store, None)
        return Unproven(f"{settings.store} cannot be trusted with a queue: {names}")
    proof = report.proof(at=await store.now(), server=_server(settings))
    await queue_manifest.record_proof(store, proof, prefix_len=settings.shard_prefix_len)
    try:
        await queue_manifest.require(
            store,
            prefix_len=settings.shard_prefix_len,
            needs_proof=needs_proof(settings),
            allow_no_versioning=settings.allow_no_versioning,
        )
    except Unproven as problem:
        return problem
    return None


def _disproved(result: CheckResult) -> bool:
    """Return whether the store gave a wrong answer. A store that did not answer keeps its old proof."""
    return any(check.name == result.name and check.advice == result.advice for check in CHECKS)


def _server(settings: Settings) -> str:
    if not settings.location.is_remote:
        return "embedded"
    return settings.s3.endpoint or "AWS S3"


def _describe_spark(settings: Settings, fix: bool) -> dict[str, str]:
    """Return which Spark and Java a worker would use. A queue needs neither, so nothing here is a failure."""
    from qo.spark.engine import class_archive, java

    version = class_archive.spark_version()
    versions = {"spark": version or "not installed: from a checkout, pip install '.[spark]'"}
    try:
        installation = java.find(settings.spark, os.environ)
    except ConfigError as error:
        return versions | {"java": str(error)}
    versions["java"] = str(installation)
    archive = class_archive.archive_of(installation, settings.spark, os.environ)
    if archive is not None and settings.spark.class_archive:
        versions["class archive"] = _describe_archive(archive, installation, settings, fix)
    return versions


def _describe_credentials(settings: Settings) -> str | None:
    """Return whether attempts read and write data with credentials of their own; None if it is in no bucket."""
    if not settings.dispatcher.data_root.startswith("s3://"):
        return None
    from qo.dispatcher.auth.enforcement import examine

    return examine(settings)[1]


def _describe_archive(archive: Archive, installation: Java, settings: Settings, fix: bool) -> str:
    from qo.spark.engine import class_archive

    if fix and not archive.exists:
        try:
            class_archive.build(installation, settings.spark)
        except Unavailable as error:
            return f"not built: {error}"
    if archive.exists:
        return str(archive.path)
    return f"not built: {why}; --fix tries again" if (why := archive.failure) else "not built yet; --fix builds it"


async def _fix(settings: Settings, place: S3) -> list[str]:
    from qo.store.s3.setup import UPLOADS_DONE, add_upload_rule, set_up

    async with _transport(settings, place.bucket) as transport:
        fixed = await set_up(transport, place.prefix, versioning=not settings.allow_no_versioning)
    for data in _buckets(settings)[1:]:
        try:
            async with _transport(settings, data.bucket) as transport:
                if await add_upload_rule(transport, data.prefix):
                    fixed.append(f"{_url(data)}: {UPLOADS_DONE}")
        except StoreError as error:  # Only for the bucket of the queue would that be an error.
            fixed.append(f"{_url(data)}: no lifecycle rule was set: {error}")
    return fixed


async def _unfinished_uploads(settings: Settings) -> list[str]:
    """Return the places where no lifecycle rule removes unfinished uploads, as far as that can be checked."""
    from qo.store.s3.setup import aborts_uploads

    places: list[str] = []
    for place in _buckets(settings):
        async with _transport(settings, place.bucket) as transport:
            if await aborts_uploads(transport, place.prefix) is False:
                places.append(_url(place))
    return places


def _buckets(settings: Settings) -> list[S3]:
    """Return the bucket of the queue, and that of the data if there is one."""
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
            kind = "required" if result.required else "recommended"
            session.output.line(f"\n{result.name} ({kind}): {result.advice}")
