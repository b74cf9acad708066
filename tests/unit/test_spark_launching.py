"""A JVM that never says where it listens is given up; a test that waits for it would time out."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(60)


@pytest.mark.parametrize("does", ["echo $$ > pid; exec sleep 600", "echo $$ > pid; exit 0"])
def test_a_jvm_that_says_nothing_is_ended_and_its_start_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, does: str
) -> None:
    """As one does that finds the disk full: its first thread fails, and the others live on."""
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway

    from qo.spark.launching import launching

    command = tmp_path / "bin" / "spark-submit"
    command.parent.mkdir()
    command.write_text(f"#!/bin/sh\ncd {tmp_path}\n{does}\n")
    command.chmod(0o755)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    with launching(within_s=1.0), pytest.raises(PySparkRuntimeError, match="JAVA_GATEWAY_EXITED"):
        launch_gateway()
    if (tmp_path / "pid").exists():  # It may have been too slow even for that.
        with pytest.raises(ProcessLookupError):
            os.kill(int((tmp_path / "pid").read_text()), 0)


def test_what_a_jvm_died_of_is_told_by_its_exit_code() -> None:
    from qo.spark.launching import ending, meaning

    assert "ran out of memory: give it more with spark.driver_memory" in (meaning(3) or "")
    assert "SIGTERM" in (meaning(-15) or "")
    assert meaning(1) is None
    with subprocess.Popen(["sh", "-c", "kill -9 $$"]) as killed:
        assert "SIGKILL" in (ending(killed) or "")
