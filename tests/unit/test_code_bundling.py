"""Bundles of a pipeline's code: what is in them, what they are known by, and which need a process of their own."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest

from qo.errors import UsageError
from qo.function import archive
from qo.pipeline.code.bundling import Bundle
from qo.pipeline.loading import load_for_deploy

pytestmark = pytest.mark.fast

PIPELINE = """\
name: shop
jobs:
  - name: feed
    activation: source
    source: {kind: manual}
    outputs: 1
  - name: clean
    activation: reactive
    runtime: python
    operator: ops:clean
    inputs: [{from: {job: feed}}]
    execution_strategy: PerPartition
    outputs: 1
"""
OPERATORS = "import helpers\n\n\ndef clean(run):\n    return helpers.NAME\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "pipeline.yaml").write_text(PIPELINE)
    (tmp_path / "ops.py").write_text(OPERATORS)
    (tmp_path / "helpers.py").write_text("NAME = 'a'\n")
    (tmp_path / "unrelated.py").write_text("raise SystemExit\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def packed(project: Path) -> Bundle:
    bundle = load_for_deploy(str(project / "pipeline.yaml")).bundle
    assert bundle is not None
    return bundle


def code_of(project: Path) -> str | None:
    return next(
        job.code for job in load_for_deploy(str(project / "pipeline.yaml")).dag.jobs if job.name == "clean"
    )


def names(bundle: Bundle) -> set[str]:
    return {each.path for each in bundle.manifest.files}


def test_a_bundle_holds_the_modules_that_the_functions_reach_and_no_others(project: Path) -> None:
    bundle = packed(project)
    assert names(bundle) == {"ops.py", "helpers.py"}
    assert bundle.jobs == ("clean",)
    assert archive.inspect(bundle.body, bundle.sha256) == bundle.manifest


def test_the_same_files_make_the_same_bundle_wherever_they_lie(project: Path, tmp_path: Path) -> None:
    first = packed(project)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for name in ("pipeline.yaml", "ops.py", "helpers.py"):
        (elsewhere / name).write_bytes((project / name).read_bytes())
    assert packed(elsewhere).body == first.body


def test_modules_of_several_roots_are_packed_as_one_tree(project: Path) -> None:
    inner = project / "pipelines" / "shop"
    inner.mkdir(parents=True)
    (project / "pipeline.yaml").rename(inner / "pipeline.yaml")
    (project / "ops.py").rename(inner / "ops.py")
    assert names(packed(inner)) == {"ops.py", "helpers.py"}


def test_what_the_project_includes_travels_along_and_decides_the_code(project: Path) -> None:
    before = code_of(project)
    (project / "rules").mkdir()
    (project / "rules" / "a.json").write_text("{}")
    (project / "pyproject.toml").write_text('[tool.qo]\ninclude = ["rules/*.json"]\n')
    bundle = packed(project)
    assert names(bundle) == {"ops.py", "helpers.py", "rules/a.json"}
    with_rules = code_of(project)
    assert with_rules != before
    (project / "rules" / "a.json").write_text("[]")
    assert code_of(project) != with_rules


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [("nothing/*.json", "matches no file"), ("../secret", "leaves"), ("/etc/hosts", "leaves")],
)
def test_a_pattern_that_names_nothing_or_leaves_the_project_is_an_error(
    project: Path, pattern: str, problem: str
) -> None:
    (project / "pyproject.toml").write_text(f"[tool.qo]\ninclude = [{pattern!r}]\n")
    with pytest.raises(UsageError, match=problem):
        load_for_deploy(str(project / "pipeline.yaml"))


def test_packages_that_the_modules_import_are_recorded_with_their_versions(project: Path) -> None:
    import importlib.metadata

    (project / "helpers.py").write_text("import json\nimport msgspec\nNAME = 'a'\n")
    assert packed(project).manifest.packages == {"msgspec": importlib.metadata.version("msgspec")}


def test_a_job_that_pins_its_code_and_a_deploy_without_code_have_no_bundle(project: Path) -> None:
    target = str(project / "pipeline.yaml")
    assert load_for_deploy(target, code=False).bundle is None
    (project / "pipeline.yaml").write_text(
        PIPELINE.replace("operator: ops:clean", "operator: ops:clean\n    code: v7")
    )
    assert load_for_deploy(target).bundle is None


def test_a_function_that_cannot_be_found_runs_the_workers_code_and_that_is_said(project: Path) -> None:
    (project / "ops.py").unlink()
    whole = load_for_deploy(str(project / "pipeline.yaml"))
    assert whole.bundle is None
    assert "runs whatever code its worker has" in whole.warnings[0]


def test_queries_of_sql_and_of_alerts_travel_in_the_version(project: Path) -> None:
    (project / "late.sql").write_text("SELECT 1")
    alert = """\
  - name: late
    activation: reactive
    runtime: spark
    operator: alert
    inputs: [{from: {job: clean}}]
    execution_strategy: PerPartition
    outputs: 0
    config: {file: late.sql}
"""
    (project / "pipeline.yaml").write_text(PIPELINE + alert)
    jobs = {job.name: job for job in load_for_deploy(str(project / "pipeline.yaml")).dag.jobs}
    assert jobs["late"].config == {"query": "SELECT 1"}


@pytest.mark.parametrize(
    ("helpers", "reason"),
    [
        ("import os\nos.environ['A'] = 'b'\n", "helpers.py:2 changes the environment"),
        ("import os\nos.environ.update(A='b')\n", "changes the environment"),
        ("from os import environ\nenviron['A'] = 'b'\n", "changes the environment"),
        ("import sys\nsys.path.insert(0, 'lib')\n", "changes the import path"),
        ("import os\nos.chdir('/')\n", "changes the working directory"),
        ("import importlib\nimportlib.import_module('x')\n", "uses importlib"),
        ("import pickle\n", "uses pickle"),
        ("import msgspec\nmsgspec.json.encode = None\n", "changes the package msgspec"),
        ("exec('import os')\n", "runs code that is only known then"),
    ],
)
def test_code_that_touches_the_whole_process_gets_one_of_its_own(project: Path, helpers: str, reason: str) -> None:
    (project / "helpers.py").write_text(f"{helpers}NAME = 'a'\n")
    found = packed(project).manifest.own_process
    assert found is not None
    assert reason in found


@pytest.mark.parametrize(
    "helpers",
    [
        "import os\nHOME = os.environ.get('HOME')\n",
        "import sys\nPATHS = list(sys.path)\n",
        "class Box: pass\nBox.size = 1\nbox = Box()\nbox.size = 2\n",
        "COUNT = 0\ndef more():\n    global COUNT\n    COUNT += 1\n",
    ],
)
def test_code_that_keeps_to_itself_runs_beside_others(project: Path, helpers: str) -> None:
    (project / "helpers.py").write_text(f"{helpers}NAME = 'a'\n")
    assert packed(project).manifest.own_process is None


def test_a_compiled_extension_or_the_projects_word_means_a_process_of_its_own(project: Path) -> None:
    (project / "fast.so").write_bytes(b"\x7fELF")
    (project / "pyproject.toml").write_text('[tool.qo]\ninclude = ["fast.so"]\n')
    assert "compiled" in str(packed(project).manifest.own_process)
    (project / "pyproject.toml").write_text('[tool.qo]\nisolation = "process"\n')
    assert packed(project).manifest.own_process == "the project says so"


def test_a_bundle_can_be_listed_by_any_zip_tool(project: Path) -> None:
    with zipfile.ZipFile(io.BytesIO(packed(project).body)) as listed:
        assert set(listed.namelist()) == {"bundle_manifest.json", "helpers.py", "ops.py"}
