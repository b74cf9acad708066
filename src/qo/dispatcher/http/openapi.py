"""The OpenAPI files: ``python -m qo.dispatcher.http.openapi [DIRECTORY]`` writes them, and a test compares.

The same code always gives the same bytes.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from fastapi import FastAPI

from qo.config.settings import Settings
from qo.dispatcher.auth.keys import KeyRing
from qo.dispatcher.auth.local_tokens import LocalTokens
from qo.dispatcher.http.app import internal_app, public_app
from qo.dispatcher.http.context import Context
from qo.dispatcher.state.database import open_state

DIRECTORY = Path("docs/reference/openapi")


def documents() -> dict[str, str]:
    """The text of each file, by its name."""
    context = Context(
        state=open_state("sqlite:unused.db"),  # Neither is opened: nothing is asked, only described.
        settings=Settings(),
        keyring=KeyRing(Path("unused")),
        tokens=LocalTokens(()),
    )
    apps = {"public.json": public_app(context), "internal.json": internal_app(context)}
    return {name: _text(app) for name, app in apps.items()}


def _text(app: FastAPI) -> str:
    return json.dumps(app.openapi(), indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def write(directory: Path) -> list[Path]:
    directory.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    for name, text in documents().items():
        path = directory / name
        path.write_text(text)
        written.append(path)
    return written


if __name__ == "__main__":
    for each in write(Path(sys.argv[1]) if len(sys.argv) > 1 else DIRECTORY):
        print(each)
