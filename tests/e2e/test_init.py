"""``qo init``: a project that runs as it is, for each template."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from qo.cli.run.init import Template
from support.cli.command import Qo

LIMIT_S = 240.0


@pytest.fixture
def qo(tmp_path: Path) -> Qo:
    return Qo(tmp_path)


def run_tests(project: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    return subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=LIMIT_S)


@pytest.mark.parametrize("template", [Template.SPARK, Template.SQL])
def test_a_pipeline_of_a_template_is_valid_and_named_after_its_directory(qo: Qo, template: Template):
    out = qo.ok("init", "My shop", "--template", template)
    assert out.splitlines()[0].startswith("My shop: a pipeline")
    assert "cd 'My shop'" in out
    valid = Qo(qo.cwd / "My shop")("dag", "validate", ".")
    assert (valid.code, valid.out) == (0, "my_shop: 4 jobs, nothing wrong\n"), valid
    assert "my_shop" in (qo.cwd / "My shop" / "README.md").read_text()


def test_what_is_there_is_never_overwritten(qo: Qo):
    (qo.cwd / "README.md").write_text("mine")
    answer = qo.here("init")
    assert answer.code == 2
    assert "README.md already" in answer.err
    assert [path.name for path in qo.cwd.iterdir()] == ["README.md"]


def test_the_project_of_the_queue_runs_its_tests_and_its_tasks(qo: Qo):
    assert qo.json("init", "jobs", "--template", "queue")["files"] == [
        ".gitignore",
        "README.md",
        "tasks.py",
        "test_tasks.py",
    ]
    project = Qo(qo.cwd / "jobs")
    tests = run_tests(project.cwd)
    assert tests.returncode == 0, tests.stdout
    assert "2 passed" in tests.stdout
    task = project.ok("submit", "--type", "greet", "--input", '{"name": "Ada"}').strip()
    drained = project("worker", "--app", "tasks:app", "--drain", "--no-monitor")
    assert drained.code == 0, drained
    assert project.json("status", task)["output"] == "hello Ada"


@pytest.mark.long
@pytest.mark.timeout(3 * LIMIT_S)
@pytest.mark.parametrize("template", [Template.SPARK, Template.SQL])
def test_a_project_on_spark_runs_its_tests_and_its_pipeline(qo: Qo, template: Template):
    qo.ok("init", "shop", "--template", template)
    project = Qo(qo.cwd / "shop")
    tests = run_tests(project.cwd)
    assert tests.returncode == 0, tests.stdout
    ran = project("up", "--once", timeout_s=LIMIT_S)
    assert ran.code == 0, ran
    assert "daily_sales: 5 rows in 2 pieces" in ran.out
    tried = project("--json", "try", "totals@2026-03-01", timeout_s=LIMIT_S)
    assert sorted((each["product"], each["amount"]) for each in tried.document[0]["rows"]) == [
        ("coffee", 7.0),
        ("tea", 22.5),
    ]
    missing = project("try", "totals@2026-03-09")
    assert missing.code == 3
    assert "shop.clean has no partition '2026-03-09': did you mean '2026-03-02'?" in missing.err
    code = next(each for each in (project.cwd / "pipeline.py", project.cwd / "clean.sql") if each.exists())
    code.write_text(code.read_text().replace('F.col("price")', 'F.col("prize")').replace("* price", "* prize"))
    failed = project("try", "clean@2026-03-01", timeout_s=LIMIT_S)
    assert failed.code == 2
    assert "prize" in failed.err
    assert code.suffix == ".sql" or "pipeline.py:21: in clean: return orders" in failed.err
