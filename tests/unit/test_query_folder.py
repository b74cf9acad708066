"""A directory of queries alone is a pipeline."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from qo.core.pipeline.dag import Dag, Job
from qo.errors import UsageError
from qo.pipeline.loading import load, load_for_deploy
from qo.pipeline.problems import DefinitionError
from support.cli.command import Qo

pytestmark = pytest.mark.fast

TOTALS = "SELECT day, sum(amount) AS total FROM sales GROUP BY day"
BEST = "SELECT max(total) AS best FROM totals"
WRITTEN = """\
name: reports
jobs:
- {name: best, sql: best.sql}
- {name: totals, sql: totals.sql}
publish: [best, totals]
"""
SHOP = """\
name: shop
jobs: [{name: sales, source: manual}]
publish: [sales]
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_folder(home: Path, name: str = "reports", **queries: str) -> Path:
    folder = home / name
    folder.mkdir(exist_ok=True)
    for job, query in queries.items():
        (folder / f"{job}.sql").write_text(query)
    return folder


def job(dag: Dag, name: str) -> Job:
    return next(each for each in dag.jobs if each.name == name)


def problems(target: str, known: dict[str, str]) -> list[str]:
    with pytest.raises(DefinitionError) as caught:
        load(target, known_datasets=known)
    return [str(each) for each in caught.value.problems]


def test_a_directory_of_queries_is_the_pipeline_that_one_would_write(here: Path):
    folder = write_folder(here, totals=TOTALS, best=BEST)
    (folder / "README.md").write_text("Notes.")
    (folder / ".#best.sql").write_text("what an editor leaves")
    short = load_for_deploy("reports")
    (folder / "pipeline.yaml").write_text(WRITTEN)
    written = load_for_deploy("reports")
    assert short.dag == written.dag
    assert [
        (job.name, [each.from_.job or each.from_.dataset for each in job.inputs]) for job in short.dag.jobs
    ] == [
        ("best", ["totals"]),
        ("totals", ["sales"]),
    ]


def test_the_directory_may_be_the_current_one(here: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(write_folder(here, totals=TOTALS))
    assert load(".")[0].name == "reports"


def test_another_query_changes_neither_the_other_tables_nor_what_is_published(here: Path):
    write_folder(here, totals=TOTALS)
    before = load_for_deploy("reports").dag
    write_folder(here, best=BEST)
    after = load_for_deploy("reports").dag
    assert (list(before.publish), list(after.publish)) == (["totals"], ["best", "totals"])
    assert job(after, "totals") == job(before, "totals")


def test_problems_point_to_the_query(here: Path):
    folder = write_folder(here, totals="SELECT *\nFROM slaes", best="SELECT 1")
    assert problems("reports", {"sales": "shop"}) == [
        f"{folder}/best.sql:1:1: the query of 'best' reads nothing, so nothing starts it; "
        "name a job or a published dataset in its FROM",
        f"{folder}/totals.sql:2:6: the query of 'totals' reads 'slaes', and there is no such job or published "
        "dataset; did you mean 'sales'?",
    ]


@pytest.mark.parametrize(
    ("folder", "file", "message"),
    [
        ("My reports", "totals.sql", "'My reports' is no name of one: rename the directory"),
        ("reports", "Daily totals.sql", "'Daily totals' is no name of one: rename the file"),
        (
            "reports",
            "shop.yaml",
            "no pipeline.yaml or pipeline.py in reports, and it has shop.yaml beside its .sql",
        ),
        ("reports", "shop.py", "and it has shop.py beside its .sql files: name the file"),
    ],
)
def test_a_name_that_fits_no_pipeline_or_job_is_refused(here: Path, folder: str, file: str, message: str):
    (write_folder(here, folder, sums=TOTALS) / file).write_text(TOTALS)
    with pytest.raises(UsageError, match=message):
        load(folder)


def test_it_is_deployed_once_all_that_it_reads_is_published(here: Path):
    write_folder(here, totals=TOTALS, best=BEST)
    (here / "shop.yaml").write_text(SHOP)
    qo = Qo(here, {"PYTHONPATH": os.pathsep.join(sys.path)})
    valid = qo.here("dag", "validate", "reports")
    assert valid.out == "reports: 2 jobs, nothing wrong\n"
    refused = qo.here("dag", "deploy", "reports")
    assert (refused.code, "'sales'" in refused.err) == (2, True), refused
    qo.ok("dag", "deploy", "shop.yaml")
    qo.ok("dag", "deploy", "reports")
    assert qo.json("dag", "show", "reports")["publish"] == {"best": "best", "totals": "totals"}
    unchanged = qo.here("dag", "deploy", "reports")
    assert unchanged.out == "reports version 1  active (as before)\n", unchanged
