"""qo doctor."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Annotated

import typer

from qo.cli.session import Session, command, new_app, start_logging
from qo.config.location import S3
from qo.config.settings import LogLevel, Settings
from qo.errors import QoError, Unproven
from qo.store import manifest
from qo.store.opening import needs_proof, open_store
from qo.store.port import ObjectStore
from qo.store.proof import Report, prove

app = new_app()


@command(app, "doctor")
def doctor(
    session: Session,
    fix: Annotated[
        bool,
        typer.Option(
            "--fix", help="First create the bucket, enable versioning and set lifecycle rules, if need be."
        ),
    ] = False,
) -> int:
    """Prove that the store can be trusted with a queue.

    Races real writers on it, checks what comes back, and records the proof in the bucket; without one, no other
    command uses a bucket. Exits with 6 if a check that matters fails. Run it again whenever the server changes.
    """
    settings = session.settings()
    start_logging(LogLevel.WARNING)
    report, problem = asyncio.run(_examine(settings, fix))
    if session.json:
        session.output.document(
            {
                "store": settings.store,
                "ok": report.ok and problem is None,
                "problem": None if problem is None else str(problem),
                "checks": [asdict(result) for result in report.results],
            }
        )
    else:
        _show(session, settings, report)
    if problem is not None:
        raise problem
    return 0


async def _examine(settings: Settings, fix: bool) -> tuple[Report, QoError | None]:
    """The report, and why the store may not be used with these settings, if so."""
    if fix and isinstance(settings.location, S3):
        await _fix(settings)
    store, _ = await open_store(settings)
    try:
        await manifest.load(store)  # A store that is not there or not ours fails here, with its own exit code.
        report = await prove(store, allow_no_versioning=settings.allow_no_versioning)
        return report, await _record(settings, store, report)
    finally:
        await store.close()


async def _record(settings: Settings, store: ObjectStore, report: Report) -> QoError | None:
    """Keep the proof, or take an old one back; then say whether these settings may use the store."""
    if not report.ok:
        if await manifest.load(store) is not None:
            await manifest.record_proof(store, None)
        failed = ", ".join(result.name for result in report.results if result.required and not result.passed)
        return Unproven(f"{settings.store} cannot be trusted with a queue: {failed}")
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


def _server(settings: Settings) -> str:
    if not isinstance(settings.location, S3):
        return "embedded"
    return settings.s3.endpoint or "AWS S3"


async def _fix(settings: Settings) -> None:
    from qo.store.s3.setup import set_up  # placeholder

    await set_up(settings)


def _show(session: Session, settings: Settings, report: Report) -> None:
    session.output.line(f"store {settings.store} ({settings.origin('store')})")
    rows = [(result.name, "pass" if result.passed else "fail", result.detail) for result in report.results]
    session.output.table(("check", "result", "seen"), rows)
    for result in report.results:
        if not result.passed:
            kind = "must be mended" if result.required else "would be better"
            session.output.line(f"\n{result.name} ({kind}): {result.advice}")
