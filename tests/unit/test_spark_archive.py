"""The archive of Spark's classes: one for each Java and Spark, made by one process, and never missed."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from qo.config.spark import SparkSettings
from qo.errors import Unavailable
from qo.spark.engine import class_archive, java, session
from qo.spark.engine import master as master_
from qo.spark.engine.class_archive import Archive
from qo.spark.engine.java import Java

pytestmark = pytest.mark.fast

JAVA = Java(home=Path("/opt/java"), version=21, origin="PATH", release="21.0.8+9")


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"XDG_CACHE_HOME": str(tmp_path)}


def place(found: Java, environ: dict[str, str]) -> Archive:
    there = class_archive.archive_of(found, SparkSettings(), environ)
    assert there is not None
    return there


def test_another_java_spark_or_class_path_has_another_archive(environ: dict[str, str]) -> None:
    others = [
        place(JAVA, environ),
        place(replace(JAVA, home=Path("/opt/other")), environ),
        place(replace(JAVA, release="21.0.9+1"), environ),
        place(JAVA, environ | {"HADOOP_CONF_DIR": "/etc/hadoop"}),
    ]
    whole = class_archive.archive_of(JAVA, SparkSettings(lean=False), environ)
    assert whole is not None
    others.append(whole)
    assert len({each.path for each in others}) == len(others)
    assert place(JAVA, environ) == others[0]


def test_only_an_archive_that_is_there_is_used(environ: dict[str, str]) -> None:
    assert class_archive.options(JAVA, SparkSettings(), environ) == []
    there = place(JAVA, environ)
    there.path.parent.mkdir(parents=True)
    there.path.write_bytes(b"classes")
    assert f"-XX:SharedArchiveFile={there.path}" in class_archive.options(JAVA, SparkSettings(), environ)
    assert class_archive.options(JAVA, SparkSettings(class_archive=False), environ) == []


def test_one_that_could_not_be_made_is_not_tried_again_and_again(environ: dict[str, str]) -> None:
    there = place(JAVA, environ)
    there.failure_path.parent.mkdir(parents=True)
    there.failure_path.write_text("no room")
    class_archive.build_in_background(JAVA, SparkSettings(), environ)
    assert not there.lock.exists()


def test_one_that_takes_too_long_is_given_up(environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(class_archive, "BUILD_S", 0.01)
    with pytest.raises(Unavailable, match="took longer than"):
        class_archive.build(JAVA, SparkSettings(), os.environ | environ)


def test_one_process_at_a_time_makes_it(environ: dict[str, str]) -> None:
    there = place(JAVA, environ)
    with class_archive.locked(there, wait_s=0) as first, class_archive.locked(there, wait_s=0.3) as second:
        assert (first, second) == (True, False)
    with class_archive.locked(there, wait_s=1) as third:
        assert third


def test_those_used_least_are_dropped(tmp_path: Path) -> None:
    for number in range(class_archive.ARCHIVES_MAX + 2):
        for suffix in (".jsa", ".lock"):
            (tmp_path / f"{number}{suffix}").touch()
        os.utime(tmp_path / f"{number}.jsa", (number, number))
    class_archive.prune(Archive(tmp_path / "5.jsa"))
    assert {path.stem for path in tmp_path.iterdir()} == {
        str(number) for number in range(2, class_archive.ARCHIVES_MAX + 2)
    }


def test_what_the_settings_say_comes_last_and_wins() -> None:
    chosen = SparkSettings(
        master="local[3]",
        packages=("a:b:1", "c:d:2"),
        python_memory="1g",
        conf=(("spark.sql.session.timeZone", "CET"), ("spark.driver.extraJavaOptions", "-XX:+UseG1GC")),
    )
    told = session.conf(chosen, JAVA)
    assert told["spark.sql.session.timeZone"] == "CET"
    assert told["spark.jars.packages"] == "a:b:1,c:d:2"
    # Fetched once, and not again where there is no home, or another one.
    assert Path(told["spark.jars.ivy"]).parent == java.cache_directory(os.environ)
    assert "spark.jars.ivy" not in session.conf(SparkSettings(), JAVA)
    assert told["spark.executor.pyspark.memory"] == "1g"
    assert told["spark.sql.shuffle.partitions"] == "6"
    # Java does not start with two collectors named.
    assert "UseSerialGC" not in told["spark.driver.defaultJavaOptions"]


@pytest.mark.parametrize(
    ("chosen", "heap"),
    [
        (SparkSettings(), "-Xms2g"),
        (SparkSettings(driver_memory="900m"), "-Xms900m"),
        # Else Java would be told to begin with more than it may have, and not start.
        (SparkSettings(conf=(("spark.driver.memory", "1g"),)), "-Xms1g"),
    ],
)
def test_the_heap_has_its_full_size_from_the_beginning(chosen: SparkSettings, heap: str) -> None:
    assert heap in session.conf(chosen, JAVA)["spark.driver.defaultJavaOptions"].split()


@pytest.mark.parametrize(
    ("master", "cores"),
    [("local", 1), ("local[4]", 4), ("local[2, 3]", 2), ("spark://h:7077", None), ("yarn", None)],
)
def test_a_local_master_names_its_cores(master: str, cores: int | None) -> None:
    assert master_.local_cores(master) == cores
    assert ("spark.driver.host" in session.conf(SparkSettings(master=master), JAVA)) == (cores is not None)


def test_the_real_one_is_found_by_its_java() -> None:
    found = java.find(SparkSettings(), os.environ)
    assert place(found, dict(os.environ)).path.name.startswith(
        f"{class_archive.spark_version()}-java{found.version}-"
    )
