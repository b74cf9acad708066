"""qo plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qo.cli.invocation import Session, command, new_app
from qo.cli.pipelines.dag import Code, Target, load_whole
from qo.cli.pipelines.dispatcher_client import PAGE, ask, route
from qo.cli.pipelines.formatting import format_bytes, format_count, format_extent
from qo.core.words import plural
from qo.errors import Refused

if TYPE_CHECKING:
    from qo.api.public_client import UserClient

app = new_app()


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
    answer = ask(session, lambda client: fetch_plan(client, path, whole.source, every=every))
    if session.json:
        session.output.document(answer)
        return
    _show_changes(session, answer["diff"])
    for each in answer["rebuilds"]:
        _show_rebuild(session, each)
    read = f"{plural(answer['rows'], 'row')}, {format_bytes(answer['bytes'])}"
    session.output.line("")
    session.output.line(
        f"{plural(answer['tasks'], 'task')} that read {read}" if answer["rebuilds"] else "nothing to build"
    )


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


def _show_rebuild(session: Session, each: Mapping[str, Any]) -> None:
    about = "about " if each["estimated"] else ""
    session.output.line("")
    session.output.line(f"{each['job']}  {each['why']}")
    if each["note"] is not None:
        session.output.line(f"  {each['note']}")
        return
    existing = f", {plural(each['done'], 'partition is', 'partitions are')} there already" if each["done"] else ""
    read = f"{plural(each['rows'], 'row')}, {format_bytes(each['bytes'])}"
    session.output.line(f"  {about}{plural(each['tasks'], 'task')} that read {read}{existing}")
    for one in each["first"]:
        size = "" if one["rows"] is None else f"  {plural(one['rows'], 'row')}"
        session.output.line(f"    {format_extent(one)}{size}")
    hidden = each["partitions"] - len(each["first"])
    if hidden > 0:
        session.output.line(f"    and {format_count(hidden)} more: --all names them")
