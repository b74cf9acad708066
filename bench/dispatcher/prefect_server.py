"""Prefect's server on a PostgreSQL that lacks the extension ``pg_trgm``, which its migrations create.

    python -m bench.dispatcher.prefect_server PORT

The indexes by that extension, for the search of names, are left out: the server writes to fewer indexes than it would,
which makes it faster, if anything.
"""

from __future__ import annotations

import sys
from typing import Any

import uvicorn
from alembic.operations import Operations

_execute = Operations.execute


def _execute_without_trigrams(self: Operations, statement: Any, **options: Any) -> None:
    if "trgm" not in str(statement):
        _execute(self, statement, **options)


if __name__ == "__main__":
    Operations.execute = _execute_without_trigrams  # type: ignore[method-assign]
    uvicorn.run(
        "prefect.server.api.server:create_app",
        factory=True,
        host="127.0.0.1",
        port=int(sys.argv[1]),
        log_level="error",
    )
