"""Columns of frames, as they are recorded, and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as T

from qo.core.pipeline.columns import Column, columns_hash
from qo.errors import UsageError
from qo.spark.io.columns import columns_of, merge_columns, struct_of, writable_columns

pytestmark = pytest.mark.fast  # Types are plain Python: no session is needed.

PLAIN = [
    T.StringType(),
    T.BooleanType(),
    T.ByteType(),
    T.ShortType(),
    T.IntegerType(),
    T.LongType(),
    T.FloatType(),
    T.DoubleType(),
    T.DecimalType(12, 3),
    T.DateType(),
    T.TimestampType(),
    T.TimestampNTZType(),
    T.BinaryType(),
]
names = st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), min_size=1, max_size=20)


def fields(types: st.SearchStrategy[T.DataType]) -> st.SearchStrategy[list[T.StructField]]:
    one = st.builds(T.StructField, names, types, st.booleans())
    return st.lists(one, min_size=1, max_size=4, unique_by=lambda each: each.name.lower())


types = st.recursive(
    st.sampled_from(PLAIN),
    lambda inner: (
        st.builds(T.ArrayType, inner, st.booleans())
        | st.builds(T.MapType, st.just(T.StringType()), inner, st.booleans())
        | st.builds(T.StructType, fields(inner))
    ),
    max_leaves=5,
)
structs = st.builds(T.StructType, fields(types))


@given(structs)
def test_what_is_recorded_of_a_frame_reads_it_back(struct: T.StructType) -> None:
    recorded = writable_columns(struct)
    assert recorded == columns_of(struct)
    back = struct_of(recorded)
    assert [(each.name, each.dataType) for each in back] == [(each.name, each.dataType) for each in struct]
    assert all(each.nullable for each in back)  # An older file may lack it.
    assert columns_hash(columns_of(back)) == columns_hash(recorded)
    assert merge_columns(recorded, columns_of(back), "fail").added == ()


@pytest.mark.parametrize(
    "unfit", [T.NullType(), T.CalendarIntervalType(), T.DayTimeIntervalType(), T.VariantType()], ids=str
)
def test_a_type_that_not_every_reader_knows_is_refused_wherever_it_stands(unfit: T.DataType) -> None:
    for within in (
        unfit,
        T.ArrayType(unfit),
        T.MapType(T.StringType(), T.StructType([T.StructField("x", unfit)])),
    ):
        with pytest.raises(UsageError, match="column 'c' has the type"):
            writable_columns(T.StructType([T.StructField("c", within)]))


def test_a_frame_has_columns_with_names_of_their_own() -> None:
    with pytest.raises(UsageError, match="without columns"):
        writable_columns(T.StructType([]))
    for name in ("", "x" * 201):
        with pytest.raises(UsageError, match="needs a name of 1 to 200 characters"):
            writable_columns(T.StructType([T.StructField(name, T.LongType())]))
    doubled = T.StructType([T.StructField("a", T.LongType()), T.StructField("A", T.LongType())])
    with pytest.raises(UsageError, match="'A' is in the frame twice"):
        writable_columns(doubled)
    nested = T.StructType([T.StructField("of", T.ArrayType(doubled))])  # Could be written, and never be read.
    with pytest.raises(UsageError, match=r"'A' is in 's\.of' twice"):
        writable_columns(T.StructType([T.StructField("s", T.MapType(T.StringType(), nested))]))


def test_columns_that_are_none_of_sparks_are_said_to_be_so() -> None:
    with pytest.raises(UsageError, match="a: very long"):
        struct_of([Column(name="a", type="very long")])
