"""qo runtime list."""

from __future__ import annotations

from typing import Any

from qo.cli.invocation import Session, command, new_app, new_group
from qo.cli.pipelines.dispatcher_client import ask
from qo.core.durations import format_duration

app = new_app()
runtime = new_group(app, "runtime", "List the runtimes of pipelines, their queues and their limits.")

HEADERS = ("runtime", "kind", "queues", "in flight", "timeout", "image", "memory", "cpu")


@command(runtime, "list")
def list_(session: Session) -> None:
    """List the runtimes of pipelines, their queues and their limits.

    They are configured by tables [runtimes.NAME] in the settings of the dispatcher.
    """
    answer = ask(session, lambda client: client.get("/v1/runtimes"))
    if session.json:
        session.output.document(answer["runtimes"])
        return
    rows = [
        (
            each["name"],
            each["kind"],
            ",".join(_describe_queue(queue) for queue in each["queues"]),
            _describe_limits(each),
            format_duration(each["timeout_seconds"]),
            each["image"] or "-",
            each["memory"] or "-",
            "-" if each["cpu"] is None else f"{each['cpu']:g}",
        )
        for each in answer["runtimes"]
    ]
    session.output.table(HEADERS, rows)


def _describe_queue(queue: dict[str, Any]) -> str:
    return queue["name"] if queue["weight"] == 1 else f"{queue['name']}={queue['weight']}"


def _describe_limits(runtime: dict[str, Any]) -> str:
    """Return the limits of a runtime, of its queues and of its operators, in words."""
    limits = [] if runtime["max_in_flight"] is None else [str(runtime["max_in_flight"])]
    limits += [f"{each['name']} {each['max_in_flight']}" for each in runtime["queues"] if each["max_in_flight"]]
    limits += [f"{operator} {most}" for operator, most in runtime["operator_limits"].items()]
    return ", ".join(limits) or "any"
