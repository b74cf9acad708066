"""qo queue list."""

from __future__ import annotations

from qo.cli.invocation import Session, command, new_app, new_group
from qo.cli.pipelines.dispatcher_client import ask
from qo.core.durations import format_duration

app = new_app()
queue = new_group(app, "queue", "List the queues of pipelines, and how much waits in each.")

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
