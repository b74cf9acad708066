"""Every example in the documentation runs.

In a page, a ``python`` block that begins with ``# name.py`` is written to that file and any other is run. Of a
``console`` block, the lines after ``$`` are run one after the other, and must succeed. All blocks of a page
share a directory, with an empty embedded store.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(python|console|json|toml)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# (\S+\.(?:py|toml))\n")


def examples(page: Path) -> list[tuple[str, str]]:
    return [(match[1], match[2]) for match in BLOCK.finditer(page.read_text())]


@pytest.mark.parametrize("page", [page for page in PAGES if examples(page)], ids=lambda page: page.name)
def test_the_examples_of_every_page_run(page: Path, tmp_path: Path):
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("QO_", "S3_", "AWS_"))}
    environ["PATH"] = f"{Path(sys.executable).parent}:{environ['PATH']}"
    environ["NO_COLOR"] = "1"
    for language, text in examples(page):
        named = FILE.match(text)
        if named is not None:
            (tmp_path / named[1]).write_text(text)
        elif language == "python":
            run([sys.executable, "-c", text], tmp_path, environ)
        elif language == "console":
            for line in commands(text):
                run(["bash", "-c", line], tmp_path, environ)


def commands(text: str) -> list[str]:
    joined = text.replace("\\\n", "")
    return [line.removeprefix("$ ") for line in joined.splitlines() if line.startswith("$ ")]


def run(command: list[str], cwd: Path, environ: dict[str, str]) -> None:
    done = subprocess.run(command, cwd=cwd, env=environ, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, f"{command[-1]}\n{done.stdout}\n{done.stderr}"
