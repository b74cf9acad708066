"""The short and the explicit form of a definition are one document, with one set of editions."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.property.test_dag_documents import VALIDATOR, dags, document, sound

import qo
from qo.core.pipeline.dag import Dag
from qo.core.pipeline.plan import content_hash, plan
from qo.pipeline.ddl import parse_columns
from qo.pipeline.parsing import read
from qo.pipeline.rendering import to_yaml

pytestmark = pytest.mark.fast

ELSEWHERE = {"elsewhere": "id"}


DEFAULT = {"outputs": 1, "update_strategy": "append", "execution_strategy": "PerPartition"}


def abbreviate(whole: dict[str, Any], data: st.DataObject) -> dict[str, Any]:
    """Leave out, and write shorter, whatever may be, each as the draw says."""
    for job in whole["jobs"]:
        for name in ("activation", "runtime", "outputs", "update_strategy", "execution_strategy"):
            if DEFAULT.get(name, job.get(name)) == job.get(name) and data.draw(st.booleans()):
                job.pop(name, None)
        if "source" in job and data.draw(st.booleans()):  # None of them runs code.
            job.pop("operator", None)
            kind = job["source"].pop("kind")
            job["source"] = job["source"] or kind
        if "inputs" in job:
            job["inputs"] = [shorter(each, data) for each in job["inputs"]]
    if "publish" in whole:
        whole["publish"] = {name: shorter(each, data) for name, each in whole["publish"].items()}
    whole["defaults"] = {**whole.get("defaults", {}), "runtime": "python"}  # As all functions of these documents.
    return whole


def shorter(each: dict[str, Any], data: st.DataObject) -> Any:
    origin = each["from"]
    if "job" in origin and data.draw(st.booleans()):
        each["from"] = f"{origin['job']}.{origin['output']}" if "output" in origin else origin["job"]
    alone = isinstance(each["from"], str) and each.keys() == {"from"}
    return each["from"] if alone and data.draw(st.booleans()) else each


@given(dag=dags(), data=st.data())
@settings(max_examples=80, deadline=None)
def test_the_short_and_the_explicit_form_compile_to_the_same_document(dag: Dag, data: st.DataObject):
    explicit = read(json.dumps(document(sound(dag))))
    short = abbreviate(document(sound(dag)), data)
    VALIDATOR.validate(short)
    compiled = read(json.dumps(short))
    assert compiled == explicit
    assert content_hash(compiled) == content_hash(explicit)
    assert plan(compiled, ELSEWHERE) == plan(explicit, ELSEWHERE)
    assert read(to_yaml(compiled)) == compiled  # What qo dag show --full prints is the same pipeline again.


def function(run: object) -> object:
    """What the jobs of these documents run, by the name that they have for it."""
    return run


function.__module__, function.__qualname__ = "a.b", "c"


def declare(whole: dict[str, Any], data: st.DataObject) -> qo.Pipeline:
    """Declare a document in Python, each job by one of the methods that can."""
    pipeline = qo.Pipeline(whole["name"], description=whole.get("description"), **whole.get("defaults", {}))
    for job in whole["jobs"]:
        fields = {name: value for name, value in job.items() if name not in ("activation", "operator", "runtime")}
        if "source" in job and job["source"]["kind"] == "manual" and data.draw(st.booleans()):
            del fields["source"]
            pipeline.manual(partition=fields.pop("partitions", None), **fields)
        elif "source" in job and job["source"]["kind"] == "cron" and data.draw(st.booleans()):
            source = fields.pop("source")
            pipeline.cron(source["schedule"], timezone=source.get("timezone"), **fields)
        elif job["operator"] == "a.b:c" and data.draw(st.booleans()):
            strategy = fields.pop("execution_strategy")
            pipeline.job(function, strategy=data.draw(st.sampled_from([strategy, None])), **fields)
        else:
            del job["activation"]
            pipeline.add(strategy=job.pop("execution_strategy", None), **job)
    for name, published in whole.get("publish", {}).items():
        pipeline.publish(name, published["from"]["job"], output=published["from"].get("output", 0))
    return pipeline


@given(dag=dags(), data=st.data())
@settings(max_examples=60, deadline=None)
def test_a_declaration_in_python_compiles_to_the_same_document(dag: Dag, data: st.DataObject):
    declared = declare(document(sound(dag)), data).document()
    assert declared == read(json.dumps(document(sound(dag))))


types = st.recursive(
    st.sampled_from(["int", "string", "decimal(10, 2)", "timestamp"]),
    lambda inner: st.one_of(
        inner.map(lambda each: f"array<{each}>"),
        st.tuples(inner, inner).map(lambda pair: f"map<{pair[0]}, {pair[1]}>"),
        inner.map(lambda each: f"struct<a: {each}, b: int>"),
    ),
    max_leaves=4,
)
column_names = st.text(min_size=1, max_size=8).filter(lambda text: text.strip())


@given(
    columns=st.lists(st.tuples(column_names, types), min_size=1, max_size=6), gap=st.sampled_from([", ", ",\n "])
)
def test_columns_written_as_one_text_are_those_of_the_list(columns: list[tuple[str, str]], gap: str):
    text = gap.join(f"`{name.replace('`', '``')}` {type_}" for name, type_ in columns)
    assert parse_columns(text) == [{"name": name, "type": type_} for name, type_ in columns]


@given(text=st.text(max_size=40))
def test_any_text_is_some_list_of_columns(text: str):
    assert all(each.keys() <= {"name", "type"} for each in parse_columns(text))
