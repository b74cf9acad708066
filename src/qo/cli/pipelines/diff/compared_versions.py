"""The two versions that are compared, and the files that only one of them has."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from qo.api.first_rows import every_page
from qo.errors import UsageError

if TYPE_CHECKING:
    from qo.api.public_client import UserClient

_VERSION = re.compile(r"v(?P<number>\d+)(?:@(?P<revision>\d+))?\Z")
_STAGED = ("staged", "ready")


@dataclass(frozen=True, slots=True)
class Side:
    """A generation as of a revision."""

    generation_id: str | None
    revision: int | None  # 0: nothing. None: the latest.
    columns: Mapping[str, Any] | None  # Types by name, as committed; None: not known.
    files: Mapping[str, int | None]  # Rows by URI, where they are known.

    def document(self) -> dict[str, Any]:
        return {"generation_id": self.generation_id, "revision": self.revision}


@dataclass(frozen=True, slots=True)
class ComparedVersions:
    before: Side
    after: Side

    @property
    def removed(self) -> list[str]:
        """The files that only the earlier version has."""
        return [uri for uri in self.before.files if uri not in self.after.files]

    @property
    def added(self) -> list[str]:
        return [uri for uri in self.after.files if uri not in self.before.files]

    @property
    def shared(self) -> int:
        return len(self.after.files) - len(self.added)


async def find_versions(
    client: UserClient, path: str, from_: str | None, to: str | None, partition: str | None
) -> tuple[ComparedVersions, list[str]]:
    """Return the versions that a command names, and the columns that are the key of the dataset.

    Without names: the active version and the one that is staged, else the last two revisions.
    """
    dataset: Mapping[str, Any] = await client.get(path)
    before, after = await _choose(client, path, dataset, from_, to)
    versions = ComparedVersions(
        await _load(client, path, before, partition), await _load(client, path, after, partition)
    )
    return versions, dataset.get("keys") or []


Place = tuple[str | None, int | None]  # Generation and revision.


async def _choose(
    client: UserClient, path: str, dataset: Mapping[str, Any], from_: str | None, to: str | None
) -> tuple[Place, Place]:
    generations: Sequence[Mapping[str, Any]] = dataset["generations"]
    if from_ is None and to is None and any(each["status"] in _STAGED for each in generations):
        from_, to = "active", "staged"
    after = (
        _place(to, generations) if to is not None else (_with_status(generations, ("current",), "active"), None)
    )
    if from_ is not None:
        return _place(from_, generations), after
    if to is not None and after[0] is not None and after[1] is None:
        return (_with_status(generations, ("current",), "active"), None), after
    return (after[0], await _revision_before(client, path, after)), after


def _place(text: str, generations: Sequence[Mapping[str, Any]]) -> Place:
    if text.isdecimal():
        return None, int(text)
    if text == "active":
        return _with_status(generations, ("current",), text), None
    if text == "staged":
        return _with_status(generations, _STAGED, text), None
    if (match := _VERSION.match(text)) is None:
        raise UsageError(
            f"{text!r} is no version: write a revision, v3 for version 3 of the DAG, active or staged"
        )
    number = int(match["number"])
    owners = [each["id"] for each in generations if number in each["versions"]]
    if not owners:
        raise UsageError(f"version {number} of the DAG has no data of this dataset: see qo dataset show")
    return owners[0], int(match["revision"]) if match["revision"] else None


def _with_status(generations: Sequence[Mapping[str, Any]], statuses: Sequence[str], word: str) -> str:
    for each in generations:
        if each["status"] in statuses:
            return each["id"]
    raise UsageError(f"no version of this dataset is {word}: see qo dataset show for those that there are")


async def _revision_before(client: UserClient, path: str, place: Place) -> int:
    """Return the revision before a place: of the commit before its last one, 0 if there is none."""
    generation, revision = place
    query = {"generation_id": generation, "limit": 2, "before": None if revision is None else revision + 1}
    commits = (await client.get(f"{path}/commits", **query))["commits"]
    return commits[1]["revision"] if len(commits) > 1 else 0


async def _load(client: UserClient, path: str, place: Place, partition: str | None) -> Side:
    generation, revision = place
    if revision == 0:
        return Side(generation, 0, None, {})
    pages = await every_page(client, f"{path}/pieces", revision, generation)
    files = {
        name if ":/" in name else f"{(piece.location or '').rstrip('/')}/{name}": (
            piece.rows if len(piece.files) == 1 else None
        )
        for page in pages
        for piece in page.pieces
        if partition is None or piece.partition_key == partition
        for name in piece.files
    }
    columns = pages[0].columns
    types = None if columns is None else {each.name: each.type for each in columns}
    return Side(pages[0].generation_id, pages[0].revision or 0, types, files)
