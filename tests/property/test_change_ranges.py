"""Whatever is committed, claimed, completed and invalidated in any order: a table is what its position says it is."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from qo.core.pipeline.change_range import ChangeRange, Turn, Version, is_due, judge, range_to_read

STEPS = st.one_of(
    st.tuples(st.just("commit"), st.integers(0, 2), st.integers(0, 5)),
    st.tuples(st.just("remove"), st.integers(0, 2), st.just(0)),
    st.tuples(st.just("switch"), st.just(0), st.just(0)),
    st.tuples(st.just("invalidate"), st.just(0), st.just(0)),
    st.tuples(st.just("claim"), st.just(0), st.just(0)),
    st.tuples(st.just("complete"), st.integers(0, 3), st.just(0)),
)
Content = dict[int, int]  # Which commit each partition of the input has.


@dataclass
class World:
    generation: str = "a"
    revision: int = 0
    versions: dict[Version, Content] = field(default_factory=dict)
    contents: dict[str, Content] = field(default_factory=lambda: {"a": {}, "b": {}})
    position: Version | None = None
    table: Content = field(default_factory=dict)
    held: list[ChangeRange] = field(default_factory=list)

    def change(self, partition: int, value: int | None) -> None:
        self.revision += 1
        content = dict(self.contents[self.generation])
        content.pop(partition, None)
        if value is not None:
            content[partition] = self.revision * 10 + value
        self.contents[self.generation] = content

    def act(self, what: str, which: int, value: int) -> None:
        match what:
            case "commit":
                self.change(which, value)
            case "remove":
                self.change(which, None)
            case "switch":
                self.generation = "b" if self.generation == "a" else "a"
            case "invalidate":
                self.position = None
            case "claim":
                self.claim()
            case _ if self.held:
                self.complete(which)
            case _:
                pass

    def claim(self) -> None:
        read = range_to_read({}, self.position, self.generation, self.revision)
        self.versions[read.upto] = self.contents[self.generation]
        self.held.append(read)

    def complete(self, which: int) -> Turn:
        read = self.held.pop(which % len(self.held))
        turn = judge({}, read, self.position)
        if turn is Turn.NEXT:
            # Merged into what the table is now, not into what it was when the task began.
            before = self.versions[read.before] if read.before is not None else {}
            after = self.versions[read.upto]
            merged = {} if read.before is None else dict(self.table)
            for partition in before.keys() | after.keys():
                if before.get(partition) != after.get(partition):
                    merged.pop(partition, None)
                    merged |= {partition: after[partition]} if partition in after else {}
            self.table, self.position = merged, read.upto
        elif turn is Turn.MOVED:
            self.claim()
        return turn


@given(steps=st.lists(STEPS, max_size=40))
def test_a_table_is_what_its_position_says_after_any_history(steps: list[tuple[str, int, int]]) -> None:
    world = World()
    for what, which, value in steps:
        world.act(what, which, value)
        if world.position is not None:
            assert world.table == world.versions[world.position]
    while world.held:
        world.complete(0)
    if is_due({}, world.position, world.generation, world.revision or None):
        world.claim()
        assert world.complete(0) is Turn.NEXT
    if world.revision:
        assert world.table == world.contents[world.generation]


@given(first=st.integers(1, 9), distance=st.integers(1, 9), latest=st.integers(1, 30))
def test_two_named_revisions_are_compared_once(first: int, distance: int, latest: int) -> None:
    config = {"between": [first, first + distance]}
    read = range_to_read(config, None, "a", latest)
    assert read == ChangeRange(Version("a", first), Version("a", min(first + distance, latest)))
    assert judge(config, read, None) is Turn.NEXT
    done = Version("a", first + distance)
    assert judge(config, read, done) is Turn.READ
    assert not is_due(config, done, "a", latest + 100)
    again = range_to_read(config, done, "a", latest + 100)
    assert again.before == again.upto
