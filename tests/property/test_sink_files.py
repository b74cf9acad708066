"""Files of a sink show exactly the commits that are current, however changes are cut off."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qo.core.pipeline import sink_files
from qo.core.pipeline.file_pattern import file_format, pattern_problem
from qo.core.pipeline.sink_files import SinkFile, SinkRecord, follow, plan_change, standing_files

PATTERNS = ("{partition}.csv", "all.csv", "{partition}/{number}.csv", "{number}.parquet")
KEYS = ("a", "b", "c")


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[str, str, dict[int, str], bool]]:
    """States of a dataset, each with the pattern in force, the generation, and whether the change is cut off."""
    steps: list[tuple[str, str, dict[int, str], bool]] = []
    content: dict[str, dict[int, str]] = {"g": {}, "h": {}}
    pattern, revision = draw(st.sampled_from(PATTERNS)), 0
    for _ in range(draw(st.integers(1, 8))):
        if draw(st.integers(0, 7)) == 0:
            pattern = draw(st.sampled_from(PATTERNS))
        generation = draw(st.sampled_from(("g", "g", "g", "h")))
        commits = {r: key for r, key in content[generation].items() if draw(st.integers(0, 3))}
        for _ in range(draw(st.integers(0, 2))):
            revision += 1
            commits[revision] = draw(st.sampled_from(KEYS))
        content[generation] = commits
        steps.append((pattern, generation, dict(commits), draw(st.booleans())))
    return steps


@given(history=histories())
def test_whatever_is_cut_off_the_files_show_the_last_state_and_nothing_is_lost_track_of(
    history: list[tuple[str, str, dict[int, str], bool]],
) -> None:
    record = SinkRecord(dataset="d", dataset_id="1", file="")
    disk: dict[str, tuple[str, tuple[int, ...]]] = {}
    used: dict[str, int] = {}
    for pattern, generation, commits, is_cut_off in history:
        standing = standing_files(record, pattern, generation)
        known = follow(standing, {}, ())
        added = {revision: key for revision, key in commits.items() if revision not in known}
        after = follow(standing, added, known.keys() - commits.keys())
        change = plan_change(record, pattern, standing, after)
        begun = sink_files.begin(record, change, "x")
        record = begun
        writes = list(change.write.items())
        for name, (_, revisions) in writes[: len(writes) // 2] if is_cut_off else writes:
            if "{number}" in pattern:
                assert used.setdefault(name, change.number) == change.number  # No name is used twice.
            disk[name] = (generation, revisions)
        if is_cut_off:
            assert disk.keys() <= {*record.files, *record.pending, *record.replaced}
            continue
        written = {
            name: SinkFile(partition=partition, revisions=revisions, rows=1, bytes=1, sha256="")
            for name, (partition, revisions) in writes
        }
        record = sink_files.finish(begun, change, written, now=1.0, generation_id=generation, file=pattern)
        assert {revision for each in record.files.values() for revision in each.revisions} == set(commits)
        for name, each in record.files.items():
            assert disk[name] == (generation, each.revisions)
        assert disk.keys() <= record.files.keys() | record.replaced.keys()
        due = sink_files.list_due(record, 0, now=1.0)
        assert not set(due) & record.files.keys()
        for name in due:
            disk.pop(name, None)
        record = sink_files.without(record, due, "x")
        assert disk.keys() == record.files.keys()


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        ("{day}.csv", "'{day}' stands for nothing"),
        ("a/{partition}.xlsx", "names no format"),
        ("../a.csv", "'..' is no part"),
        ("/a.csv", "'' is no part"),
        ("_qo/a.csv", "the sink's own records"),
        (".a.csv", "'.a.csv' is no part"),
    ],
)
def test_a_pattern_that_names_no_files_is_refused_with_what_to_write(pattern: str, problem: str) -> None:
    found = pattern_problem(pattern)
    assert found is not None
    assert problem in found[0]


def test_the_ending_says_the_format() -> None:
    assert [file_format(each) for each in ("a.csv", "a.csv.gz", "{partition}.jsonl")] == [
        ".csv",
        ".csv.gz",
        ".jsonl",
    ]
    assert pattern_problem("dt={partition}/part-{number}.json.gz") is None
