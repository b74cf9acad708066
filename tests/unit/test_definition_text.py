"""Text that becomes plain data, or is refused before it does harm."""

from __future__ import annotations

import pytest

from qo.pipeline.document import ALIASES_MAX, DEPTH_MAX, parse, plain
from qo.pipeline.problems import Report, Spot
from qo.pipeline.scalars import Ambiguous, scalar

pytestmark = pytest.mark.fast


def data(text: str) -> object:
    report = Report(Spot("f"))
    document = parse(text, report)
    assert report.problems == []
    assert document is not None
    return document.value


def problem(text: str) -> str:
    report = Report(Spot("f"))
    parse(text, report)
    assert len(report.problems) == 1
    return str(report.problems[0])


def test_plain_words():
    assert data("[1, -2, +3, 0, 1.5, 1e3, -2.5E-3, true, false, null, ~, a b, '1', \"true\", 5m, 1.2.3, -]") == [
        *(1, -2, 3, 0, 1.5, 1000.0, -0.0025, True, False, None, None, "a b", "1", "true", "5m", "1.2.3", "-")
    ]


@pytest.mark.parametrize(
    "word",
    [
        *("yes", "No", "ON", "off", "True", "FALSE", "NULL", ".nan", "-.inf", "2026-01-01", "2026-1-1 10:00:00"),
        *("12:30", "1:30:45.5", "010", "0x1F", "0o17", "0b1", "1_000", "1.", ".5", "9223372036854775808", "1e999"),
        *("-9223372036854775809", "1" * 50, "=", "<<"),
    ],
)
def test_words_that_readers_disagree_about_are_refused(word: str):
    with pytest.raises(Ambiguous):
        scalar(word)
    assert problem(f"- [a]\n- {word}\n").startswith("f:2:3: ")
    assert data(f"- '{word}'") == [word]


def test_a_field_written_twice_is_refused_with_both_places():
    assert problem("a: 1\nb: 2\na: 3\n") == "f:3:1: 'a' is written twice (first on line 1); keep one of them"


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("", "f:1:1", "the file is empty"),
        ("# only a comment\n", "f:1:1", "the file is empty"),
        ("a: 'b\n", "f:2:1", "this is not YAML"),
        ("a:\n\t- b\n", "f:2:1", "this is not YAML"),
        ("a: 1\n---\nb: 2\n", "f:2:1", "second document"),
        ("1: a\n", "f:1:1", "name of a field must be text"),
        ("null: a\n", "f:1:1", "name of a field must be text"),
        ("[a]: b\n", "f:1:1", "name of a field must be text"),
        ("? {a: b}\n: c\n", "f:1:3", "name of a field must be text"),
        ("a: !!python/object:os.system x\n", "f:1:4", "tag"),
        ("a: !!str 3\n", "f:1:4", "tag"),
        ("<<: {a: b}\n", "f:1:1", "read differently by different programs"),
        ("a: *b\n", "f:1:4", "no finished value named &b"),
        ("a: &a [*a]\n", "f:1:8", "no finished value named &a"),
        ("a: \x07\n", "f:1:4", "character that YAML does not allow"),
        ("a: b\nc: \ud800\n", "f:2:4", "character that YAML does not allow"),
        ('a: "\\0"\n', "f:1:4", "NUL"),
    ],
)
def test_what_is_not_plain_data_is_refused_where_it_stands(text: str, place: str, message: str):
    said = problem(text)
    assert said.startswith(f"{place}: ")
    assert message in said


def test_an_alias_is_what_it_stands_for():
    assert data("a: &x {b: [1, 2]}\nc: *x\nd: &y 5\ne: *y\n") == {
        "a": {"b": [1, 2]},
        "c": {"b": [1, 2]},
        "d": 5,
        "e": 5,
    }


def test_bombs_do_not_go_off():
    assert "nested more than" in problem("[" * 100_000)
    assert "nested more than" in problem("{a: " * (DEPTH_MAX + 1))
    assert data("[" * DEPTH_MAX + "]" * DEPTH_MAX)
    layers = "".join(f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]\n" for n in range(1, 10))
    assert "more than 400000 values" in problem("l0: &l0 [1]\n" + layers)
    assert "aliases" in problem("a: &a 1\nb: [" + "*a, " * (ALIASES_MAX + 1) + "]\n")


def test_data_made_in_python_is_held_to_the_same():
    report = Report(Spot("f", 7))
    made = plain({"a": (1, 2.5, "x"), "b": {"c": None}}, report)
    assert made.value == {"a": [1, 2.5, "x"], "b": {"c": None}}
    assert report.problems == []
    nested: list[object] = []
    nested.append(nested)
    for wrong in [{1: 2}, {1, 2}, float("nan"), float("inf"), 2**63, object(), "\0", "\ud800", nested]:
        report = Report(Spot("f", 7))
        plain({"x": wrong}, report)
        assert [str(each)[:4] for each in report.problems] == ["f:7:"]
