"""qo queue list and held."""

from __future__ import annotations

from qo.cli.invocation import Session, command, new_app, new_group
from qo.cli.pipelines.dispatcher_client import ask
from qo.cli.pipelines.formatting import format_timestamp
from qo.core.durations import format_duration

app = new_app()
queue = new_group(app, "queue", "List the queues of pipelines, and how much waits in each.")

HELD_HEADERS = ("job", "kind", "waiting", "since", "why", "goes on when")
HEADERS = ("queue", "runtime", "pressure", "waiting", "oldest", "why")


@command(queue, "list")
def list_(session: Session) -> None:
    """List the queues of pipelines, and how much waits in each.

    The producers of a queue with high pressure are paused until it has drained.
    """
    answer = ask(session, lambda client: client.get("/v1/queues"))
    if session.json:
        session.output.document(answer["queues"])
        return
    rows = [
        (
            each["name"],
            each["runtime"] or "-",
            "high" if each["tripped_at"] else "normal",
            str(each["depth"]),
            format_duration(each["oldest_s"]),
            each["unserved"] or each["reason"] or "",
        )
        for each in answer["queues"]
    ]
    session.output.table(HEADERS, rows)


@command(queue, "held")
def held(session: Session) -> None:
    """List what is held back, why, since when, and what must happen for it to go on."""
    answer = ask(session, lambda client: client.get("/v1/held"))
    if session.json:
        session.output.document(answer)
        return
    rows = [
        (
            f"{each['dag']}.{each['job']}",
            each["kind"] or "job",
            str(each["waiting"] or ""),
            format_timestamp(each["since"]),
            each["reason"],
            each["next"],
        )
        for each in answer["held"]
    ]
    if not rows:
        session.output.note("nothing is held back")
        return
    session.output.table(HELD_HEADERS, rows)
    if answer["more"]:
        session.output.note(f"only the first {len(rows)} are shown")
