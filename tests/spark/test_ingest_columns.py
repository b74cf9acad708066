"""Files with fewer, more or reordered columns: what ``drift`` lets in, and what is refused."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from qo.api.contract.task import ColumnBody, InputMode, Piece, WorkInput, WorkOutput
from qo.config.settings import Settings
from qo.core.pipeline.columns import Column
from qo.errors import QoError
from qo.spark.engine.error_translation import BadData, explain
from qo.spark.io.columns import columns_of, merge_columns
from qo.spark.io.files import files_for
from qo.spark.operators import ingest
from qo.spark.operators.operator_context import Context, Inputs
from qo.testing.spark import make_run

pytestmark = pytest.mark.spark

CSV: dict[str, Any] = {"format": "csv", "options": {"header": True}}
BARE: dict[str, Any] = {"format": "csv"}
A, B, C = ({"name": name, "type": "bigint"} for name in "abc")
AB = {"a": "long", "b": "long"}

Row = Mapping[str, Any]


def attempt(
    spark: SparkSession,
    config: Mapping[str, Any],
    files: Sequence[str],
    known: Sequence[Column] | Mapping[str, str] = (),
    drift: str = "fail",
) -> Context:
    if isinstance(known, Mapping):
        known = [Column(name=name, type=kind) for name, kind in known.items()]
    columns = [ColumnBody(name=each.name, type=each.type) for each in known] or None
    output = WorkOutput(index=0, dataset_id="a", generation_id="a", prefix="file:/nowhere/", columns=columns)
    landed = WorkInput(
        position=0,
        name="landed",
        dataset_id="l",
        generation_id="l",
        mode=InputMode.PARTITION,
        pieces=[Piece(revision=1, files=[f"file:{file}" for file in files])],
    )
    run = make_run("ingest", [landed], dict(config), partition_key="monday", outputs=[output], drift=drift)
    return Context(
        spark, run, Inputs(["landed"], lambda name: spark.range(0)), config, files_for(Settings(), "file:/")
    )


def rows_of(context: Context) -> list[Row]:
    made = ingest.run(context)[0]
    return [row.asDict() for row in made.collect()]


def refusal_of(context: Context) -> str:
    """What the task says, be it before the rows are read or while they are."""
    with pytest.raises((PySparkException, Py4JError, QoError)) as caught:
        rows_of(context)
    better = next((found for each in context.diagnoses if (found := each(caught.value))), None)
    meant = better or explain(caught.value)
    assert isinstance(meant, BadData), meant
    return str(meant)


def file(directory: Path, name: str, text: str) -> str:
    (directory / name).write_text(text)
    return f"{directory}/{name}"


def test_declared_columns_that_a_file_lacks_are_null_where_the_job_lets_columns_in(
    spark: SparkSession, tmp_path: Path
) -> None:
    old, new = file(tmp_path, "old.csv", "a,b\n1,2\n"), file(tmp_path, "new.csv", "a,b,c\n3,4,5\n")
    config = {**CSV, "columns": [A, B, C]}
    assert rows_of(attempt(spark, config, [old], drift="add")) == [{"a": 1, "b": 2, "c": None}]
    assert rows_of(attempt(spark, config, [new], drift="add")) == [{"a": 3, "b": 4, "c": 5}]
    both = rows_of(attempt(spark, config, [old, new], drift="add"))
    assert sorted(both, key=lambda row: row["a"]) == [{"a": 1, "b": 2, "c": None}, {"a": 3, "b": 4, "c": 5}]
    said = refusal_of(attempt(spark, config, [old]))
    assert "old.csv" in said
    assert "no column 'c'" in said
    assert "'drift: add'" in said


def test_a_column_that_the_job_does_not_declare_is_refused_or_left_out_and_said(
    spark: SparkSession, tmp_path: Path
) -> None:
    wide = file(tmp_path, "wide.csv", "a,note,b\n1,x,2\n")
    config = {**CSV, "columns": [A, B]}
    said = refusal_of(attempt(spark, config, [wide]))
    assert "wide.csv" in said
    assert "'note'" in said
    assert "'drift: add'" in said
    context = attempt(spark, config, [wide], drift="add")
    assert rows_of(context) == [{"a": 1, "b": 2}]
    assert context.details["columns_not_read"] == ["note"]
    cut = file(tmp_path, "cut.csv", "a,note,b\n1,x,2\n3\n")
    assert "cut.csv: 1 row" in refusal_of(attempt(spark, config, [cut], drift="add"))  # Though 'b' is not last.


def test_columns_in_another_order_are_never_shifted(spark: SparkSession, tmp_path: Path) -> None:
    turned = file(tmp_path, "turned.csv", "b,a\n2,1\n")
    declared = {**CSV, "columns": [A, B]}
    for config, known in ((declared, ()), (CSV, AB)):
        assert rows_of(attempt(spark, config, [turned], known, "add")) == [{"a": 1, "b": 2}]
        said = refusal_of(attempt(spark, config, [turned], known))
        assert "turned.csv" in said
        assert "another order" in said
        assert "'drift: add'" in said


def test_a_file_with_none_of_the_columns_is_another_file(spark: SparkSession, tmp_path: Path) -> None:
    other = file(tmp_path, "other.csv", "x,y\n1,2\n")
    said = refusal_of(attempt(spark, {**CSV, "columns": [A, B]}, [other], drift="add"))
    assert "other.csv has none of the columns 'a', 'b': it has x, y" in said


def test_an_empty_file_has_no_rows_once_the_columns_are_known(spark: SparkSession, tmp_path: Path) -> None:
    empty, old = file(tmp_path, "empty.csv", ""), file(tmp_path, "old.csv", "a\n1\n")
    config = {**CSV, "columns": [A, B]}
    assert rows_of(attempt(spark, config, [empty])) == []
    assert rows_of(attempt(spark, config, [empty], drift="add")) == []
    assert rows_of(attempt(spark, config, [empty, old], drift="add")) == [{"a": 1, "b": None}]
    assert "empty.csv is empty" in refusal_of(attempt(spark, CSV, [empty], drift="add"))


def test_rows_that_do_not_fit_stay_errors_where_columns_are_let_in(spark: SparkSession, tmp_path: Path) -> None:
    bad = file(tmp_path, "bad.csv", "a,b\n1,2\nsix,3\n")
    for config, known in (({**CSV, "columns": [A, B, C]}, ()), (CSV, {**AB, "c": "long"})):
        said = refusal_of(attempt(spark, config, [bad], known, "add"))
        assert "bad.csv: 1 row, in column 'a' (bigint), such as 'six,3'" in said
    ragged = file(tmp_path, "ragged.csv", "a,b\n1,2\n3\n")
    assert "ragged.csv: 1 row" in refusal_of(attempt(spark, {**CSV, "columns": [A, B, C]}, [ragged], drift="add"))


def test_without_a_header_trailing_columns_may_be_missing_where_the_job_lets_columns_in(
    spark: SparkSession, tmp_path: Path
) -> None:
    mixed = file(tmp_path, "mixed.csv", "1,2\n3\n")
    config = {**BARE, "columns": [A, B]}
    assert rows_of(attempt(spark, config, [mixed], drift="add")) == [{"a": 1, "b": 2}, {"a": 3, "b": None}]
    said = refusal_of(attempt(spark, config, [mixed]))
    assert "mixed.csv: 1 row" in said
    assert "'drift: add'" in said
    longer = file(tmp_path, "longer.csv", "1,2\n3,4,5\n")
    for drift in ("fail", "add"):
        said = refusal_of(attempt(spark, config, [longer], drift=drift))
        assert "longer.csv: 1 row" in said
        assert "3,4,5" in said
    bad = file(tmp_path, "bad.csv", "1,2\nsix,7\n8\n")
    said = refusal_of(attempt(spark, config, [bad], drift="add"))
    assert "bad.csv: 1 row, in column 'a' (bigint), such as 'six,7'" in said


def test_parquet_and_json_that_lack_columns_are_read_with_nulls(spark: SparkSession, tmp_path: Path) -> None:
    spark.sql("SELECT 1L AS a").write.parquet(f"file:{tmp_path}/narrow.parquet")
    narrow = f"{tmp_path}/narrow.parquet"
    lines = file(tmp_path, "narrow.json", '{"a": 1}\n')
    for format_, path in (("parquet", narrow), ("json", lines)):
        for config, known in (({"format": format_, "columns": [A, B]}, ()), ({"format": format_}, AB)):
            assert rows_of(attempt(spark, config, [path], known, "add")) == [{"a": 1, "b": None}]
    said = refusal_of(attempt(spark, {"format": "parquet"}, [narrow], AB))
    assert "narrow.parquet has no column 'b'" in said
    assert "'drift: add'" in said


FILES = {
    "csv": {
        "1.csv": "a,b\n1,10\n",
        "2.csv": "b,a,c\n20,2,x\n",
        "3.csv": "a\n3\n",
        "4.csv": "d,a\ntrue,4\n",
    },
    "json": {
        "1.json": '{"a": 1, "b": 10}\n',
        "2.json": '{"b": 20, "a": 2, "c": "x"}\n',
        "3.json": '{"a": 3}\n',
        "4.json": '{"d": true, "a": 4}\n',
    },
}


@pytest.mark.parametrize("format_", ["csv", "json", "parquet"])
def test_in_whatever_order_files_come_the_dataset_has_the_same_rows_and_columns(
    spark: SparkSession, tmp_path: Path, format_: str
) -> None:
    """Learnt columns: each file is read with what those before it have left, as a rebuild does."""
    config = {**CSV} if format_ == "csv" else {"format": format_}
    for name, text in FILES["json" if format_ == "parquet" else format_].items():
        path = file(tmp_path, name, text)
        if format_ == "parquet":
            spark.read.json(f"file:{path}").write.parquet(f"file:{tmp_path}/{name}.parquet")
    names = sorted(
        f"{name}.parquet" if format_ == "parquet" else name
        for name in FILES["csv" if format_ == "csv" else "json"]
    )

    def rebuilt(order: Sequence[str]) -> tuple[set[tuple[str, str]], list[tuple[Any, ...]]]:
        known: list[Column] = []
        rows: list[Row] = []
        for name in order:
            made = ingest.run(attempt(spark, config, [f"{tmp_path}/{name}"], known, "add"))[0]
            known = list(merge_columns(known, columns_of(made.schema), "add").columns)
            rows += [row.asDict() for row in made.collect()]
        every = sorted(each.name for each in known)
        return {(each.name, each.type) for each in known}, sorted(
            (tuple(row.get(name) for name in every) for row in rows), key=str
        )

    orders = list(permutations(names))[:: 1 if os.environ.get("PROVE") else 5]
    first, *others = [rebuilt(order) for order in orders]
    assert [name for name, _ in sorted(first[0])] == ["a", "b", "c", "d"]
    assert [row[0] for row in first[1]] == [1, 2, 3, 4]
    assert all(other == first for other in others)
    together = rows_of(attempt(spark, config, [f"{tmp_path}/{name}" for name in names], drift="add"))
    assert sorted((tuple(row[name] for name in "abcd") for row in together), key=str) == first[1]
