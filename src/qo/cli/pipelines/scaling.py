"""qo scaling: show how workers are scaled, and why."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from qo.cli.invocation import Session, command, new_app
from qo.cli.pipelines.dispatcher_client import ask
from qo.cli.pipelines.formatting import format_timestamp
from qo.core.durations import format_duration
from qo.errors import NotFound

app = new_app()

HEADERS = ("runtime", "workers", "bounds", "waiting", "oldest", "running", "decided by", "last decision")
HISTORY_HEADERS = ("at", "runtime", "decision", "why")
_STATES = ("starting", "draining", "dead")


@command(app, "scaling")
def scaling(
    session: Session,
    runtime: Annotated[
        str | None, typer.Argument(metavar="[RUNTIME]", help="Only this runtime, with its decisions.")
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=200, help="Decisions of each runtime [20].", show_default=False)
    ] = 20,
) -> None:
    """Show how workers are scaled, and why.

    qo scaler decides; [runtimes.NAME.scaling] in its settings says which runtimes it scales.
    """
    answer = ask(session, lambda client: client.get("/v1/scaling", decisions=limit))
    runtimes = [each for each in answer["runtimes"] if runtime in (None, each["runtime"])]
    if runtime is not None and not runtimes:
        raise NotFound(f"no scaler has reported a runtime {runtime!r}: qo scaling lists those that are scaled")
    if session.json:
        session.output.document({**answer, "runtimes": runtimes})
        return
    if not runtimes:
        session.output.note("nothing is scaled: write [runtimes.NAME.scaling], and run qo scaler")
        return
    session.output.table(HEADERS, [_describe_runtime(each) for each in runtimes])
    history = [(each["runtime"], decision) for each in runtimes for decision in each["decisions"]]
    history.sort(key=lambda pair: pair[1]["at"], reverse=True)
    if history:
        session.output.line("")
        session.output.table(
            HISTORY_HEADERS,
            [
                (format_timestamp(decision["at"]), name, _describe_decision(decision), decision["reason"])
                for name, decision in history[:limit]
            ],
        )


def _describe_runtime(runtime: dict[str, Any]) -> tuple[str, ...]:
    load, decisions = runtime["load"], runtime["decisions"]
    scaler = f"{runtime['scaler']} (silent)" if runtime["silent"] else runtime["scaler"]
    return (
        runtime["runtime"],
        _describe_workers(runtime),
        f"{runtime['min']} to {runtime['max']}",
        str(load["waiting"]),
        format_duration(load["oldest_s"]),
        str(load["running"]),
        scaler,
        runtime["problem"] or (_describe_decision(decisions[0]) if decisions else "-"),
    )


def _describe_workers(runtime: dict[str, Any]) -> str:
    others = [f"{runtime[state]} {state}" for state in _STATES if runtime[state]]
    return ", ".join([str(runtime["ready"]), *others])


def _describe_decision(decision: dict[str, Any]) -> str:
    return decision["action"] if decision["action"] == "keep" else f"{decision['action']} {decision['workers']}"
