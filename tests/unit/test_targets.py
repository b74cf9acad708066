"""What commands take for a pipeline: a file, a module, Python by its path, a directory."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from qo.errors import UsageError
from qo.pipeline.loading import load, load_for_deploy
from qo.pipeline.target import resolve
from support.cli.command import Qo

pytestmark = pytest.mark.fast

MODULE = """\
import qo

pipeline = qo.Pipeline("{name}")
inbox = pipeline.add("inbox", source={{"kind": "manual"}})


@pipeline.job(inputs=[inbox], strategy="PerPartition", runtime="python")
def counted(run):
    pass
"""
FILE = "name: {name}\njobs: [{{name: inbox, activation: source, source: {{kind: manual}}, outputs: 1}}]\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    path = list(sys.path)
    yield tmp_path
    sys.path[:] = path
    for name in [each for each in sys.modules if each.startswith(("targets_", "pipeline."))]:
        del sys.modules[name]
    sys.modules.pop("pipeline", None)


def module(name: str) -> str:
    return MODULE.format(name=name)


def operators(target: str) -> list[str]:
    return [job.operator for job in load(target)[0].jobs if not job.is_source]


def test_a_module_a_file_and_a_directory_name_the_same_pipeline(here: Path) -> None:
    (here / "pipeline.py").write_text(module("targets_same"))
    found = [
        load_for_deploy(each)
        for each in ("pipeline:pipeline", "pipeline.py", "pipeline.py:pipeline", ".", str(here))
    ]
    assert found == 5 * [found[0]]
    assert found[0].warnings == ()
    assert {resolve(each).directory for each in ("pipeline:pipeline", "pipeline.py", ".")} == {here}


def test_python_is_imported_from_the_directory_that_it_lies_in(here: Path) -> None:
    (here / "jobs").mkdir()
    (here / "jobs" / "targets_helper.py").write_text("NAME = 'targets_beside'\n")
    (here / "jobs" / "targets_climate.py").write_text(
        module("x").replace('"x"', "targets_helper.NAME").replace("import qo", "import qo\nimport targets_helper")
    )
    assert load("jobs/targets_climate.py")[0].name == "targets_beside"
    assert operators("jobs/targets_climate.py") == ["targets_climate:counted"]
    assert resolve("jobs/targets_climate.py").directory == here / "jobs"


def test_a_module_of_a_package_is_imported_as_part_of_it(here: Path) -> None:
    package = here / "src" / "targets_package" / "deep"
    package.mkdir(parents=True)
    for each in (package.parent, package):
        (each / "__init__.py").touch()
    (package.parent / "names.py").write_text("NAME = 'targets_relative'\n")
    (package / "climate.py").write_text(
        module("x").replace('"x"', "NAME").replace("import qo", "import qo\nfrom ..names import NAME")
    )
    target = "src/targets_package/deep/climate.py"
    assert load(target)[0].name == "targets_relative"
    assert operators(target) == ["targets_package.deep.climate:counted"]
    assert resolve(target).directory == here / "src"


def test_several_pipelines_of_a_file_are_listed_by_what_names_them(here: Path) -> None:
    second = module("targets_two").replace("pipeline", "other")
    both = module("targets_one") + second
    (here / "targets_both.py").write_text(both)
    with pytest.raises(UsageError, match="has 2 pipelines: give one of targets_both:pipeline, targets_both:other"):
        load("targets_both.py")
    assert load("targets_both.py:other")[0].name == "targets_two"
    assert load("targets_both:pipeline")[0].name == "targets_one"
    (here / "sub").mkdir()
    (here / "sub" / "targets_sub.py").write_text(both)
    with pytest.raises(UsageError, match=r"one of sub/targets_sub\.py:pipeline, sub/targets_sub\.py:other"):
        load("sub/targets_sub.py")


def test_another_name_for_the_same_pipeline_is_no_second_one(here: Path) -> None:
    (here / "targets_alias.py").write_text(module("targets_alias") + "\nalias = pipeline\n")
    assert load("targets_alias.py")[0].name == "targets_alias"


def test_of_a_directory_the_definition_comes_first(here: Path) -> None:
    (here / "pipeline.py").write_text("1 / 0\n")
    (here / "pipeline.yaml").write_text(FILE.format(name="written"))
    assert load(".")[0].name == "written"
    assert resolve(".").directory == here


def test_files_of_one_name_in_two_directories_are_two_pipelines(here: Path) -> None:
    for name in ("targets_a", "targets_b"):
        (here / name).mkdir()
        (here / name / "pipeline.py").write_text(module(name))
    assert [load(name)[0].name for name in ("targets_a", "targets_b", "targets_a")] == [
        "targets_a",
        "targets_b",
        "targets_a",
    ]


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("nowhere.py", "there is no file nowhere.py"),
        ("nowhere", "there is no pipeline nowhere: give a file"),
        ("empty", r"there is no pipeline.yaml or pipeline.py in empty: name the file"),
        ("targets_none.py", "has no qo.Pipeline: declare one at the top of the file"),
        ("targets_none.py:missing", "'targets_none.py:missing' is no pipeline: name a qo.Pipeline"),
        ("targets_broken.py", "importing 'targets_broken' failed: ZeroDivisionError"),
        ("two-words.py", "two-words.py cannot be imported: rename it"),
        ("calendar.py", "calendar.py has the name of one of Python's own modules: rename it"),
        ("targets_hidden:pipeline", "importing 'targets_hidden' failed: ModuleNotFoundError"),
    ],
)
def test_what_is_no_pipeline_is_explained(here: Path, target: str, message: str) -> None:
    (here / "empty").mkdir()
    (here / "targets_none.py").write_text("x = 1\n")
    (here / "targets_broken.py").write_text("1 / 0\n")
    for name in ("two-words.py", "calendar.py"):
        (here / name).write_text(module("x"))
    with pytest.raises(UsageError, match=message):
        load(target)


def test_validate_diff_deploy_and_plan_take_every_target(here: Path) -> None:
    (here / "jobs").mkdir()
    (here / "jobs" / "pipeline.py").write_text(module("targets_cli"))
    qo = Qo(here, {"PYTHONPATH": os.pathsep.join(sys.path)})
    for command in (("dag", "validate"), ("dag", "deploy"), ("dag", "diff"), ("plan",)):
        for target in ("jobs", "jobs/pipeline.py", "jobs/pipeline.py:pipeline"):
            answer = qo.here(*command, target)
            assert (answer.code, answer.err) == (0, ""), answer
