"""What somebody meets who tries commands for the first time: nothing is said twice, and nothing left unsaid."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.cli.command import Qo

SHOP = """\
name: shop
jobs:
  - {name: orders, activation: source, outputs: 1, source: {kind: manual}}
  - name: clean
    activation: reactive
    runtime: python
    operator: shop:clean
    outputs: 1
    execution_strategy: PerPartition
    inputs: [{from: {job: orders}}]
"""


@pytest.fixture
def qo(tmp_path: Path) -> Qo:
    (tmp_path / "shop.yaml").write_text(SHOP)
    (tmp_path / "shop.py").write_text("def clean(run): ...\n")
    return Qo(tmp_path)


def test_a_function_that_is_missing_is_wrong_with_a_pipeline(qo: Qo) -> None:
    assert qo.ok("dag", "validate", "shop.yaml") == "shop: 2 jobs, nothing wrong\n"
    (qo.cwd / "shop.py").write_text("def cleaned(run): ...\n")
    missing = qo.here("dag", "validate", "shop.yaml")
    assert (missing.code, missing.out) == (2, "")
    assert "shop.yaml:7:" in missing.err
    assert "did you mean 'cleaned'?" in missing.err


def test_partitions_that_a_backfill_leaves_out_are_told_once_and_briefly(qo: Qo) -> None:
    qo.ok("dag", "deploy", "shop.yaml")
    qo.ok("emit", "shop.orders", "--partition", "2024-01-01")
    begun = qo.here("backfill", "shop.clean", "--from", "2024-01-01", "--to", "2024-03-31")
    assert begun.code == 0, begun
    told = begun.out + begun.err
    assert told.count("2024-01-02") == 1
    assert "2024-01-06 and 85 more" in told
    assert "2024-01-07" not in told


def test_only_failures_can_be_superseded(qo: Qo) -> None:
    wrong = qo.here("run", "list", "--all")
    assert (wrong.code, "--status failed" in wrong.err) == (2, True)
