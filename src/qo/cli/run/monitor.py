"""qo monitor: run the monitor."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from qo.cli.invocation import Session, command, new_app, setting_option
from qo.config.settings import Settings
from qo.queue.monitor import Monitor
from qo.queue.queue import Queue
from qo.worker.service import monitor_config, run_monitor

app = new_app()


@command(app, "monitor")
def monitor(
    session: Session,
    check_interval_s: Annotated[str | None, setting_option("monitor.check_interval_s")] = None,
    worker_health_threshold_s: Annotated[str | None, setting_option("monitor.worker_health_threshold_s")] = None,
    sweep_interval_s: Annotated[str | None, setting_option("monitor.sweep_interval_s")] = None,
    sweep_page_size: Annotated[str | None, setting_option("monitor.sweep_page_size")] = None,
    http: Annotated[str | None, setting_option("monitor.http")] = None,
    once: Annotated[
        bool, typer.Option("--once", help="Check once, sweep the whole queue once, print what was done, and stop.")
    ] = False,
) -> None:
    """Run the monitor: requeue tasks of dead workers, repair indexes.

    Every worker runs one, too, unless it has --no-monitor; any number may run at once.
    """
    settings = session.settings(
        {
            "monitor.check_interval_s": check_interval_s,
            "monitor.worker_health_threshold_s": worker_health_threshold_s,
            "monitor.sweep_interval_s": sweep_interval_s,
            "monitor.sweep_page_size": sweep_page_size,
            "monitor.http": http,
        }
    )
    if not once:
        session.run(settings, lambda queue: run_monitor(queue, settings))
        return
    reports = session.run(settings, lambda queue: _check_and_sweep(queue, settings))
    if session.json:
        session.output.document(reports)
        return
    for part, counts in reports.items():
        session.output.line(f"{part}: " + ", ".join(f"{name} {_text(value)}" for name, value in counts.items()))


async def _check_and_sweep(queue: Queue, settings: Settings) -> dict[str, dict[str, Any]]:
    monitor = Monitor(queue, monitor_config(settings))
    check_report = asdict(await monitor.check())
    if settings.monitor.sweep_interval_s == 0:
        return {"check": check_report}
    sweep_counts: dict[str, int] = {}
    while True:  # Ends with the round, because each page advances the cursor.
        page = await monitor.sweep(full=True)
        for name, value in asdict(page).items():
            if not isinstance(value, bool):
                sweep_counts[name] = sweep_counts.get(name, 0) + value
        if page.wrapped or page.skipped:
            return {"check": check_report, "sweep": sweep_counts}


def _text(value: object) -> str:
    return ",".join(str(part) for part in value) or "none" if isinstance(value, list) else str(value)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
