"""Clients that cannot share the project's environment, each in a virtual environment of its own, and talks with them.

    async with talking("duckdb", program) as ask:
        await ask("SELECT 1")       # rows, or the text of an error

The environments are made when they are first needed, and kept.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from qo.config.spark import SparkSettings
from qo.spark.engine import java
from qo.spark.engine.session import environment

ROOT = Path(__file__).parents[3]
HOME = ROOT / ".client-venvs"
IVY = Path("~/.cache/qo/ivy").expanduser()  # Where the tests of s3a keep their jars, too.
DUCKDB = "1.5.5"  # Each extension fits one version of DuckDB.
EXTENSIONS = ("avro", "httpfs", "iceberg")
PACKAGES = {
    "duckdb": [f"duckdb=={DUCKDB}", *(f"duckdb-extension-{each}=={DUCKDB}" for each in EXTENSIONS)],
    "spark": ["pyspark>=4.1,<4.2"],
}
WITHIN_S = 240.0
NOT_FETCHED = "unresolved dependenc"  # What Spark says where it cannot get at jars.

# Extensions come as packages here, and from DuckDB's own server otherwise.
_INSTALL = """
import importlib, pathlib, sys
import duckdb
for name in sys.argv[1:]:
    package = importlib.import_module(f"duckdb_extension_{name}")
    (path,) = pathlib.Path(package.__file__).parent.glob("extensions/*/*.duckdb_extension")
    duckdb.sql(f"INSTALL '{path}'")
"""

# What follows the text that a user copies: answers statements, one a line.
_CONVERSATION = """
import json, sys
run = (lambda sql: spark.sql(sql).collect()) if "spark" in globals() else (lambda sql: db.execute(sql).fetchall())
for line in sys.stdin:
    try:
        answer = {"rows": [list(row) for row in run(json.loads(line))]}
    except Exception as error:
        answer = {"error": f"{type(error).__name__}: {error}"}
    print("ANSWER " + json.dumps(answer, default=str), flush=True)
"""

Ask = Callable[[str], Awaitable[Any]]


def python_of(name: str) -> Path:
    """The interpreter of an environment, made if it is not there. Raises CalledProcessError if it cannot be."""
    home = HOME / name
    python = home / "bin" / "python"
    if not (home / ".done").exists():
        _uv("venv", "--clear", "--python", sys.executable, str(home))
        _uv("pip", "install", "--python", str(python), *PACKAGES[name])
        if name == "duckdb":
            subprocess.run([str(python), "-c", _INSTALL, *EXTENSIONS], check=True, env=_environment(name))
        (home / ".done").touch()
    return python


def _uv(*args: str) -> None:
    uv = Path(sys.executable).with_name("uv")
    subprocess.run([str(uv), "--quiet", *args], check=True, timeout=WITHIN_S, cwd=ROOT)


def _environment(name: str, **more: str) -> dict[str, str]:
    # DuckDB keeps its extensions below the home directory.
    ours = {key: value for key, value in os.environ.items() if not key.startswith(("AWS_", "PYTHON"))}
    return {**ours, "HOME": str(HOME / name), **more}


def spark_environment(directory: Path) -> dict[str, str]:
    """A Java, and settings that belong to the tests and not to the text that is copied."""
    settings = SparkSettings()
    defaults = {"spark.jars.ivy": str(IVY), "spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1"}
    directory.mkdir(exist_ok=True)
    lines = [f"{key} {value}\n" for key, value in {**defaults, "spark.master": "local[1]"}.items()]
    (directory / "spark-defaults.conf").write_text("".join(lines))
    found = environment(settings, java.find(settings, os.environ))
    return {**{key: found[key] for key in ("JAVA_HOME",) if key in found}, "SPARK_CONF_DIR": str(directory)}


@asynccontextmanager
async def talking(name: str, program: str, variables: Mapping[str, str]) -> AsyncIterator[Ask]:
    """Run a program, and then statements, in an environment. Skips the test where it cannot be had."""
    try:
        python = await asyncio.to_thread(python_of, name)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"the packages of {name} are not in {HOME}, and cannot be fetched: {error}")
    process = await asyncio.create_subprocess_exec(
        str(python),
        "-c",
        program + _CONVERSATION,
        env=_environment(name, **variables),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=2**22,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    stdin, stdout = process.stdin, process.stdout
    errors = asyncio.create_task(_drain(process))

    async def ask(sql: str) -> Any:
        stdin.write(json.dumps(sql).encode() + b"\n")
        await stdin.drain()
        async with asyncio.timeout(WITHIN_S):
            while line := await stdout.readline():
                if line.startswith(b"ANSWER "):
                    answer = json.loads(line.removeprefix(b"ANSWER "))
                    return answer.get("rows", answer.get("error"))
        trouble = await errors
        if NOT_FETCHED in trouble.lower():
            pytest.skip(f"the jars of {name} are not in {IVY}, and Maven Central cannot be reached to fetch them")
        raise AssertionError(f"{name} ended: {trouble[:3000]}")

    try:
        yield ask
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await errors


async def _drain(process: asyncio.subprocess.Process) -> str:
    assert process.stderr is not None
    return (await process.stderr.read()).decode(errors="replace")
