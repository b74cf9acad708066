"""qo conformance."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from qo.cli.session import Session, command, new_app, start_logging
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

    For those who offer a store, or choose one; `qo doctor` is what a bucket must pass before it is used. Works under
    conformance/ and removes what it wrote. Exits with 6 if a promise is not kept that qo cannot do without.
    """
    settings = session.settings({} if place is None else {"store": place})
    start_logging(LogLevel.ERROR)
    promises = _examined(session, settings, thorough)
    problem = _problem(settings, promises)
    if session.json:
        session.output.document(
            {
                "store": settings.store,
                "ok": problem is None,
                "problem": None if problem is None else str(problem),
                "promises": [asdict(promise) for promise in promises],
            }
        )
    else:
        _explain(session, settings, promises)
    if problem is not None:
        raise problem


def _examined(session: Session, settings: Settings, thorough: bool) -> list[Promise]:
    try:
        from qo.testing import examination
    except ModuleNotFoundError as missing:
        raise ConfigError(f"the suite is run by {missing.name}: pip install {missing.name}") from None
    from qo.store.opening import open_store

    def tell(promise: Promise) -> None:
        if not session.json:
            result = "pass" if promise.kept else "fail" if promise.answered else "no answer"
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
            return examination.examine(store, runner.run, effort=effort, on_promise=tell)
        finally:
            runner.run(close())


def _problem(settings: Settings, promises: list[Promise]) -> QoError | None:
    needed = [promise for promise in promises if promise.required and not promise.kept]
    if not needed:
        return None
    if broken := [promise for promise in needed if promise.answered]:
        count = plural(len(broken), "promise is", "promises are")
        return Unproven(f"{settings.store} cannot be trusted with a queue: {count} not kept")
    count = plural(len(needed), "promise is", "promises are")
    return Unavailable(f"{settings.store} did not always answer, so {count} unknown: try again")


def _explain(session: Session, settings: Settings, promises: list[Promise]) -> None:
    broken = [promise for promise in promises if not promise.kept]
    for means in dict.fromkeys(promise.means for promise in broken):
        alike = [promise for promise in broken if promise.means == means]
        session.output.line(f"\n{means}")
        for promise in alike:
            session.output.line(f"  {promise.name}: {promise.seen}")
    if not broken:
        session.output.line(f"\nall {len(promises)} promises are kept: {settings.store} is fit for qo")
    elif not any(promise.required for promise in broken):
        kept = len(promises) - len(broken)
        session.output.line(f"\n{kept} of {len(promises)} promises are kept: {settings.store} is fit for qo")
