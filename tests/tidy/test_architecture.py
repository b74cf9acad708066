"""ARCHITECTURE.md and docs/architecture name what there is, and their walks stay short."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.fast

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "qo"
MAP = ROOT / "ARCHITECTURE.md"
PAGES = [MAP, *sorted((ROOT / "docs" / "architecture").glob("*.md"))]
WALK_FILES_MAX = {"## Walk 1": 30, "## Walk 2": 75}


def files_in(text: str) -> set[str]:
    return {name for name in re.findall(r"`([\w/]+\.py)", text) if not Path(name).name.startswith("test_")}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_names_modules_that_exist(page: Path) -> None:
    modules = {str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*.py")}
    below_spark = {str(path.relative_to(SOURCE / "spark")) for path in (SOURCE / "spark").rglob("*.py")}
    known = modules | below_spark if page.name == "walks.md" else modules
    assert files_in(page.read_text()) - known == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_names_tests_that_exist(page: Path) -> None:
    suites = {
        str(path.relative_to(ROOT / "tests")): path.read_text() for path in (ROOT / "tests").rglob("test_*.py")
    }
    text = page.read_text()
    assert set(re.findall(r"`(\w+/test_\w+\.py)`", text)) - set(suites) == set()
    names = re.findall(r"`(test_\w+)`", text)
    assert [name for name in names if not any(f"def {name}" in suite for suite in suites.values())] == []


@pytest.mark.parametrize("heading", WALK_FILES_MAX)
def test_a_walk_names_few_files(heading: str) -> None:
    walk = MAP.read_text().partition(heading)[2].partition("\n## ")[0]
    assert 0 < len(files_in(walk)) <= WALK_FILES_MAX[heading]


def test_every_walk_has_a_diagram() -> None:
    for page in (MAP, ROOT / "docs" / "architecture" / "walks.md"):
        walks = re.split(r"\n## ", page.read_text())[1:]
        missing = [
            walk.splitlines()[0] for walk in walks if re.search(r"^1\. ", walk, re.M) and "```mermaid" not in walk
        ]
        assert missing == []


def test_the_map_names_every_package_and_every_room_of_the_dispatcher() -> None:
    page = MAP.read_text()
    packages = {path.name for path in SOURCE.iterdir() if (path / "__init__.py").exists()}
    rooms = {path.name for path in (SOURCE / "dispatcher").iterdir() if (path / "__init__.py").exists()}
    assert [name for name in sorted(packages | rooms) if f"`{name}`" not in page] == []
