"""A short run of chaos on each ground, without Spark: all processes, every kind of fault. ``make chaos`` is longer."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.plan import LASTS_S
from chaos.run import run

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

SECONDS = 30.0
KINDS = {
    "servers": set(LASTS_S) - {"lock"},  # There is no file that all write to.
    "embedded": set(LASTS_S) - {"restart"},  # There is no server.
}


@pytest.mark.parametrize("ground", [pytest.param("servers", marks=pytest.mark.s3), "embedded"])
async def test_half_a_minute_of_faults_loses_and_doubles_nothing(tmp_path: Path, ground: str) -> None:
    report = await run(tmp_path, seed=3, seconds=SECONDS, spark=False, say=print, on=ground)
    assert report.violations == []
    assert {each.fault.kind for each in report.injected} == KINDS[ground]
    assert report.counts["queue tasks"] > 0
    assert report.recoveries
