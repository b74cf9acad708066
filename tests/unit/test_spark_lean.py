"""When a session does without most of Hadoop, and when it does not."""

from __future__ import annotations

from typing import Any

import pytest

from qo.config.spark import SparkSettings
from qo.spark.patches import lean

pytestmark = pytest.mark.fast


@pytest.mark.parametrize("master", ["local", "local[*]", "local[4]", "local[2, 3]"])
def test_a_local_session_is_lean(master: str) -> None:
    assert lean.is_lean(SparkSettings(master=master), {"HOME": "/home/a"})


@pytest.mark.parametrize(
    ("chosen", "environ"),
    [
        ({"lean": False}, {}),
        ({"patches": False}, {}),
        ({"master": "spark://127.0.0.1:7077"}, {}),
        ({"master": "yarn"}, {}),
        ({"master": "local-cluster[2,1,1024]"}, {}),
        ({"packages": ("org.apache.hadoop:hadoop-aws:3.5.0",)}, {}),
        ({"conf": (("spark.jars.packages", "a:b:1"),)}, {}),
        ({"conf": (("spark.jars", "/opt/a.jar"),)}, {}),
        ({"conf": (("spark.driver.extraClassPath", "/opt/a.jar"),)}, {}),
        ({"conf": (("spark.hadoop.fs.file.impl", "a.B"),)}, {}),
        ({}, {"HADOOP_CONF_DIR": "/etc/hadoop"}),
        ({}, {"SPARK_DIST_CLASSPATH": "/opt/hadoop/*"}),
    ],
)
def test_whoever_needs_more_of_hadoop_has_all_of_it(chosen: dict[str, Any], environ: dict[str, str]) -> None:
    assert not lean.is_lean(SparkSettings(**chosen), environ)
