"""The first rows of a dataset, and files that are not what their names say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from qo.api.first_rows import Rows, first_rows
from qo.config.settings import Settings
from qo.errors import CorruptRecord

pytestmark = pytest.mark.fast


class Reading:
    """A client that knows of one dataset."""

    def __init__(self, *paths: Path) -> None:
        self._pieces = [{"revision": 1, "files": [f"file:{path}"]} for path in paths]

    async def get(self, path: str, **asked: Any) -> Any:
        return {"dataset_id": "d", "generation_id": "g", "pieces": self._pieces}


async def read(*paths: Path, most: int = 10) -> Rows:
    return await first_rows(Reading(*paths), Settings(), "/", most, None, None)


@pytest.mark.parametrize(
    ("name", "body", "why"),
    [
        ("indented.json", b'{\n  "a": 1\n}\n', "line 1 is not a JSON value"),
        ("ragged.csv", b"a,b\n1,2\n3\n", "row 2 has 1 fields, and the header 2"),
        ("cut.parquet", b"PAR1 and no more", "cannot be read as parquet"),
        ("empty.parquet", b"", "cannot be read as parquet"),
    ],
    ids=["json", "csv", "cut", "empty"],
)
async def test_a_file_that_is_not_what_its_name_says_is_named(
    tmp_path: Path, name: str, body: bytes, why: str
) -> None:
    (tmp_path / name).write_bytes(body)
    with pytest.raises(CorruptRecord, match=why) as raised:
        await read(tmp_path / name)
    assert str(tmp_path / name) in str(raised.value)


async def test_rows_are_what_they_are_in_each_format(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b'a,b\r\n"two\nlines",2\r\n\r\n3,4\r\n')
    assert await read(tmp_path / "a.csv", most=1) == (["a", "b"], [["two\nlines", "2"]])
    assert await read(tmp_path / "a.csv") == (["a", "b"], [["two\nlines", "2"], ["3", "4"]])
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n\n{"b": 2}\n')
    assert await read(tmp_path / "a.jsonl") == (["a", "b"], [[1, None], [None, 2]])
    (tmp_path / "a.txt").write_text("one\ntwo")
    assert await read(tmp_path / "a.txt") == (["line"], [["one"], ["two"]])
