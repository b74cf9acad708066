"""Print DAGs and their versions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from qo.cli.invocation import Session
from qo.cli.pipelines.formatting import format_timestamp
from qo.core.words import plural


def show_dags(session: Session, dags: Sequence[Mapping[str, Any]]) -> None:
    rows = [
        (
            each["name"],
            _number(each["active"]),
            f"{each['next']} ({each['next_status']})" if each["next"] else "",
            _number(each["previous"]),
            str(each["jobs"]),
            "paused" if each["paused"] is not None else "",
            format_timestamp(each["updated_at"]),
        )
        for each in dags
    ]
    session.output.table(("dag", "active", "next", "previous", "jobs", "state", "changed"), rows)


def show_version(session: Session, answer: Mapping[str, Any], versions: Sequence[Mapping[str, Any]]) -> None:
    session.output.record(
        {
            "dag": answer["dag"],
            "version": str(answer["version"]),
            "status": answer["status"],
            "active": _number(answer["active"]),
            "paused": (answer["paused"] or "yes") if answer["paused"] is not None else "",
            "deployed": f"{format_timestamp(answer['created_at'])} by {answer['created_by']}",
            "content": answer["content_hash"][:16],
            "publishes": ", ".join(f"{name} ({job})" for name, job in answer["publish"].items()),
        }
    )
    session.output.line("")
    session.output.table(
        ("job", "runtime", "operator", "reads", "tasks", "note"), [_job(each) for each in answer["jobs"]]
    )
    session.output.line("")
    rows = [
        (
            str(each["version"]),
            each["status"],
            format_timestamp(each["created_at"]),
            each["created_by"],
            format_timestamp(each["activated_at"]),
        )
        for each in versions
    ]
    session.output.table(("version", "status", "deployed", "by", "activated"), rows)


def _job(each: Mapping[str, Any]) -> tuple[str, ...]:
    paused = "paused" + (f": {each['paused']}" if each["paused"] else "") if each["paused"] is not None else ""
    hold = "" if paused and (each["hold"] or "").startswith("paused") else each["hold"] or ""
    source = f"source {each['source']}" if each["source"] else ""
    rebuilt = "rebuilt" if each["rebuilt"] else ""
    own = "runs the worker's own code" if ":" in each["operator"] and each["bundle"] is None else ""
    return (
        each["name"],
        each["runtime"],
        each["operator"],
        ", ".join(each["reads"]),
        ", ".join(f"{count:,} {status}" for status, count in sorted(each["tasks"].items())),
        "; ".join(part for part in (paused, hold, source, rebuilt, own) if part),
    )


def show_diff(session: Session, answer: Mapping[str, Any]) -> None:
    _show_changes(session, answer)
    if answer["rolled_back"]:
        from qo.api.redeploying import describe_rollback

        session.output.line(f"{describe_rollback(answer)}: deploy it again with --again, or change the file")


def _show_changes(session: Session, answer: Mapping[str, Any]) -> None:
    if answer["same"]:
        session.output.line(f"{answer['dag']}: the same as version {answer['against']}, which is active")
        return
    session.output.record(
        {
            "dag": answer["dag"],
            "against": f"version {answer['against']}" if answer["against"] else "nothing: no version is active",
            "added": ", ".join(answer["added"]),
            "removed": ", ".join(answer["removed"]),
            "edited": "\n".join(f"{each['job']} ({', '.join(each['fields'])})" for each in answer["edited"]),
            "only how it runs": "\n".join(
                f"{each['job']} ({', '.join(each['fields'])})" for each in answer["operational"]
            ),
            "rebuilt": "\n".join(f"{each['job']}: {each['why']}" for each in answer["rebuilt"]),
            "carried over": ", ".join(answer["carried_over"]),
        }
    )


def show_deployed(session: Session, answers: Mapping[str, Any]) -> None:
    """Print what deploying has done, and what is left to do by hand."""
    deployed = answers["deployed"]
    name, version = deployed["dag"], deployed["version"]
    if not deployed["changed"]:
        session.output.line(f"{name} version {version}  {deployed['status']} (as before)")
    else:
        rebuilt = len(deployed["diff"]["rebuilt"])
        session.output.line(f"{name} version {version}  {deployed['status']}, {plural(rebuilt, 'job')} to build")
    if deployed["abandoned"] is not None:
        session.output.note(f"version {deployed['abandoned']} was staged and is abandoned")
    if "activated" in answers:
        show_transition(session, answers["activated"])
    elif deployed["status"] != "active":
        session.output.note(f"activate it with qo dag ready {name} {version} and qo dag activate {name} {version}")


def show_transition(session: Session, answer: Mapping[str, Any]) -> None:
    replaced = f", in place of {answer['replaced']}" if answer["replaced"] else ""
    before = "" if answer["changed"] else " (as before)"
    session.output.line(f"{answer['dag']} version {answer['version']}  {answer['status']}{replaced}{before}")
    if answer["rebuilt"] or answer["left"] or answer["failed"]:
        session.output.note(
            f"rebuilt: {plural(answer['rebuilt'], 'task')} done, {answer['left']:,} left, {answer['failed']:,} failed"
        )
    for key, text in _COUNTS.items():
        if answer[key]:
            session.output.note(f"{answer[key]:,} {text}")
    if answer["cancelling"]:
        session.output.note("its other pending tasks are being cancelled; none of them starts")


_COUNTS = {
    "cancelled": "pending tasks of the other version were cancelled",
    "cancel_requested": "running tasks of the other version were asked to stop",
    "withheld": "pending tasks of the other version wait, in case of a rollback",
}


def _number(value: int | None) -> str:
    return "" if value is None else str(value)
