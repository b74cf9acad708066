"""A short run of chaos, without Spark: all processes, both servers, every kind of fault. ``make chaos`` is longer."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.plan import LASTS_S
from chaos.run import run

pytestmark = [pytest.mark.long, pytest.mark.s3, pytest.mark.timeout(1800)]

SECONDS = 30.0


async def test_half_a_minute_of_faults_loses_and_doubles_nothing(tmp_path: Path) -> None:
    report = await run(tmp_path, seed=3, seconds=SECONDS, spark=False, say=print)
    assert report.violations == []
    assert {each.fault.kind for each in report.injected} >= set(LASTS_S)
    assert report.counts["queue tasks"] > 0
    assert report.recoveries
