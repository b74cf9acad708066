"""The compact operator: how many files, and the same rows in them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from qo.api.contract.task import Piece
from qo.spark.operators.compact import FILES_MAX, target_files
from qo.testing.spark import run_operator

pytestmark = pytest.mark.spark

sizes = st.lists(st.one_of(st.none(), st.integers(0, 10**12)), max_size=50)


@given(sizes=sizes, target=st.integers(1, 10**10))
def test_files_are_filled_and_never_too_many(sizes: list[int | None], target: int) -> None:
    wanted = target_files([Piece(revision=1, bytes=size) for size in sizes], target)
    total = sum(target if size is None else size for size in sizes)
    assert 1 <= wanted <= FILES_MAX
    assert wanted * target >= total or wanted == FILES_MAX
    assert wanted == 1 or (wanted - 1) * target < total


def test_the_rows_stay_the_same_in_one_small_file(spark: SparkSession, tmp_path: Path) -> None:
    crumbs = spark.range(100).repartition(8)
    compacted = run_operator("compact", {"crumbs": crumbs}, spark=spark)
    compacted.write.parquet(f"file:{tmp_path}/out")
    assert len(list((tmp_path / "out").glob("*.parquet"))) == 1
    assert sorted(row.id for row in spark.read.parquet(f"file:{tmp_path}/out").collect()) == list(range(100))
