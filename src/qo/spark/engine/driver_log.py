"""Lines that Spark's driver logs on behalf of an attempt, for the log of the attempt.

Log4j knows the attempt of a line by its thread: that of the attempt itself in the driver and, on a local master, those
of its tasks. It writes such lines to a file for each attempt, which the worker reads; all lines go where they went
before, too. Lines of Spark's own threads, as of its scheduler, belong to no attempt.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

# A key that Spark passes on from the properties of a job to the threads of its tasks.
KEY = "mdc.qo_attempt"
READ_BYTES_MAX = 1024 * 1024  # At a time.
_LEVEL, _OPTIONS = "spark.log.level", "spark.driver.defaultJavaOptions"
_LEVELS = ("OFF", "FATAL", "ERROR", "WARN", "INFO", "DEBUG", "TRACE", "ALL")

_CONFIGURATION = """
status = error
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{{yy/MM/dd HH:mm:ss}} %p %c{{1}}: %m%n%ex
appender.console.filter.threshold.type = ThresholdFilter
appender.console.filter.threshold.level = {console}

appender.attempts.type = Routing
appender.attempts.name = attempts
appender.attempts.filter.burst.type = BurstFilter
appender.attempts.filter.burst.level = FATAL
appender.attempts.filter.burst.rate = 200
appender.attempts.filter.burst.maxBurst = 5000
appender.attempts.purge.type = IdlePurgePolicy
appender.attempts.purge.timeToLive = 5
appender.attempts.purge.timeUnit = seconds
appender.attempts.routes.type = Routes
appender.attempts.routes.pattern = $${{ctx:{key}}}
appender.attempts.routes.none.type = Route
appender.attempts.routes.none.key = $${{ctx:{key}}}
appender.attempts.routes.none.null.type = Null
appender.attempts.routes.none.null.name = none
appender.attempts.routes.each.type = Route
appender.attempts.routes.each.file.type = File
appender.attempts.routes.each.file.name = attempt-${{ctx:{key}}}
appender.attempts.routes.each.file.fileName = {directory}/${{ctx:{key}}}.log
appender.attempts.routes.each.file.layout.type = PatternLayout
appender.attempts.routes.each.file.layout.pattern = %d{{UNIX_MILLIS}} %p %c{{1}} %enc{{%m%n%ex}}{{CRLF}}%n

rootLogger.level = {level}
rootLogger.appenderRef.console.ref = console
rootLogger.appenderRef.attempts.ref = attempts
"""


def with_driver_log(conf: Mapping[str, str], directory: Path) -> dict[str, str]:
    """Return Spark's settings with a configuration of its log, which is written below ``directory``.

    As they are if they name a configuration of their own. The console shows what it did before.
    """
    options = [conf.get(name, "") for name in (_OPTIONS, "spark.driver.extraJavaOptions")]
    level = conf.get(_LEVEL, "ERROR").upper()
    if (
        any("log4j" in each for each in options)
        or level not in _LEVELS
        or any(c in str(directory) for c in ' "$\\')
    ):
        return dict(conf)
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = directory / "log4j2.properties"
    finest = max(level, "WARN", key=_LEVELS.index)
    path.write_text(_CONFIGURATION.format(console=level, level=finest, key=KEY, directory=directory))
    option = f"-Dlog4j2.configurationFile=file:{path}"
    return {**conf, _LEVEL: finest, _OPTIONS: f"{options[0]} {option}".strip()}


class DriverLines:
    """The lines of one attempt, read as they come."""

    def __init__(self, directory: Path, tag: str) -> None:
        self._path = directory / f"{tag}.log"
        self._offset = 0

    def read(self) -> list[tuple[float, str, str, str]]:
        """Return time, level, logger and text of each new line."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                body = file.read(READ_BYTES_MAX)
        except OSError:
            return []  # Nothing was logged, as usual.
        whole = body[: body.rfind(b"\n") + 1] or (body if len(body) == READ_BYTES_MAX else b"")
        self._offset += len(whole)
        return [
            line for each in whole.decode("utf-8", "replace").splitlines() if (line := _parse(each)) is not None
        ]

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._path.unlink()


def _parse(text: str) -> tuple[float, str, str, str] | None:
    parts = text.split(" ", 3)
    if len(parts) < 4 or not parts[0].isdigit():
        return None
    message = parts[3].replace("\\r", "").replace("\\n", "\n").rstrip()
    return int(parts[0]) / 1000, parts[1].lower(), parts[2], message
