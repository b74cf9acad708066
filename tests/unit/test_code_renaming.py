"""Modules of a bundle under names of their own: the same code, at the same lines, beside other versions of itself."""

from __future__ import annotations

import ast
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qo.agent.code.renaming import Names, rename_imports

pytestmark = pytest.mark.fast

OWN = Names.of(["helpers.py", "jobs/__init__.py", "jobs/clean.py", "jobs/deep/one.py", "shared/mine.py"])


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("import helpers", "import p.helpers as helpers"),
        ("import helpers as h", "import p.helpers as h"),
        ("import os, helpers", "import os; import p.helpers as helpers"),
        ("import jobs.clean", "import p.jobs.clean as _qo_; from p import jobs"),
        ("import jobs.clean as c", "import p.jobs.clean as c"),
        ("from jobs import clean", "from p.jobs import clean"),
        ("from jobs.clean import (a, b as c)", "from p.jobs.clean import a, b as c"),
        ("from helpers import *", "from p.helpers import *"),
        ("from . import clean", "from . import clean"),
        ("from .clean import a", "from .clean import a"),
        ("import json", "import json"),
        ("from helpers_of_others import a", "from helpers_of_others import a"),
        ("if x: import helpers; y = 1", "if x: import p.helpers as helpers; y = 1"),
        # A directory without __init__ may be shared with an installed package.
        ("from shared import mine", "from p.shared import mine"),
        ("from shared import theirs", "from shared import theirs"),
        ("import shared.mine", "import p.shared.mine as _qo_; from p import shared"),
        ("import shared.theirs", "import shared.theirs"),
    ],
)
def test_only_imports_of_the_bundles_own_modules_are_renamed(written: str, meant: str) -> None:
    assert rename_imports(written, "p", OWN) == meant


def test_every_other_line_stays_where_it_was() -> None:
    source = (
        "from jobs.clean import (\n    a,  # why\n    b,\n)\nimport helpers; x = 'ä'; import jobs.clean\ny = 1\n"
    )
    renamed = rename_imports(source, "p", OWN)
    assert renamed.split("\n")[4].startswith("import p.helpers as helpers; x = 'ä'; import p.jobs.clean as _qo_")
    assert renamed.split("\n")[5:] == ["y = 1", ""]
    ast.parse(renamed)


_STATEMENTS = st.sampled_from(
    [
        "import helpers",
        "import os, helpers as h",
        "from jobs import (clean,\n  __doc__)",
        "def f():\n    from helpers import a\n    return a",
        "x = 'import helpers'",
        "y = '''\nfrom jobs import clean\n'''",
        "try:\n    import jobs.clean\nexcept ImportError: pass",
        "z = 1  # import helpers",
        "if x: import helpers",
    ]
)


@given(st.lists(_STATEMENTS, max_size=8))
def test_nothing_but_imports_changes_and_no_line_moves(statements: list[str]) -> None:
    source = "\n".join(statements)
    renamed = rename_imports(source, "p", OWN)
    assert renamed.count("\n") == source.count("\n")
    before, after = (
        [(type(node), getattr(node, "lineno", 0)) for node in ast.parse(text).body if not _imports(node)]
        for text in (source, renamed)
    )
    assert before == after
    assert rename_imports(renamed, "p", OWN) == renamed  # There is nothing left of the bundle's own names.


def _imports(node: ast.AST) -> bool:
    return isinstance(node, ast.Import | ast.ImportFrom)


@pytest.fixture
def importable(tmp_path: Path) -> Iterator[Path]:
    sys.path.append(str(tmp_path))
    yield tmp_path
    sys.path.remove(str(tmp_path))
    for name in [each for each in sys.modules if each.startswith(("qo_test_one", "qo_test_two"))]:
        del sys.modules[name]


def _put(place: Path, package: str, rate: int) -> None:
    files = {
        "ops.py": (
            "import dataclasses\nimport helpers\nimport jobs.rates\n\n\ndef price():\n"
            "    from helpers import NAME\n    return NAME, jobs.rates.RATE, helpers.describe()\n\n\n"
            "@dataclasses.dataclass\nclass Row:\n    rate: 'int' = 0\n\n\ndef broken():\n    return 1 / 0\n"
        ),
        "helpers.py": f"NAME = 'version {rate}'\n\n\ndef describe():\n    return f'{{NAME}} describes itself'\n",
        "jobs/__init__.py": "",
        "jobs/rates.py": f"RATE = {rate}\n",
    }
    for name, text in files.items():
        path = place / package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(rename_imports(text, package, Names.of(files)))
    (place / package / "__init__.py").write_text("")


def test_two_versions_of_the_same_modules_live_in_one_interpreter(importable: Path) -> None:
    import importlib

    _put(importable, "qo_test_one", 1)
    _put(importable, "qo_test_two", 2)
    one, two = (importlib.import_module(f"{package}.ops") for package in ("qo_test_one", "qo_test_two"))
    assert one.price() == ("version 1", 1, "version 1 describes itself")
    assert two.price() == ("version 2", 2, "version 2 describes itself")
    assert one.Row is not two.Row
    assert "helpers" not in sys.modules


def test_a_traceback_shows_the_line_that_the_user_wrote(importable: Path) -> None:
    import importlib

    _put(importable, "qo_test_one", 1)
    try:
        importlib.import_module("qo_test_one.ops").broken()
    except ZeroDivisionError as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        assert (Path(frame.filename).name, frame.lineno, frame.line) == ("ops.py", 17, "return 1 / 0")
    else:
        pytest.fail("it did not raise")
