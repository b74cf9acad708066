"""A few rows of what a pipeline has published."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from qo.api.contract.task import Piece
from qo.dispatcher.views.published import Table
from qo.up.results import sample

pytestmark = pytest.mark.fast


def test_the_report_shows_rows_of_files_that_differ_in_their_columns(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"day": [1, 2], "delay": [0.5, None]}), tmp_path / "old.parquet")
    parquet.write_table(pa.table({"day": [3], "gate": ["B"], "delay": [7.0]}), tmp_path / "new.parquet")
    pieces = tuple(
        Piece(revision=1, location=f"file:{tmp_path}/", files=[name]) for name in ("old.parquet", "new.parquet")
    )
    header, rows = sample(Table("t", "j", 3, 2, 100, pieces), 4)
    assert header == ["day", "delay", "gate"]
    assert rows == [["1", "0.50", ""], ["2", "", ""], ["3", "7.00", "B"]]
