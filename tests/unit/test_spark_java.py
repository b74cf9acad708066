"""Which Java is used, and what is said where none fits."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from qo.config.spark import SparkSettings
from qo.errors import ConfigError, NotFound
from qo.spark.engine import java
from support.spark.session import pretend

pytestmark = pytest.mark.fast


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A machine without Java."""
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if not (Path(entry) / java.PACKAGE).exists()])
    return {"PATH": str(tmp_path / "empty"), "XDG_CACHE_HOME": str(tmp_path / "cache")}


@pytest.fixture
def packaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package that brings a Java, on the import path."""
    package = tmp_path / "packages" / java.PACKAGE
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(package.parent))
    return pretend(package / "java-runtime", "21")


@pytest.mark.parametrize("version", ["17", "21", "25"])
def test_the_java_of_java_home_is_taken(version: str, tmp_path: Path, nowhere: dict[str, str]) -> None:
    home = pretend(tmp_path / "jdk", version)
    found = java.find(SparkSettings(), nowhere | {"JAVA_HOME": str(home)})
    assert (found.home, found.version, found.origin) == (home, int(version), "JAVA_HOME")


def test_a_link_on_the_path_leads_to_the_home(tmp_path: Path, nowhere: dict[str, str]) -> None:
    home, links = pretend(tmp_path / "jdk", "17"), tmp_path / "links"
    links.mkdir()
    (links / "java").symlink_to(home / "bin" / "java")
    found = java.find(SparkSettings(), nowhere | {"PATH": str(links)})
    assert (found.home, found.origin) == (home, "PATH")


def test_a_java_that_does_not_fit_is_passed_over(tmp_path: Path, nowhere: dict[str, str]) -> None:
    old, good = pretend(tmp_path / "old", "1.8"), pretend(tmp_path / "good", "21")
    found = java.find(SparkSettings(), nowhere | {"JAVA_HOME": str(old), "PATH": str(good / "bin")})
    assert found.origin == "PATH"


def test_the_java_of_the_setting_must_fit(tmp_path: Path, nowhere: dict[str, str]) -> None:
    old, good = pretend(tmp_path / "old", "11"), pretend(tmp_path / "good", "21")
    with pytest.raises(ConfigError, match="java_home names Java 11"):
        java.find(SparkSettings(java_home=str(old)), nowhere | {"JAVA_HOME": str(good)})


def test_where_there_is_none_it_is_said_what_to_do(nowhere: dict[str, str]) -> None:
    with pytest.raises(
        ConfigError, match=r"17, 21 or 25: none was found.*from a checkout, pip install '\.\[java\]'"
    ):
        java.find(SparkSettings(), nowhere)
    with pytest.raises(ConfigError, match="does not run"):
        java.find(SparkSettings(), nowhere | {"JAVA_HOME": "/nowhere"})


def test_the_packaged_java_is_spared_the_module_that_it_lacks(nowhere: dict[str, str], packaged: Path) -> None:
    (packaged / "bin" / "java").write_text(
        (packaged / "bin" / "java").read_text() + 'for argument do echo "<$argument>"; done\n'
    )
    found = java.find(SparkSettings(), nowhere)
    assert (found.version, found.origin) == (21, java.PACKAGE)
    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "-Dx=a b", ""]
    said = subprocess.run([found.command, *arguments], capture_output=True, text=True, check=True).stdout
    assert said.splitlines() == ["<-Xmx1g>", "<-Dx=a b>", "<>"]
    # A process that this one starts finds it as a home that was named, and must not go round it.
    assert java.find(SparkSettings(), nowhere | {"JAVA_HOME": str(found.home)}).home == found.home


def test_processes_may_prepare_the_packaged_java_at_once(nowhere: dict[str, str], packaged: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        homes = set(threads.map(lambda _: java.find(SparkSettings(), nowhere).home, range(32)))
    (home,) = homes
    assert [each.name for each in (home / "bin").iterdir()] == ["java"]
    assert stat.S_IMODE((home / "bin" / "java").stat().st_mode) == 0o755


def test_a_cache_that_cannot_be_written_is_named(nowhere: dict[str, str], packaged: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="XDG_CACHE_HOME"):
        java.find(SparkSettings(), nowhere | {"XDG_CACHE_HOME": str(tmp_path / "file")})


def test_the_command_tells_without_loading_spark(tmp_path: Path) -> None:
    program = """if True:
        import runpy, sys
        try:
            runpy.run_module("qo.spark.engine.java", run_name="__main__")
        finally:
            assert "pyspark" not in sys.modules
    """

    def told(**more: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), **more}
        return subprocess.run(
            [sys.executable, "-c", program],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )

    home, other = pretend(tmp_path / "jdk", "25"), pretend(tmp_path / "other", "21")
    assert told(QO_JAVA_HOME="/nowhere").returncode == NotFound.exit_code
    (tmp_path / "qo.toml").write_text(f"[spark]\njava_home = '{home}'\n")
    assert told().stdout == f"Java 25 in {home} (java_home)\n"
    assert told(QO_JAVA_HOME=str(other)).stdout == f"Java 21 in {other} (java_home)\n"
    (tmp_path / "qo.toml").write_text("[spark]\njava_hone = '/'\n")
    wrong = told()
    assert (wrong.returncode, "java_hone" in wrong.stderr) == (ConfigError.exit_code, True)
