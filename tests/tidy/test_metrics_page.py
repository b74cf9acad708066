"""The page about metrics names what is served, and only that."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from qo.worker import metrics
from qo.worker.state import State
from qo.worker.stats import BUCKETS_S, ENDS, TYPES_MAX
from qo.worker.status import KEEPER_BLOCKED_S_MAX, LOOP_BLOCKED_S_MAX

pytestmark = pytest.mark.fast

PAGE = (Path(__file__).parents[2] / "docs/reference/metrics.md").read_text()


def test_every_metric_is_documented_and_no_other():
    documented = re.findall(r"^\| `(qo_\w+)", PAGE, re.MULTILINE)
    assert sorted(documented) == sorted(metrics.NAMES)


def test_rules_and_examples_use_metrics_that_there_are():
    used = set(re.findall(r"\bqo_(?:worker|task)_\w+", PAGE))
    series = {f"{name}{suffix}" for name in metrics.NAMES for suffix in ("", "_bucket", "_count", "_sum")}
    assert used <= series


def test_every_label_value_and_limit_is_documented():
    for value in [*ENDS, *State]:
        assert f"`{value}`" in PAGE
    for limit in [LOOP_BLOCKED_S_MAX, KEEPER_BLOCKED_S_MAX, TYPES_MAX, BUCKETS_S[-1]]:
        assert re.search(rf"\b{limit:,.0f}\b", PAGE), limit


def test_the_metrics_library_is_not_loaded_before_the_first_scrape():
    code = "import sys, qo.worker.status; sys.exit('prometheus_client' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
