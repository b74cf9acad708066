"""qo conformance: run the conformance suite on a store."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qo.cli.invocation import Session, command, new_app, start_logging
from qo.config.settings import LogLevel, Settings
from qo.core.words import plural
from qo.errors import ConfigError, QoError, Unavailable, Unproven

if TYPE_CHECKING:
    from qo.testing.examination import Promise

app = new_app()

WIDTHS = (78, len("no answer"))


@command(app, "conformance")
def conformance(
    session: Session,
    place: Annotated[
        str | None,
        typer.Argument(metavar="[STORE]", help="The store [the one of the settings].", show_default=False),
    ] = None,
    thorough: Annotated[
        bool,
        typer.Option("--thorough", help="Race more writers more often, and read several pages of versions."),
    ] = False,
) -> None:
    """Test a store with qo's conformance suite.

    For those who write a store or choose one; a bucket only has to pass `qo doctor` before it is used. Works below
    conformance/ and removes what it wrote. Exits with 6 if the store breaks a promise that qo cannot do without.
    """
    settings = session.settings({} if place is None else {"store": place})
    start_logging(LogLevel.ERROR)
    promises = _examine(session, settings, thorough)
    problem = _problem(settings, promises)
    if session.json:
        session.output.document(
            {
                "store": settings.store,
                "ok": problem is None,
                "problem": None if problem is None else str(problem),
                "promises": [_document(promise) for promise in promises],
            }
        )
    else:
        _explain(session, settings, promises)
    if problem is not None:
        raise problem


def _document(promise: Promise) -> dict[str, Any]:
    return {
        "name": promise.name,
        "part": promise.part,
        "kept": promise.is_kept,
        "answered": promise.is_answered,
        "required": promise.required,
        "seen": promise.observed,
        "means": promise.consequence,
    }


def _examine(session: Session, settings: Settings, thorough: bool) -> list[Promise]:
    try:
        from qo.testing import examination
    except ModuleNotFoundError as missing:
        raise ConfigError(f"the suite needs {missing.name}: pip install {missing.name}") from None
    from qo.store.opening import open_store

    def print_promise(promise: Promise) -> None:
        if not session.json:
            result = "pass" if promise.is_kept else "fail" if promise.is_answered else "no answer"
            session.output.row((promise.name, result), WIDTHS)

    async def close() -> None:
        await store.close()

    with asyncio.Runner() as runner:
        store, _ = runner.run(open_store(settings))
        try:
            runner.run(examination.reach(store))
            if not session.json:
                session.output.row(("PROMISE", "RESULT"), WIDTHS)
            effort = examination.THOROUGH if thorough else examination.USUAL
            return examination.examine(store, runner.run, effort=effort, on_promise=print_promise)
        finally:
            runner.run(close())


def _problem(settings: Settings, promises: list[Promise]) -> QoError | None:
    needed = [promise for promise in promises if promise.required and not promise.is_kept]
    if not needed:
        return None
    if broken := [promise for promise in needed if promise.is_answered]:
        count = plural(len(broken), "promise is", "promises are")
        return Unproven(f"{settings.store} cannot be trusted with a queue: {count} not kept")
    count = plural(len(needed), "promise is", "promises are")
    return Unavailable(f"{settings.store} did not always answer, so {count} unknown: try again")


def _explain(session: Session, settings: Settings, promises: list[Promise]) -> None:
    broken = [promise for promise in promises if not promise.is_kept]
    for consequence in dict.fromkeys(promise.consequence for promise in broken):
        alike = [promise for promise in broken if promise.consequence == consequence]
        session.output.line(f"\n{consequence}")
        for promise in alike:
            session.output.line(f"  {promise.name}: {promise.observed}")
    if not broken:
        session.output.line(f"\nall {len(promises)} promises are kept: {settings.store} is fit for qo")
    elif not any(promise.required for promise in broken):
        kept_count = len(promises) - len(broken)
        session.output.line(f"\n{kept_count} of {len(promises)} promises are kept: {settings.store} is fit for qo")
