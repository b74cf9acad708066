"""qo runtime list."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from qo.cli.invocation import Session, command, new_app, new_group
from qo.cli.pipelines.dispatcher_client import ask
from qo.core.durations import format_duration
from qo.errors import NotFound

if TYPE_CHECKING:
    from qo.pipeline.registry import Registry

app = new_app()
runtime = new_group(app, "runtime", "List the runtimes of pipelines, their queues and their limits.")

HEADERS = (
    "runtime",
    "kind",
    "queues",
    "in flight",
    "timeout",
    "image",
    "memory",
    "cpu",
    "parallel",
    "network",
    "env",
)


@command(runtime, "list")
def list_(session: Session) -> None:
    """List the runtimes of pipelines, their queues and their limits.

    For those whose functions the dispatcher starts: how many run at a time, whether they reach the network, and which
    variables they may request. Runtimes are configured by tables [runtimes.NAME] in the settings of the dispatcher.
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
            *_describe_functions(each),
        )
        for each in answer["runtimes"]
    ]
    session.output.table(HEADERS, rows)


def _describe_functions(runtime: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return how many functions run at a time, whether they reach the network, and which variables they may request."""
    if runtime.get("parallel") is None:  # Its tasks run in workers; or an earlier dispatcher, which does not say.
        return "-", "-", "-"
    return str(runtime["parallel"]), "yes" if runtime["network"] else "no", ",".join(runtime["env"]) or "none"


def _describe_queue(queue: dict[str, Any]) -> str:
    return queue["name"] if queue["weight"] == 1 else f"{queue['name']}={queue['weight']}"


def _describe_limits(runtime: dict[str, Any]) -> str:
    """Return the limits of a runtime, of its queues and of its operators, in words."""
    limits = [] if runtime["max_in_flight"] is None else [str(runtime["max_in_flight"])]
    limits += [f"{each['name']} {each['max_in_flight']}" for each in runtime["queues"] if each["max_in_flight"]]
    limits += [f"{operator} {most}" for operator, most in runtime["operator_limits"].items()]
    return ", ".join(limits) or "any"


def find_registry(session: Session, *, offline: bool = False) -> Registry:
    """Return the runtimes that a pipeline may name: those of the settings or, if these name none, of the dispatcher."""
    from qo.config.settings import DEFAULT as DEFAULT_ORIGIN
    from qo.pipeline.registry import configured_registry

    settings = session.settings()
    if offline or settings.dispatcher.url is None or settings.origin("runtimes") != DEFAULT_ORIGIN:
        return configured_registry(settings.runtimes)
    try:
        return registry_of_answer(ask(session, lambda client: client.get("/v1/runtimes"))["runtimes"])
    except NotFound:  # An earlier dispatcher, which has only what is built in.
        return configured_registry(())


def registry_of_answer(runtimes: Iterable[Mapping[str, Any]]) -> Registry:
    """Return the registry of a dispatcher, as far as it decides what a pipeline may name."""
    from qo.config.runtimes import RuntimeSettings
    from qo.pipeline.registry import DEFAULT, Launcher, configured_registry

    return configured_registry(
        RuntimeSettings(
            name=each["name"],
            kind=None if each["name"] in DEFAULT.runtimes else each["kind"],
            queues=tuple(f"{queue['name']}={queue['weight']}" for queue in each["queues"])
            if each["launcher"] == Launcher.QUEUE
            else (),
        )
        for each in runtimes
    )
