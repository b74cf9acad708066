"""What PySpark does anew for every call is done once, and nothing else is."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyspark.sql  # noqa: F401 - Its converters.
import pytest
from hypothesis import given
from hypothesis import strategies as st
from py4j import protocol

from qo.spark.patches.py4j_lookup import ScalarConverter, install_lookup_cache, install_scalar_converter

CLASS = "r\nu\norg.apache.spark.sql.functions\nrj\ne\n"
METHOD = "r\nm\norg.apache.spark.sql.functions\ncol\ne\n"
CALL = "c\nz:org.apache.spark.sql.functions\ncol\nskind\ne\n"
IMPORT = "j\ni\nrj\nsorg.example.functions\ne\n"


class Jvm:
    """Answers as it is told to, and counts what it is asked."""

    def __init__(self, **answers: str) -> None:
        self.answers = answers
        self.asked: Counter[str] = Counter()
        self.imported = False

    def send_command(self, command: str, retry: bool = True, binary: bool = False) -> Any:
        self.asked[command] += 1
        match command:
            case _ if command == IMPORT:
                self.imported = True
                return "yv"
            case _ if command == CLASS:
                return "ycorg.example.functions" if self.imported else "ycorg.apache.spark.sql.functions"
            case _ if command == METHOD:
                return "ym"
            case _:
                return self.answers.get(command.split("\n")[2], f"yro{self.asked.total()}")


def test_a_class_and_its_static_method_are_looked_up_once() -> None:
    jvm = Jvm()
    install_lookup_cache(jvm)
    install_lookup_cache(jvm)
    answers = {(jvm.send_command(CLASS), jvm.send_command(METHOD)) for _ in range(3)}
    assert answers == {("ycorg.apache.spark.sql.functions", "ym")}
    assert jvm.asked == {CLASS: 1, METHOD: 1}


def test_calls_are_never_answered_from_memory() -> None:
    jvm = Jvm()
    install_lookup_cache(jvm)
    assert jvm.send_command(CALL) != jvm.send_command(CALL)
    assert jvm.asked == {CALL: 2}


@pytest.mark.parametrize("answer", ["yp", "yro7", "yi5", "ysmore", "x", "xro7"])
def test_what_may_change_is_asked_again(answer: str) -> None:
    jvm = Jvm(name=answer)
    install_lookup_cache(jvm)
    for command in ("r\nu\nname\nrj\ne\n", "r\nm\nname\nMODULE$\ne\n"):
        assert jvm.send_command(command) == jvm.send_command(command) == answer
        assert jvm.asked[command] == 2


def test_an_import_may_change_what_a_name_means() -> None:
    jvm = Jvm()
    install_lookup_cache(jvm)
    assert jvm.send_command(CLASS) == "ycorg.apache.spark.sql.functions"
    jvm.send_command(IMPORT)
    assert jvm.send_command(CLASS) == "ycorg.example.functions"


def test_who_asked_before_an_import_does_not_teach_those_who_ask_after_it() -> None:
    jvm = Jvm()
    ask = jvm.send_command

    def overtaken(command: str, *args: Any, **kwargs: Any) -> Any:
        answer = ask(command, *args, **kwargs)
        if command == CLASS and not jvm.imported:
            jvm.send_command(IMPORT)  # By another thread, while the answer is on its way.
        return answer

    jvm.send_command = overtaken
    install_lookup_cache(jvm)
    assert jvm.send_command(CLASS) == "ycorg.apache.spark.sql.functions"
    assert jvm.send_command(CLASS) == "ycorg.example.functions"


OTHERS = [each for each in protocol.INPUT_CONVERTER if not isinstance(each, ScalarConverter)]
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
ANYTHING = st.one_of(
    SCALARS,
    st.binary(),
    st.dates(),
    st.datetimes(),
    st.times(),
    st.timedeltas(),
    st.decimals(),
    st.lists(SCALARS),
    st.dictionaries(st.text(), SCALARS),
    st.sets(st.integers()),
)


@given(argument=ANYTHING)
def test_what_stays_as_it_is_no_other_converter_would_have_taken(argument: object) -> None:
    plain = ScalarConverter()
    if plain.can_convert(argument):
        assert not any(each.can_convert(argument) for each in OTHERS)
        assert plain.convert(argument, None) is argument


def test_it_comes_first_and_once() -> None:
    install_scalar_converter()
    install_scalar_converter()
    assert [isinstance(each, ScalarConverter) for each in protocol.INPUT_CONVERTER].index(True) == 0
    assert sum(isinstance(each, ScalarConverter) for each in protocol.INPUT_CONVERTER) == 1
