"""qo plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qo.cli.invocation import Session, command, new_app
from qo.cli.pipelines.dag import Code, Target, load_whole
from qo.cli.pipelines.dispatcher_client import PAGE, ask, route
from qo.cli.pipelines.formatting import format_bytes, format_count, format_extent
from qo.core.durations import format_duration
from qo.core.pricing import Operation, dollars
from qo.core.words import plural
from qo.errors import NotFound, Refused

if TYPE_CHECKING:
    from qo.api.public_client import UserClient

app = new_app()

WAKE_UP_WRITES, WAKE_UP_READS = 5, 2  # Of a wake-up that stands for one task.


@command(app, "plan")
def plan(
    session: Session,
    target: Target,
    every: Annotated[
        bool, typer.Option("--all", help="Name every partition, not only the first of each job.")
    ] = False,
    code: Code = True,
) -> None:
    """Show what deploying a pipeline would rebuild.

    Changes nothing. The size of an input that is itself rebuilt is estimated from its current size.
    """
    whole = load_whole(session, target, code=code)
    path = route("dags", whole.dag.name, "plan")

    async def fetch(client: UserClient) -> tuple[Any, dict[str, float]]:
        answer = await fetch_plan(client, path, whole.source, every=every)
        return answer, await fetch_means(client, whole.dag.name) if answer["rebuilds"] else {}

    answer, means = ask(session, fetch)
    estimate = estimate_cost(answer["rebuilds"], means)
    if session.json:
        session.output.document({**answer, "estimate": estimate})
        return
    _show_changes(session, answer["diff"])
    for each in answer["rebuilds"]:
        _show_rebuild(session, each, means.get(each["job"]))
    read = f"{plural(answer['rows'], 'row')}, {format_bytes(answer['bytes'])}"
    session.output.line("")
    session.output.line(
        f"{plural(answer['tasks'], 'task')} that read {read}" if answer["rebuilds"] else "nothing to build"
    )
    if answer["rebuilds"]:
        _show_estimate(session, estimate)


async def fetch_means(client: UserClient, dag: str) -> dict[str, float]:
    """Return how long the last tasks of each job took on average; nothing for a pipeline that is not deployed."""
    try:
        answer = await client.get(route("dags", dag) + "/durations")
    except NotFound:
        return {}
    return {each["job"]: each["mean_s"] for each in answer["jobs"] if each["mean_s"] is not None}


def estimate_cost(rebuilds: Sequence[Mapping[str, Any]], means: Mapping[str, float]) -> dict[str, Any]:
    """Return the working time of the tasks whose jobs have run before, and the price of all their requests.

    A task is taken to need a wake-up of its own, one file written and one read for each input: what it costs at
    least where data and queue are in S3, and at most for wake-ups, which many tasks share under load.
    """
    tasks = sum(each["tasks"] for each in rebuilds)
    requests = {
        Operation.PUT: tasks * (WAKE_UP_WRITES + 1),
        Operation.GET: tasks * (WAKE_UP_READS + 1),
    }
    return {
        "tasks": tasks,
        "work_s": sum(each["tasks"] * means.get(each["job"], 0.0) for each in rebuilds),
        "jobs_without_runs": sorted({each["job"] for each in rebuilds if each["tasks"]} - {*means}),
        "dollars": dollars(requests) if tasks else 0.0,
    }


def _show_estimate(session: Session, estimate: Mapping[str, Any]) -> None:
    parts: list[str] = []
    if estimate["work_s"]:
        parts.append(f"about {format_duration(estimate['work_s'])} of work by the last runs")
    if estimate["jobs_without_runs"]:
        parts.append(f"not known for {', '.join(estimate['jobs_without_runs'])}, which never ran")
    session.output.line("; ".join([*parts, f"about ${estimate['dollars']:.4f} for requests, if all is in S3"]))


async def fetch_plan(client: UserClient, path: str, source: str, *, every: bool) -> Any:
    """Fetch the plan; with ``every``, all its partitions. Raises Refused if another version was activated meanwhile."""
    body = {"source": source}
    answer = await client.post(path, body)
    for each in answer["rebuilds"] if every else ():
        while each["next"] is not None:
            further = await client.post(path, body, job=each["job"], after=each["next"], limit=PAGE)
            page = next((page for page in further["rebuilds"] if page["job"] == each["job"]), None)
            if page is None or further["diff"]["against"] != answer["diff"]["against"]:
                raise Refused("another version was activated meanwhile: ask for the plan again")
            each["first"] += page["first"]
            each["next"] = page["next"]
    return answer


def _show_changes(session: Session, diff: Mapping[str, Any]) -> None:
    rebuilt = {each["job"] for each in diff["rebuilt"]}
    edited = {each["job"] for each in diff["edited"]}
    record = {
        "against": "nothing: no version is active" if diff["against"] is None else f"version {diff['against']}",
        "new": ", ".join(diff["added"]),
        "edited": ", ".join(sorted(edited)),
        "downstream": ", ".join(sorted(rebuilt - edited - set(diff["added"]))),
        "kept": ", ".join(diff["carried_over"]),
        "removed": ", ".join(diff["removed"]),
    }
    session.output.record({name: value for name, value in record.items() if value})


def _show_rebuild(session: Session, each: Mapping[str, Any], mean_s: float | None) -> None:
    about = "about " if each["estimated"] else ""
    session.output.line("")
    session.output.line(f"{each['job']}  {each['why']}")
    if each["note"] is not None:
        session.output.line(f"  {each['note']}")
        return
    existing = f", {plural(each['done'], 'partition is', 'partitions are')} there already" if each["done"] else ""
    read = f"{plural(each['rows'], 'row')}, {format_bytes(each['bytes'])}"
    pace = (
        "" if mean_s is None or not each["tasks"] else f", about {format_duration(each['tasks'] * mean_s)} of work"
    )
    session.output.line(f"  {about}{plural(each['tasks'], 'task')} that read {read}{existing}{pace}")
    for one in each["first"]:
        size = "" if one["rows"] is None else f"  {plural(one['rows'], 'row')}"
        session.output.line(f"    {format_extent(one)}{size}")
    hidden = each["partitions"] - len(each["first"])
    if hidden > 0:
        session.output.line(f"    and {format_count(hidden)} more: --all names them")
