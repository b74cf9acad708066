"""What Spark's driver logs for an attempt goes to the log of that attempt, and to no other."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from qo.spark.engine.driver_log import KEY, DriverLines, with_driver_log

SCRIPT = """
import json, sys, threading
from pyspark.sql import Window, functions as F
from qo.agent.logs.attempt_log import AttemptLog
from qo.agent.logs.capture import capturing, enter_log
from qo.core import run_log
from qo.spark.engine.classic import ClassicEngine
from qo.spark.engine.engine import Attempt
from support.spark import session

engine, logs, both = ClassicEngine(session.SETTINGS), {}, threading.Barrier(2, timeout=120)


def fail(value):
    raise ValueError("never this value")


def run(name):
    log = logs[name] = AttemptLog("file:/x/_logs/y/", run_log.Limits(2**20), lambda log: None, 0.0)
    enter_log(log)
    with engine.session(Attempt(name, 1)) as spark:
        both.wait()
        if name == "window":
            order = Window.orderBy("id")
            spark.range(5).withColumn("n", F.row_number().over(order)).collect()
        else:
            try:
                spark.range(2).select(F.udf(fail)("id")).collect()
            except Exception:
                pass
        both.wait()


with capturing():
    threads = [threading.Thread(target=run, args=(name,)) for name in ("window", "task")]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
lines = {}
for name, log in logs.items():
    log.close()
    log.encode_pending()
    lines[name] = [
        [line.stream, line.level, line.logger, line.text]
        for chunk in log.chunks.unsaved()
        for line in run_log.decode(bytes(chunk.body))
    ]
print("LINES" + json.dumps(lines), flush=True)
engine.close()
"""


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.timeout(400)
def test_lines_of_the_driver_and_of_local_tasks_belong_to_their_attempt(tmp_path: Path) -> None:
    path = f"{Path(__file__).parents[1]}"
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        cwd=tmp_path,
        env={"PYTHONPATH": path, "PATH": "/usr/bin:/bin", "HOME": str(Path.home())},
        capture_output=True,
        text=True,
        timeout=380,
    )
    (found,) = [line for line in done.stdout.splitlines() if line.startswith("LINES")] or [done.stderr]
    lines = json.loads(found.removeprefix("LINES"))
    assert any(
        (stream, level, logger) == ("spark", "warn", "WindowExec") and text.startswith("No Partition Defined")
        for stream, level, logger, text in lines["window"]
    ), lines
    assert any(level == "error" and "Exception in task" in text for _, level, _, text in lines["task"]), lines
    assert any("never this value" in text for *_, text in lines["task"])
    assert not any("never this value" in text for *_, text in lines["window"])
    assert "WindowExec" not in done.stderr  # The console shows errors only, as it did.
    assert "Exception in task" in done.stderr


def test_the_console_shows_what_it_did_and_attempts_get_warnings(tmp_path: Path) -> None:
    conf = with_driver_log(
        {"spark.log.level": "ERROR", "spark.driver.defaultJavaOptions": "-Xms1g"}, tmp_path / "a"
    )
    assert conf["spark.log.level"] == "WARN"
    path = tmp_path / "a" / "log4j2.properties"
    assert conf["spark.driver.defaultJavaOptions"] == f"-Xms1g -Dlog4j2.configurationFile=file:{path}"
    text = path.read_text()
    assert "threshold.level = ERROR" in text
    assert f"fileName = {tmp_path}/a/${{ctx:{KEY}}}.log" in text
    finer = with_driver_log({"spark.log.level": "info"}, tmp_path / "b")
    assert finer["spark.log.level"] == "INFO"
    own = {"spark.driver.extraJavaOptions": "-Dlog4j2.configurationFile=mine.xml"}
    assert with_driver_log(own, tmp_path / "c") == own


def test_lines_are_read_as_they_come(tmp_path: Path) -> None:
    lines, path = DriverLines(tmp_path, "qo-t-1"), tmp_path / "qo-t-1.log"
    assert lines.read() == []
    path.write_text(
        "1763417018123 WARN WindowExec one\\n\n1763417018124 ERROR Executor two\\njava.lang.X\\n\\tat y\n17634"
    )
    assert lines.read() == [
        (1763417018.123, "warn", "WindowExec", "one"),
        (1763417018.124, "error", "Executor", "two\njava.lang.X\n\\tat y"),
    ]
    with path.open("a") as file:
        file.write("17018125 INFO A b c\nnot a line\n")
    assert lines.read() == [(1763417018.125, "info", "A", "b c")]
    lines.close()
    assert not path.exists()
    lines.close()
