"""The reach of an attempt: the prefixes that its credentials open, as narrow as one session policy can say it.

A policy holds some 2,000 characters, and an attempt may read thousands of pieces. So there are several readings of what
it reads, each wider than the one before and still of its own inputs only; the first that fits is taken.

    pieces       the prefixes of the attempts that wrote the pinned pieces
    generations  the generations in which these lie
    datasets     the datasets of these
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from qo.core.pipeline.policy import Prefix, bucket_of, normalise, session_policy
from qo.errors import UsageError

PIECES_MAX = 8  # More prefixes than this do not fit into a policy, however short they are.
GENERATION_LEVELS = 2  # Of directories from the data root to a generation: dataset, generation.
_PATTERN_CHARS = "*?[]{}\\"


@dataclass(frozen=True, slots=True)
class Reach:
    """What an attempt writes, and what it reads: from the narrowest reading to the widest."""

    write: tuple[Prefix, ...] = ()
    readings: tuple[tuple[Prefix, ...], ...] = ()

    @property
    def is_empty(self) -> bool:
        return not self.write and not any(self.readings)


@dataclass(frozen=True, slots=True)
class FittedReach:
    read: tuple[Prefix, ...]
    write: tuple[Prefix, ...]
    policy: dict[str, Any]


def fit_reach(reach: Reach, *, until: datetime, partition: str = "aws") -> FittedReach:
    """Return the narrowest policy that STS takes. Raises UsageError if none of them fits.

    If need be, what is only read may not be listed: then a missing file is refused, and not reported as missing.
    """
    readings = reach.readings or ((),)
    # Listing goes before the widest reading, and after the narrowest.
    tries = [(read, True) for read in readings[:-1]] + [(read, False) for read in readings[1:]]
    tries = tries or [(readings[0], True), (readings[0], False)]
    for at, (read, is_listed) in enumerate(tries):
        listed = None if is_listed else reach.write
        try:
            policy = session_policy(read, reach.write, listed=listed, until=until, partition=partition)
        except UsageError:
            if at == len(tries) - 1:
                raise
            continue
        return FittedReach(read, reach.write, policy)
    raise AssertionError("there is at least one reading")


def root_prefix(data_root: str) -> Prefix:
    """Return the prefix of a data root in a bucket; it may be the whole bucket. Raises UsageError for another."""
    bucket, key = bucket_of(data_root)
    return normalise(data_root) if key.strip("/") else Prefix(bucket, "")


def foreign_prefix(location: str, data_root: str) -> Prefix | None:
    """Return what to open of a place outside the data root; None if it is in no bucket, or touches the data root.

    It may be a whole bucket. Raises UsageError for what no policy can name.
    """
    if not location.startswith("s3://"):
        return None
    place = root_prefix(location)
    if not data_root.startswith("s3://"):
        return place
    root = root_prefix(data_root)
    return None if root.covers(place) or place.covers(root) else place


def split_places(locations: Iterable[str], data_root: str) -> tuple[list[Prefix], list[Prefix]]:
    """Return the places below the data root, and those in other places of buckets."""
    root = f"{data_root.rstrip('/')}/"
    places = [each for each in locations if each.startswith("s3://")]
    inside = [normalise(each) for each in places if each.startswith(root)]
    outside = [foreign_prefix(each, data_root) for each in places if not each.startswith(root)]
    return inside, [each for each in outside if each is not None]


def directory_above(place: Prefix, data_root: str, levels: int) -> Prefix:
    """Return the directory above a place that is so many levels below the data root, or the place itself."""
    root = root_prefix(data_root)
    parts = place.key.removeprefix(root.key).rstrip("/").split("/")
    return Prefix(place.bucket, f"{root.key}{'/'.join(parts[:levels])}/")


def declared_prefix(place: str) -> str:
    """Return the directory of a place in a job's config, up to its first pattern or placeholder."""
    end = min((at for each in _PATTERN_CHARS if (at := place.find(each)) >= 0), default=None)
    return place if end is None else place[:end].rpartition("/")[0]


def common_directories(prefixes: Iterable[Prefix], limit: int = PIECES_MAX) -> tuple[Prefix, ...]:
    """Return the prefixes, or, if they are more than ``limit``, the directory of each bucket that covers them."""
    distinct = sorted(set(prefixes))
    if len(distinct) <= limit:
        return tuple(distinct)
    by_bucket: dict[str, list[str]] = {}
    for each in distinct:
        by_bucket.setdefault(each.bucket, []).append(each.key)
    return tuple(Prefix(bucket, _common_directory(keys)) for bucket, keys in sorted(by_bucket.items()))


def _common_directory(keys: Sequence[str]) -> str:
    first, last = min(keys).split("/"), max(keys).split("/")
    shared = 0
    while shared < min(len(first), len(last)) - 1 and first[shared] == last[shared]:
        shared += 1
    return "".join(f"{each}/" for each in first[:shared])
