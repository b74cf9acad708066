"""The code of a version on Spark: in the driver and in Spark's Python processes, two versions in one warm session."""

from __future__ import annotations

import pytest

from support.dispatcher.sites import Site, embedded
from support.spark.versions import run_versions

__all__ = ["embedded"]

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]


async def test_the_driver_and_sparks_python_processes_run_the_code_of_the_tasks_version(embedded: Site) -> None:
    await run_versions(embedded)


@pytest.mark.long
async def test_a_version_in_a_process_of_its_own_has_a_session_of_its_own(embedded: Site) -> None:
    await run_versions(embedded, "import os\nos.environ['SHOP'] = 'open'\n")


@pytest.mark.long
async def test_a_server_of_spark_connect_runs_the_code_of_the_tasks_version(embedded: Site) -> None:
    await run_versions(embedded, QO_SPARK_REMOTE="local")
