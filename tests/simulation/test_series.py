"""A series of seeds: what it plays, and what it records."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench import harness

from simulation.engine import series
from simulation.engine.series import BATCH, FIRST, Batch, Progress, list_batches, read_record, write_record


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(harness, "RESULTS", tmp_path)
    return tmp_path


def test_a_series_goes_on_where_the_record_ends(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["2", "--part", "purges", "--processes", "1"]
    assert series.main(asked) == 0
    assert series.main(asked) == 0
    progress = read_record(["purges"])["purges"]
    assert (progress.first, progress.end, progress.passed) == (FIRST, FIRST + 4, 4)
    assert "FAILED" not in capsys.readouterr().out


@pytest.mark.fast
def test_only_seeds_without_a_gap_count() -> None:
    progress = Progress("queue", FIRST, FIRST)
    first, second, third = (Batch("queue", range(FIRST + low, FIRST + low + 10)) for low in (0, 10, 20))
    progress.add(third, [])
    progress.add(second, [FIRST + 12])
    assert progress.passed == 0
    progress.add(first, [])
    assert (progress.end, progress.passed) == (FIRST + 30, 29)


@pytest.mark.fast
def test_a_recorded_failure_is_played_again_before_new_seeds(results: Path) -> None:
    write_record({"limits": Progress("limits", FIRST, FIRST + 100, {FIRST + 7})})
    progress = read_record(["limits"])
    again, new = list_batches(progress, BATCH)
    assert list(again.seeds) == [FIRST + 7]
    assert list(new.seeds) == list(range(FIRST + 100, FIRST + 100 + BATCH))
    progress["limits"].add(again, [])
    assert (progress["limits"].passed, progress["limits"].end) == (100, FIRST + 100)


@pytest.mark.fast
def test_a_failed_seed_is_printed_with_its_replay(capsys: pytest.CaptureFixture[str]) -> None:
    series.report(Progress("worker", FIRST, FIRST + 20, {FIRST + 3}), [FIRST + 3])
    assert f"simulation.engine worker --seed {FIRST + 3}" in capsys.readouterr().out
