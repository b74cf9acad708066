"""The files of the built page: their content types, and how long browsers may cache them."""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from qo.errors import NotFound

STATIC = Path(__file__).parent / "static"
INDEX = "index.html"
CONFIG = "config.json"
HASHED = "assets/"  # File names below it contain a hash of the content.
MISSING = (
    "the page of the dashboard has not been built: run `make ui` in the checkout (a wheel of qo has it already)"
)
FOREVER = "public, max-age=31536000, immutable"
ASK_FIRST = "no-cache"

_KINDS = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".woff2": "font/woff2",
    ".txt": "text/plain; charset=utf-8",
    ".map": "application/json",
}
_OTHER = "application/octet-stream"


@dataclass(frozen=True, slots=True)
class Asset:
    body: bytes
    content_type: str
    cache: str
    packed: bytes | None  # Compressed with gzip; None if that saves little.


class Assets:
    """The files of the latest build: a page that is rebuilt while it is served is read again."""

    def __init__(self, root: Path | None = None) -> None:
        self._root = root or STATIC
        self._built_at = -1
        self._files: Mapping[str, Asset] = {}

    def load(self) -> Mapping[str, Asset]:
        """Return every file by its path. Raises NotFound if the page was not built."""
        try:
            built_at = (self._root / INDEX).stat().st_mtime_ns
        except OSError:
            raise NotFound(MISSING) from None
        if built_at != self._built_at:
            paths = sorted(each for each in self._root.rglob("*") if each.is_file())
            self._files = MappingProxyType(
                {
                    (name := path.relative_to(self._root).as_posix()): _asset(name, path.read_bytes())
                    for path in paths
                }
            )
            self._built_at = built_at
        return self._files


def _asset(name: str, body: bytes) -> Asset:
    packed = gzip.compress(body, mtime=0)
    return Asset(
        body=body,
        content_type=_KINDS.get(Path(name).suffix, _OTHER),
        cache=FOREVER if name.startswith(HASHED) else ASK_FIRST,
        packed=packed if len(packed) < 0.9 * len(body) else None,
    )
