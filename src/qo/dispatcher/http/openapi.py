"""The OpenAPI files: ``python -m qo.dispatcher.http.openapi [DIRECTORY]`` writes them, and a test compares.

The same code always gives the same bytes.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from qo.dispatcher.http.apps import internal_openapi, public_openapi
from qo.queue_api.api_routes import describe

DIRECTORY = Path("docs/reference/openapi")


def documents() -> dict[str, str]:
    """Return the text of each file by its name."""
    return {
        "public.json": _text(public_openapi()),
        "internal.json": _text(internal_openapi()),
        "queue.json": _text(describe()),
    }


def _text(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def write(directory: Path) -> list[Path]:
    directory.mkdir(parents=True, exist_ok=True)
    paths: list[Path] = []
    for name, text in documents().items():
        path = directory / name
        path.write_text(text)
        paths.append(path)
    return paths


if __name__ == "__main__":
    for each in write(Path(sys.argv[1]) if len(sys.argv) > 1 else DIRECTORY):
        print(each)
