"""Laws of DAG documents: they survive being written, their order means nothing, and no text breaks the reader."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from qo.core.pipeline.dag import (
    Bootstrap,
    Dag,
    Defaults,
    From,
    Input,
    Job,
    Publish,
    Scaling,
    Source,
    Strategy,
    Udf,
    resolve_defaults,
)
from qo.core.pipeline.partitions import PartitionKind, Partitions
from qo.core.pipeline.plan import content_hash, plan
from qo.pipeline.jsonschema import schema
from qo.pipeline.parsing import read
from qo.pipeline.problems import DefinitionError
from qo.pipeline.rendering import to_yaml

pytestmark = pytest.mark.fast

VALIDATOR = jsonschema.Draft202012Validator(schema())

names = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True)
words = st.one_of(
    st.sampled_from(
        ["yes", "null", "1e5", "0x1", "2026-01-01", "1:30", "<<", "=", "- a", "a: b", "#", " a ", "a\n b"]
    ),
    st.text(max_size=12).filter(lambda text: "\0" not in text),
)
numbers = st.one_of(st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False, allow_infinity=False))
scalars = st.one_of(words, numbers, st.booleans())
plain = st.recursive(
    st.one_of(scalars, st.none()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(words, inner, max_size=3)),
    max_leaves=6,
)
partitionings = st.one_of(
    st.builds(
        Partitions,
        kind=st.just("day"),
        timezone=st.sampled_from([None, "Europe/Berlin"]),
        start=st.just("2026-01-01"),
    ),
    st.builds(Partitions, kind=st.sampled_from(["text", "hour", "month"])),
)
columns = st.text(min_size=1, max_size=8).filter(lambda text: text.strip() and "\0" not in text)
filters = st.dictionaries(
    columns,
    st.one_of(
        scalars,
        st.lists(words, min_size=1, max_size=3),
        st.lists(numbers, min_size=1),
        st.lists(st.booleans(), min_size=1),
    ),
    max_size=2,
)
sources = st.sampled_from(
    [
        Source(kind=kind, **more)
        for kind, more in [
            ("manual", {}),
            ("cron", {"schedule": "*/5 * * * 1-5", "timezone": "Europe/Berlin"}),
            ("cron", {"schedule": "rate(2 hours)"}),
            ("files", {"path": "s3://in/x", "pattern": "*.csv", "poll_seconds": 7}),
        ]
    ]
)


def some(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


@st.composite
def dags(draw: st.DrawFn) -> Dag:
    """Sources, and jobs that read sources and earlier jobs."""
    known = draw(st.lists(names, min_size=1, max_size=6, unique=True))
    jobs: list[Job] = []
    for index, name in enumerate(known):
        jobs.append(draw(reactive(name, jobs)) if index and draw(st.booleans()) else draw(source_jobs(name)))
    outputs = [(job.name, output) for job in jobs for output in range(job.outputs)]
    published = draw(st.dictionaries(names, st.sampled_from(outputs), max_size=2)) if outputs else {}
    defaults = Defaults(
        timeout_seconds=draw(some(st.integers(1, 86_400))), max_attempts=draw(some(st.integers(1, 100)))
    )
    return Dag(
        name=draw(names),
        description=draw(some(columns)),
        jobs=tuple(draw(st.permutations(jobs))),
        defaults=defaults,
        publish={key: Publish(from_=From(job=job, output=output)) for key, (job, output) in published.items()},
    )


@st.composite
def source_jobs(draw: st.DrawFn, name: str) -> Job:
    return Job(
        name=name,
        activation="source",
        runtime="dispatcher",
        operator="noop",
        outputs=draw(st.integers(0, 2)),
        source=draw(sources),
        bootstrap=draw(some(st.just(Bootstrap(reset_outputs=True)))),
        config=draw(st.dictionaries(words, plain, max_size=3)),
    )


@st.composite
def reactive(draw: st.DrawFn, name: str, earlier: list[Job]) -> Job:
    # Schedules say cursors, and these jobs take partitions.
    said = [job for job in earlier if job.source is None or job.source.kind != "cron"]
    readable = [(job.name, output) for job in said for output in range(job.outputs)]
    read_ = draw(st.lists(st.sampled_from(readable), min_size=1, max_size=3)) if readable else []
    origins = [From(job=job, output=output) for job, output in read_] or [From(dataset="elsewhere")]
    outputs = draw(st.integers(0, 3))
    inputs = [
        Input(from_=from_, name=f"in_{at}", where=draw(filters), trigger=at == 0 or draw(st.booleans()))
        for at, from_ in enumerate(origins)
    ]
    refresh = st.sampled_from(["manual", "on_change"] if outputs else ["manual"])
    inputs = [each if each.trigger else replace(each, refresh=draw(refresh)) for each in inputs]
    append = draw(st.booleans())
    bundled = draw(st.booleans())
    return Job(
        name=name,
        activation="reactive",
        runtime="lambda" if bundled else "python",
        operator="udf" if bundled else "a.b:c",
        udf=Udf(bundle_id="b:1", entrypoint=draw(columns)) if bundled else None,
        outputs=outputs,
        inputs=tuple(inputs),
        execution_strategy=Strategy.PER_PARTITION,
        join="all" if sum(each.trigger for each in inputs) > 1 and draw(st.booleans()) else "any",
        update_strategy="append" if append else "replace",
        unique_key=tuple(
            draw(st.lists(columns.map(lambda text: f"c{text}"[:9]), min_size=1, max_size=3, unique=True))
        )
        if append
        else (),
        idle_timeout=draw(some(st.sampled_from(["never", "0", "5m", "30s"]))),
        secrets=() if bundled else tuple(draw(st.lists(st.sampled_from(["a", "B.c", "d-e"]), unique=True))),
        scaling=Scaling(max_concurrency=draw(some(st.integers(1, 1000)))),
        timeout_seconds=draw(some(st.integers(1, 86_400))),
        heartbeat_timeout_seconds=draw(some(st.integers(5, 3600))),
        max_attempts=draw(some(st.integers(1, 100))),
        config=draw(st.dictionaries(words, plain, max_size=3)),
        partitions=draw(_partitions_of(append=append)) if outputs else None,
    )


def _partitions_of(*, append: bool) -> st.SearchStrategy[Partitions | None]:
    """What a job may declare whatever it reads: what is appended is not made of other partitions."""
    return some(st.just(Partitions(kind=PartitionKind.TEXT)) if append else partitionings)


def document(dag: Dag) -> Any:
    return json.loads(msgspec.json.encode(dag))


def sound(dag: Dag) -> Dag:
    """With words in place of those that were written for enums."""
    return msgspec.convert(msgspec.to_builtins(dag), Dag)


@given(dag=dags())
@settings(max_examples=60, deadline=None)
def test_a_dag_written_as_yaml_or_json_reads_back_as_the_same(dag: Dag):
    dag = sound(dag)
    assert read(to_yaml(dag)) == resolve_defaults(dag)
    assert read(json.dumps(document(dag))) == resolve_defaults(dag)
    assert read(json.dumps(document(dag), ensure_ascii=False)) == resolve_defaults(dag)
    assert read(to_yaml(resolve_defaults(dag))) == resolve_defaults(dag)


@given(dag=dags())
@settings(max_examples=25, deadline=None)
def test_what_is_accepted_can_be_planned_and_is_good_to_editors(dag: Dag):
    text = to_yaml(sound(dag))
    accepted = read(text)
    assert len(plan(accepted, {"elsewhere": "id"}).jobs) == len(accepted.jobs)
    VALIDATOR.validate(document(sound(dag)))
    VALIDATOR.validate(document(accepted))


@given(dag=dags(), seed=st.randoms(use_true_random=False))
@settings(max_examples=25, deadline=None)
def test_the_order_of_jobs_and_fields_means_nothing(dag: Dag, seed: random.Random):
    whole = document(sound(dag))

    def shuffled(value: Any) -> Any:
        if not isinstance(value, dict):
            return [shuffled(part) for part in value] if isinstance(value, list) else value
        return {key: shuffled(value[key]) for key in seed.sample(list(value), len(value))}

    other = shuffled(whole)
    seed.shuffle(other["jobs"])
    assert content_hash(read(json.dumps(other))) == content_hash(read(json.dumps(whole)))


def settles(text: str) -> bool:
    """Whether the text is accepted; anything but a DAG or a DefinitionError is a failure."""
    try:
        return isinstance(read(text, known_datasets={}), Dag)
    except DefinitionError as error:
        problems = error.problems
    assert problems
    assert all(each.line >= 1 and each.column >= 1 and each.message and each.hint for each in problems)
    return False


@given(text=st.text())
@settings(deadline=None)
def test_no_text_breaks_the_reader(text: str):
    settles(text)


@given(text=st.text(alphabet="ab:-[]{}&*!|>'\"#%@`,?\n\t 01.\\u~<=", max_size=60))
@settings(max_examples=300, deadline=None)
def test_no_yaml_breaks_the_reader(text: str):
    settles(text)
    settles(f"name: a\njobs:\n- {text}")


@given(dag=dags(), data=st.data())
@settings(max_examples=60, deadline=None)
def test_no_mutated_document_breaks_the_reader(dag: Dag, data: st.DataObject):
    whole = document(sound(dag))
    spots = list(_spots(whole))
    holder, key = data.draw(st.sampled_from(spots))
    change = data.draw(st.sampled_from(["replace", "remove", "double"]))
    if change == "remove":
        del holder[key]
    elif change == "double" and isinstance(holder, list):
        holder.append(holder[key])
    elif isinstance(holder, dict) and data.draw(st.booleans()):
        holder[data.draw(words)] = holder.pop(key)
    else:
        holder[key] = data.draw(plain)
    text = json.dumps(whole)
    if settles(text):
        VALIDATOR.validate(json.loads(text))


@given(dag=dags(), data=st.data())
@settings(max_examples=40, deadline=None)
def test_no_damaged_file_breaks_the_reader(dag: Dag, data: st.DataObject):
    text = to_yaml(sound(dag))
    start = data.draw(st.integers(0, len(text)))
    length = data.draw(st.integers(0, 20))
    settles(text[:start] + data.draw(st.text(max_size=5)) + text[start + length :])


def _spots(value: Any) -> Any:
    if isinstance(value, dict | list):
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from _spots(value[key])
