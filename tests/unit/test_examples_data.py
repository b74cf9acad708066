"""The data of the flights example can be read wherever the project runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "flights"


def test_the_data_of_the_example_is_read_without_setuptools() -> None:
    """From Python 3.12 on, a new environment has none, and the package with the data asks for a part of it."""
    without = "import sys; sys.modules['pkg_resources'] = None"
    program = f"{without}; import prepare; print(len(prepare.read_table('planes')))"
    ended = subprocess.run([sys.executable, "-c", program], cwd=EXAMPLE, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout.strip()) == (0, "3322"), ended.stderr
