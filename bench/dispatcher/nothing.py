"""An operator that does nothing: what is left is what the dispatcher, its database and its workers take."""

from __future__ import annotations

from typing import Any


async def run(run: Any) -> None:
    del run
