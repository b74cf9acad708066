"""Syntax trees of source files, for tests of the tree."""

from __future__ import annotations

import ast
import gc
from pathlib import Path


def parse_file(path: Path) -> ast.Module:
    """Parse a file with the garbage collector off.

    Before Python 3.11.5, a finalizer that formats a traceback while a parser is at work ends it with a SystemError.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(path.read_text())
    finally:
        if was_enabled:
            gc.enable()
