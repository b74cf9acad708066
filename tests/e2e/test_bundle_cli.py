"""Bundles from the command line: built, tried, pushed, listed; and what is wrong is said with its exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.cli.command import Qo

SUM = """
import json, sys
print(json.dumps({"result": sum(json.load(sys.stdin)["work"]["config"]["numbers"])}))
"""


@pytest.fixture
def qo(tmp_path: Path) -> Qo:
    (tmp_path / "score").mkdir()
    (tmp_path / "score" / "main.py").write_text(SUM)
    return Qo(tmp_path)


def test_a_bundle_is_built_tried_pushed_and_listed(qo: Qo, tmp_path: Path) -> None:
    built = json.loads(qo.here("bundle", "build", "score", "-o", "score.zip", "--json").out)
    numbers = json.dumps({"config": {"numbers": [1, 2, 39]}})
    (tmp_path / "work.json").write_text(numbers)
    for given in (numbers, "@work.json"):
        reply = json.loads(qo.here("bundle", "run", "score.zip", "--unsafe", "--input", given).out)
        assert (reply["outcome"], reply["result"]) == ("success", 42)
    first, again = (qo.here("bundle", "push", "score.zip").out for _ in range(2))
    assert first == again
    (listed,) = json.loads(qo.here("bundle", "list", "--json").out)
    assert (listed["bundle_id"], listed["name"], listed["sha256"]) == (first.strip(), "score", built["sha256"])
    assert first.strip() in qo.here("bundle", "list").out
    package = json.loads(qo.here("bundle", "function", "-o", "function.zip", "--json").out)
    assert package["handler"] == "qo.function.aws.handler"
    assert (tmp_path / "function.zip").stat().st_size == package["bytes"]


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (("run", "missing.zip"), 3, "there is no file"),
        (("run", "score/main.py", "--unsafe"), 2, "not a plain zip"),
        (("run", "score.zip", "--unsafe", "--input", "nonsense"), 2, "not JSON"),
        (("run", "score.zip", "--unsafe", "--input", "[]"), 2, "JSON object"),
        (("run", "score.zip", "--unsafe", "--env", "NO_SUCH_VARIABLE"), 2, "no such variable"),
        (("run", "score.zip", "--unsafe"), 8, "KeyError"),
        (("build", "missing", "-o", "x.zip"), 2, "is no directory"),
        (("push", "score/main.py"), 2, "not a plain zip"),
    ],
)
def test_a_mistake_with_a_bundle_is_one_error_and_a_code(
    qo: Qo, args: tuple[str, ...], code: int, message: str
) -> None:
    qo.here("bundle", "build", "score", "-o", "score.zip")
    ended = qo.here("bundle", *args)
    assert ended.code == code, ended.err
    assert message in ended.err
