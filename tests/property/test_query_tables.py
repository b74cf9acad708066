"""Which tables a query reads, over generated queries whose answer is known."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hypothesis import given
from hypothesis import strategies as st

from qo.pipeline.query_tables import UnreadableQuery, find_tables

NAMES = ("orders", "rates", "t1", "t2", "customers")
names = st.sampled_from(NAMES)


@dataclass(frozen=True)
class Query:
    """A query, and what it reads where no common table expression is around it."""

    text: str
    reads: frozenset[str]

    def within(self, defined: str) -> frozenset[str]:
        """Return what it reads below a WITH that defines a name."""
        return self.reads - {defined}


def joined(left: Query, right: Query, between: str) -> Query:
    return Query(f"{left.text} {between} {right.text}", left.reads | right.reads)


@st.composite
def relations(draw: st.DrawFn, queries: st.SearchStrategy[Query]) -> Query:
    kind = draw(st.integers(0, 6))
    name = draw(names)
    match kind:
        case 0 | 1:
            return Query(name, frozenset({name}))
        case 2:
            return Query(f"`{name.upper()}` AS {draw(names)}", frozenset({name}))  # An alias is no table.
        case 3:
            inner = draw(queries)
            return Query(f"({inner.text}) {draw(names)}", inner.reads)
        case 4:
            return Query("VALUES (1, 2) AS t1(a, b)", frozenset())
        case 5:
            return Query("range(5) AS orders", frozenset())
        case _:
            inner = draw(queries)
            return Query(f"{name} JOIN LATERAL ({inner.text}) AS l", inner.reads | {name})


@st.composite
def selects(draw: st.DrawFn, queries: st.SearchStrategy[Query]) -> Query:
    query = Query("SELECT a, 'FROM rates' AS b FROM", frozenset())
    query = joined(query, draw(relations(queries)), "")
    for _ in range(draw(st.integers(0, 2))):
        query = joined(query, draw(relations(queries)), draw(st.sampled_from([",", "LEFT JOIN", "CROSS JOIN"])))
    if draw(st.booleans()):
        query = replace(query, text=f"{query.text} LATERAL VIEW explode(items) rates AS t2")
    if draw(st.booleans()):
        query = joined(query, draw(queries), "WHERE orders.a IN (")
        query = replace(query, text=f"{query.text})")
    return query


@st.composite
def unions(draw: st.DrawFn, queries: st.SearchStrategy[Query]) -> Query:
    between = draw(st.sampled_from(["UNION ALL", "EXCEPT", "INTERSECT"]))
    left, right = draw(queries), draw(queries)
    return Query(f"({left.text}) {between} ({right.text})", left.reads | right.reads)


@st.composite
def withs(draw: st.DrawFn, queries: st.SearchStrategy[Query]) -> Query:
    """A WITH of one or two names, each of which is known to those after it and to the query."""
    first, second = draw(names), draw(names)
    one, other, body = draw(queries), draw(queries), draw(queries)
    if draw(st.booleans()) or first == second:
        return Query(f"WITH {first} AS ({one.text}) SELECT * FROM ({body.text})", one.reads | body.within(first))
    reads = one.reads | other.within(first) | (body.within(first) - {second})
    return Query(
        f"WITH {first} AS ({one.text}), {second.upper()} AS ({other.text}) SELECT * FROM ({body.text})", reads
    )


queries = st.recursive(
    selects(st.just(Query("SELECT 1", frozenset()))),
    lambda inner: st.one_of(selects(inner), unions(inner), withs(inner)),
    max_leaves=5,
)


def read_by(query: str) -> frozenset[str]:
    return frozenset(map(str, find_tables(query)))


@given(query=queries)
def test_a_query_reads_the_tables_that_it_does_not_define_itself(query: Query) -> None:
    assert read_by(query.text) == query.reads


BREAKS = [" ", "\n", "  \t", " -- FROM t2\n", " /* JOIN t1 */ "]
WORDS = ["SELECT", "FROM", "(", ")", ",", "WITH", "a", "AS", "`", "'", ".", "1", "JOIN", "TABLE(", "|>"]


@given(query=queries, breaks=st.lists(st.sampled_from(BREAKS), min_size=1))
def test_the_form_of_a_query_does_not_change_what_it_reads(query: Query, breaks: list[str]) -> None:
    words = query.text.replace("'FROM rates'", "'FROM~rates'").split(" ")
    text = "".join(word + breaks[at % len(breaks)] for at, word in enumerate(words)).replace("~", " ")
    assert read_by(text) == query.reads


@given(query=queries)
def test_each_name_is_where_it_is_said_to_be(query: Query) -> None:
    for each in find_tables(query.text):
        assert query.text[each.start : each.end].strip("`").lower() == str(each)
        assert query.text.split("\n")[each.line - 1][each.column - 1 :].startswith(
            query.text[each.start : each.end]
        )


@given(text=st.text(max_size=60) | st.lists(st.sampled_from(WORDS)).map(" ".join))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        find_tables(text)
    except UnreadableQuery as error:
        place = (error.line, error.column)
    else:
        place = (1, 1)
    assert min(place) >= 1
