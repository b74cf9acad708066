"""A setting: its name, its variable, its default, and its help."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from qo.config import kinds
from qo.config.kinds import Kind

LIST_PAGE_MAX = 1000  # The most that one LIST request can return.
PAGE = kinds.whole(1, LIST_PAGE_MAX)


@dataclass(frozen=True, slots=True)
class Setting:
    key: str  # As in the file: "worker.concurrency" is `concurrency` in the table [worker].
    env: tuple[str, ...]  # The first variable that is set counts.
    kind: Kind
    default: Any
    help: str
    secret: bool = False  # Never shown.

    @property
    def flag(self) -> str:
        # A nested table keeps its name: --shard-leasing for worker.shard_leasing.enabled.
        name = self.key.partition(".")[2] or self.key
        return "--" + name.removesuffix(".enabled").replace(".", "-").replace("_", "-")


def setting(default: Any, *env: str, kind: Kind, help: str, secret: bool = False) -> Any:
    """Declare a field of a group of settings. A secret is left out of the repr of the group."""
    return field(
        default=default, repr=not secret, metadata={"env": env, "kind": kind, "help": help, "secret": secret}
    )
