"""The reach of a running attempt, from its pins: the pieces that it reads, and the prefixes that it writes below.

Pieces mostly lie in the generation that they were committed to. Some do not: those that a source announced lie
elsewhere, and those that were passed on or kept lie where they were made.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

import sqlalchemy as sa

from qo.api.contract.task import InputPart, Work
from qo.core.pipeline.dag import Strategy, UpdateStrategy
from qo.core.pipeline.policy import Prefix, normalise
from qo.core.pipeline.reach import (
    GENERATION_LEVELS,
    PIECES_MAX,
    Reach,
    common_directories,
    declared_prefix,
    directory_above,
    foreign_prefix,
    root_prefix,
    split_places,
)
from qo.dispatcher.attempts import running
from qo.dispatcher.commits import pieces
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import Tx
from qo.errors import LeaseLost, UsageError

ELSEWHERE_MAX = 100  # Places outside a generation that are looked at, of each input.

_commits, _inputs = schema.commits, schema.task_inputs


def find_reach(tx: Tx, task_id: str, data_root: str) -> Reach:
    """Return what the current attempt reads and writes. Raises LeaseLost if there is none, UsageError for a place
    that no policy can name."""
    work = running.fetch(tx, task_id, data_root).work
    if work is None:
        raise LeaseLost("the attempt is over: there is nothing that it could read or write")
    output_prefixes = _in_bucket(each.prefix for each in work.outputs)
    declared_read, declared_write = _declared(work, data_root)
    # An append is compared with what is committed already, and changes are merged into it.
    compared = {_generation_of(each, data_root) for each in output_prefixes} if _compares(work) else set[Prefix]()
    locations, is_complete = _pinned_locations(tx, task_id, data_root)
    inside, outside = split_places(locations, data_root)
    generations = {_generation_of(each, data_root) for each in inside}
    if not is_complete:
        inside = sorted(generations)
    elsewhere = (*common_directories(outside), *declared_read)
    _check_root(elsewhere, data_root)
    datasets = {directory_above(each, data_root, 1) for each in generations}
    always = {*output_prefixes, *compared, *elsewhere}
    readings = tuple(tuple(sorted({*always, *places})) for places in (inside, generations, datasets))
    logs = _in_bucket([work.log] if work.log is not None else [])
    return Reach(tuple(sorted({*output_prefixes, *logs, *declared_write})), readings)


def _compares(work: Work) -> bool:
    appends = work.update_strategy == UpdateStrategy.APPEND and bool(work.unique_key)
    return appends or work.execution_strategy == Strategy.PER_CHANGE


def _pinned_locations(tx: Tx, task_id: str, data_root: str) -> tuple[list[str], bool]:
    """Return the places of the pinned pieces, and whether these are all. If not, each generation stands for what lies
    in it."""
    locations: set[str] = set()
    is_complete = True
    for several in _pins_by_input(tx, task_id):
        pin = max(several, key=lambda each: each["revision"] or 0)
        one_page = pieces.page(tx, pin, None, PIECES_MAX) if len(several) == 1 else None
        some, more = one_page or pieces.parts_page(tx, several, None, PIECES_MAX)
        if more is None:
            locations |= {each.location for each in some if each.location}
            continue
        is_complete = False
        home = f"{data_root.rstrip('/')}/{pin['dataset_id']}/{pin['generation_id']}/"
        locations.add(home)
        locations |= _elsewhere(tx, pin, home)
    return sorted(locations), is_complete and len(locations) <= PIECES_MAX


def _pins_by_input(tx: Tx, task_id: str) -> Iterator[list[pieces.Pin]]:
    """Yield the pins of each input; of one that is read by changes, also what is not there any more."""
    pins = tx.all(sa.select(_inputs).where(_inputs.c.task_id == task_id).order_by(_inputs.c.position))
    for _, of_position in groupby(pins, key=lambda pin: int(pin["position"])):
        several: list[pieces.Pin] = list(of_position)
        yield several
        if several[0]["changed_after"]:
            yield [pieces.part_of(several[0], InputPart.REMOVED)]


def _elsewhere(tx: Tx, pin: pieces.Pin, home: str) -> set[str]:
    """Return the places of pieces that do not lie in their generation. Raises UsageError if there are too many."""
    query = (
        sa.select(_commits.c.location)
        .distinct()
        .where(
            _commits.c.generation_id == pin["generation_id"],
            _commits.c.revision <= pin["revision"],
            _commits.c.location.is_not(None),
            sa.func.substr(_commits.c.location, 1, len(home)) != home,
        )
        .limit(ELSEWHERE_MAX + 1)
    )
    places: set[str] = {row[0] for row in tx.execute(query)}
    if len(places) > ELSEWHERE_MAX:
        raise UsageError(
            f"the task reads from more than {ELSEWHERE_MAX} places outside its datasets, and credentials for so many "
            "cannot be minted: announce files of fewer directories, or run the job where QO_CREDENTIALS=off"
        )
    return places


def _declared(work: Work, data_root: str) -> tuple[list[Prefix], list[Prefix]]:
    """Return what the job's definition names outside of datasets: where to read, and where to write."""
    config: dict[str, Any] = work.config
    path = config.get("path")
    if not isinstance(path, str) or work.operator not in ("ingest", "alert"):
        return [], []
    place = foreign_prefix(declared_prefix(path), data_root)
    places = [] if place is None else [place]
    return (places, []) if work.operator == "ingest" else ([], places)


def _check_root(places: Sequence[Prefix], data_root: str) -> None:
    """Raise UsageError if places outside the data root have only a directory in common that contains it."""
    if not data_root.startswith("s3://"):
        return
    for each in places:
        if each.covers(root_prefix(data_root)):
            raise UsageError(
                f"the task reads from many places around the data root, and credentials for {each} would open all "
                "data: put files that others write into one directory, or into another bucket"
            )


def _generation_of(place: Prefix, data_root: str) -> Prefix:
    return directory_above(place, data_root, GENERATION_LEVELS)


def _in_bucket(locations: Iterable[str]) -> tuple[Prefix, ...]:
    return tuple(sorted({normalise(each) for each in locations if each.startswith("s3://")}))
