"""The page of figures says what was measured, losses first, and stands in the tree as it was made."""

from __future__ import annotations

import json
from typing import Any

import pytest
from bench import page
from bench.harness import RESULTS, Target, result, text, write

pytestmark = pytest.mark.fast

MACHINE = {
    "taken_on": "2026-01-02",
    "commit": "abc",
    "processor": "a processor",
    "cores": 2,
    "memory_gib": 4.0,
    "system": "Linux 6",
    "python": "3.11",
    "sqlite": "3.40",
    "packages": {"huey": "9"},
}


def rendered(*figures: Any) -> str:
    told = [{**figure, "on": "2026-01-02 abc"} for figure in figures]
    return page.render({"queue": {"machines": {"2026-01-02 abc": MACHINE}, "figures": told}})


def figure(name: str, value: float, **more: Any) -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(result(name, value, "tasks/s", **more))


def test_a_figure_stands_with_its_spread_its_peer_and_its_verdict() -> None:
    said = rendered(
        figure(
            "drain_vs_rq",
            200,
            baseline=100,
            of=[150, 200, 260],
            baseline_of=[90, 100, 110],
            target=Target("ratio", ">=", 2),
            rounds=3,
        )
    )
    assert "| `drain_vs_rq` | 200 tasks/s | 150 to 260 | 100 | 90 to 110 | 2 | ratio >= 2 | reached |" in said
    assert "a processor, 2 cores, 4 GiB" in said
    assert "`drain_vs_rq`: rounds: 3 (2026-01-02 abc)" in said
    assert "Nowhere in these figures." in said


def test_where_a_peer_is_better_the_page_says_so_and_when_to_pick_it() -> None:
    said = rendered(figure("drain_vs_huey_sqlite", 50, baseline=100, target=Target("ratio", ">=", 2)))
    assert "**huey.** Pick huey for" in said
    assert "- `drain_vs_huey_sqlite`: 50 against 100 tasks/s (0.5 times)" in said
    assert "- `drain_vs_huey_sqlite`: ratio 0.5, should be >= 2" in said


def test_a_part_of_a_suite_keeps_what_the_file_says_of_the_rest(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setattr("bench.harness.RESULTS", tmp_path)
    write("queue", [result("a", 1, "s"), result("b", 2, "s")], whole=True)
    write("queue", [result("b", 3, "s")], whole=False)
    told = json.loads((tmp_path / "queue.json").read_text())
    assert {each["name"]: each["value"] for each in told["figures"]} == {"a": 1, "b": 3}
    assert {each["on"] for each in told["figures"]} == set(told["machines"])


def test_the_page_in_the_tree_is_made_of_the_results_in_the_tree() -> None:
    results = {name: json.loads((RESULTS / f"{name}.json").read_text()) for name in page.SUITES}
    assert page.PAGE.read_text() == page.render(results), "run `python -m bench --page`"


def test_large_numbers_are_readable() -> None:
    assert [text(number) for number in (None, 0.12345, 12.3, 12345.6)] == ["", "0.1235", "12.3", "12,346"]


def test_the_readme_says_what_was_measured_on_spark() -> None:
    figures = {each["name"]: each for each in json.loads((RESULTS / "spark.json").read_text())["figures"]}
    dagster, prefect = (figures[f"small_tasks_vs_{peer}"] for peer in ("dagster", "prefect"))
    said = " ".join((RESULTS.parents[1] / "README.md").read_text().split())
    assert f"{dagster['value']:,.0f} a minute through qo" in said
    assert f"{dagster['baseline']:,.0f} through Dagster and {prefect['baseline']:,.0f} through Prefect" in said
    assert f"takes {figures['overhead_vs_bare_pyspark']['value']:.2f} of the time" in said
    assert f"qo takes {figures['overhead_vs_same_session']['value']:.2f} of its time" in said
