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

    from qo.spark.patches.launch import guard_launch

    command = tmp_path / "bin" / "spark-submit"
    command.parent.mkdir()
    command.write_text(f"#!/bin/sh\ncd {tmp_path}\n{does}\n")
    command.chmod(0o755)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    with guard_launch(within_s=1.0), pytest.raises(PySparkRuntimeError, match="JAVA_GATEWAY_EXITED"):
        launch_gateway()
    if (tmp_path / "pid").exists():  # It may have been too slow even for that.
        with pytest.raises(ProcessLookupError):
            os.kill(int((tmp_path / "pid").read_text()), 0)


def test_settings_which_may_be_secret_are_no_arguments_that_every_user_sees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark import SparkConf
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway

    from qo.spark.patches.launch import guard_launch

    command = tmp_path / "bin" / "spark-submit"
    command.parent.mkdir()
    # As spark-submit does: read the file that is named. Then fail.
    command.write_text(
        f'#!/bin/sh\ncd {tmp_path}\necho "$@" > arguments\nstat -c %a "$2" > mode\ncat "$2" > file\nexit 1\n'
    )
    command.chmod(0o755)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    conf = SparkConf(loadDefaults=False, _jvm=None)
    conf._conf = {"spark.hadoop.fs.s3a.secret.key": "s3cr3t=x"}
    with guard_launch(), pytest.raises(PySparkRuntimeError, match="JAVA_GATEWAY_EXITED"):
        launch_gateway(conf)
    given = (tmp_path / "arguments").read_text()
    assert "s3cr3t" not in given
    assert given.split()[2:] == ["--load-spark-defaults", "pyspark-shell"]
    assert (tmp_path / "mode").read_text() == "600\n"
    assert (tmp_path / "file").read_text() == "spark.hadoop.fs.s3a.secret.key=s3cr3t\\=x\n"
    assert not Path(given.split()[1]).exists(), "it is gone once it was read"


def test_a_connect_server_gets_its_settings_in_a_file_that_is_gone_with_it(tmp_path: Path) -> None:
    from qo.config.spark import SparkSettings
    from qo.spark.engine.connect_server import ConnectServer
    from qo.spark.engine.java import Java

    server = ConnectServer(SparkSettings(conf=(("spark.hadoop.fs.s3a.secret.key", "s3cr3t"),)))
    server._directory = tmp_path
    command = server._command(Java(tmp_path, 17, "PATH", "17"))
    assert "s3cr3t" not in " ".join(command)
    assert "--conf" not in command
    written = tmp_path / "spark.properties"
    assert "spark.hadoop.fs.s3a.secret.key=s3cr3t\n" in written.read_text()
    assert written.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("a b", "a\\ b"),
        ("#1!", "\\#1\\!"),
        ("C:\\x", "C\\:\\\\x"),
        ("é😀", "\\u00e9\\ud83d\\ude00"),
        ("\n", "\\n"),
    ],
)
def test_a_value_of_any_characters_is_written_as_java_reads_it(value: str, written: str) -> None:
    from qo.spark.engine.properties import text

    assert text({"k": value}) == f"k={written}\n"


def test_a_call_that_names_a_file_itself_stays_as_it_is(tmp_path: Path) -> None:
    from qo.spark.engine.properties import move_to_file

    call = ["spark-submit", "--conf", "a=b", "--properties-file", "mine", "pyspark-shell"]
    assert move_to_file(call, tmp_path) == call


def test_what_a_jvm_died_of_is_told_by_its_exit_code() -> None:
    from qo.spark.engine.jvm_exit import exit_code_text, exit_reason

    assert "ran out of memory: give it more with spark.driver_memory" in (exit_code_text(3) or "")
    assert "SIGTERM" in (exit_code_text(-15) or "")
    assert exit_code_text(1) is None
    with subprocess.Popen(["sh", "-c", "kill -9 $$"]) as killed:
        assert "SIGKILL" in (exit_reason(killed) or "")
