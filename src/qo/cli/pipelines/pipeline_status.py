"""qo status PIPELINE: one pipeline as one screen; qo status: all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from qo.cli.invocation import Session
from qo.cli.pipelines.dispatcher_client import PAGE, ask, route
from qo.cli.pipelines.formatting import format_bytes, format_count
from qo.core.durations import format_duration
from qo.core.words import plural

if TYPE_CHECKING:
    from qo.api.public_client import UserClient

EVERY_S = 2.0
BAR = 20
FAILURES = 5
CLEAR = "\x1b[H\x1b[J"


def show_pipelines(session: Session, *, watch: bool) -> None:
    """Show all pipelines at a glance."""

    async def fetch(client: UserClient) -> Any:
        return await client.get("/v1/health", limit=PAGE)

    def show(answer: Any) -> bool:
        headers = ("pipeline", "version", "jobs", "running", "waiting", "failed", "held", "state")
        rows = [_summary(each) for each in answer["pipelines"]]
        if rows:
            session.output.table(headers, rows)
        else:
            session.output.line("no pipeline is deployed: qo dag deploy pipeline.yaml")
        return False

    _repeat(session, fetch, show, watch=watch)


def show_pipeline(session: Session, name: str, *, watch: bool) -> None:
    """Show one pipeline: its jobs with their progress, what failed, and how old its data is."""

    async def fetch(client: UserClient) -> Any:
        version = await client.get(route("dags", name))
        durations = await client.get(route("dags", name) + "/durations")
        health = await client.get("/v1/health", limit=PAGE)
        failures = await client.get("/v1/tasks", dag=name, status="failed", limit=FAILURES)
        return {
            "version": version,
            "durations": {each["job"]: each for each in durations["jobs"]},
            "health": next((each for each in health["pipelines"] if each["name"] == name), None),
            "now": health["now"],
            "failures": failures["tasks"],
        }

    def show(answer: Any) -> bool:
        _show_head(session, answer)
        _show_jobs(session, answer)
        _show_failures(session, answer["failures"])
        _show_published(session, answer)
        health = answer["health"]
        return health is None or not health["running"] + health["waiting"]

    _repeat(session, fetch, show, watch=watch)


def _repeat(
    session: Session, fetch: Callable[[UserClient], Any], show: Callable[[Any], bool], *, watch: bool
) -> None:
    """Show the answer once or, with ``watch``, again and again until there is nothing left to do."""
    while True:
        answer = ask(session, fetch)
        if session.json:
            session.output.document(answer)
            return
        if watch:
            session.output.line(CLEAR + datetime.fromisoformat(_now(answer)).strftime("%H:%M:%S UTC"))
        is_quiet = show(answer)
        if not watch or is_quiet:
            return
        time.sleep(EVERY_S)


def _now(answer: Any) -> str:
    return str(answer["now"])


def _summary(each: Mapping[str, Any]) -> tuple[str, ...]:
    version = "" if each["active"] is None else str(each["active"])
    if each["next"] is not None:
        version += f", {each['next']} {each['next_status']}"
    counts = tuple(format_count(each[name]) for name in ("jobs", "running", "waiting", "failed", "held"))
    return (each["name"], version, *counts, describe_condition(each))


def describe_condition(health: Mapping[str, Any]) -> str:
    """Return the worst thing about a pipeline that somebody has to know."""
    if health["paused"] is not None:
        return f"paused: {health['paused']}" if health["paused"] else "paused"
    if health["sources_failed"]:
        return plural(health["sources_failed"], "source does not run", "sources do not run")
    for name, text in (
        ("failed", "failed"),
        ("late", "late"),
        ("held", "held back"),
        ("running", "running"),
        ("waiting", "waiting"),
    ):
        if health.get(name):  # An older dispatcher does not say what is late.
            return text
    return "up to date"


def _show_head(session: Session, answer: Mapping[str, Any]) -> None:
    version, health = answer["version"], answer["health"]
    state = "" if health is None else describe_condition(health)
    session.output.line(f"{version['dag']} version {version['version']} ({version['status']})  {state}")
    if health is not None and health["next"] is not None:
        session.output.line(f"version {health['next']} is {health['next_status']}: qo dag show {version['dag']}")
    session.output.line("")


def _show_jobs(session: Session, answer: Mapping[str, Any]) -> None:
    rows: list[tuple[str, ...]] = []
    for job in answer["version"]["jobs"]:
        tasks = job["tasks"]
        completed, running = tasks.get("completed", 0), tasks.get("running", 0)
        waiting, failed = tasks.get("pending", 0), tasks.get("failed", 0)
        pace = answer["durations"].get(job["name"], {})
        mean_s = pace.get("mean_s")
        eta_s = estimate_s(running, waiting, mean_s)
        rows.append(
            (
                job["name"],
                progress_bar(completed, running, waiting, failed),
                format_count(completed),
                format_count(running),
                format_count(waiting),
                format_count(failed),
                "" if mean_s is None else _seconds(mean_s),
                "" if eta_s is None else f"about {format_duration(eta_s)}",
                job["hold"] or ("" if job["paused"] is None else "paused"),
            )
        )
    session.output.table(("job", "", "done", "running", "waiting", "failed", "takes", "left", "held"), rows)


def estimate_s(running: int, waiting: int, mean_s: float | None) -> float | None:
    """Return how long the waiting and running tasks will take, if as many as now run side by side."""
    if mean_s is None or not running + waiting:
        return None
    return (running / 2 + waiting) * mean_s / max(1, running)


def progress_bar(completed: int, running: int, waiting: int, failed: int) -> str:
    """Return a bar of fixed width; whatever there is of takes at least one place."""
    total = completed + running + waiting + failed
    if completed == total:
        return ("#" if total else ".") * BAR
    marks = {"#": completed, ">": running, "x": failed}
    bar = "".join(mark * (max(1, BAR * n // total) if n else 0) for mark, n in marks.items())
    return bar[:BAR].ljust(BAR, ".")


def _show_failures(session: Session, failures: Sequence[Mapping[str, Any]]) -> None:
    if not failures:
        return
    session.output.line("")
    for each in failures:
        about = each["partition_key"] or each["cursor"] or ""
        session.output.line(f"failed: {each['job']} {about}  {(each['last_error'] or '').partition(chr(10))[0]}")
        session.output.line(f"        qo run show {each['id']}")


def _show_published(session: Session, answer: Mapping[str, Any]) -> None:
    if answer["health"] is None or not answer["health"]["published"]:
        return
    now = datetime.fromisoformat(answer["now"])
    session.output.line("")
    rows = [
        (
            each["name"],
            format_count(each["partitions"]),
            format_count(each["rows"]),
            format_bytes(each["bytes"]),
            "never" if each["committed_at"] is None else _age(now, each["committed_at"]),
        )
        for each in answer["health"]["published"]
    ]
    session.output.table(("dataset", "partitions", "rows", "size", "committed"), rows)


def _age(now: datetime, at: str) -> str:
    return f"{format_duration(max(0.0, (now - datetime.fromisoformat(at)).total_seconds()))} ago"


def _seconds(value: float) -> str:
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s"
