"""Files of datasets, as Spark reads and writes them.

A reader names every file: nothing is ever found by listing a directory. A writer has a directory of its own, which
nobody else has ever written to; what lies there is listed once, by the attempt that wrote it.

    file:            through Spark (``native``)
    s3://  s3a       through Spark, with the jars of hadoop-aws (``native``)
    s3://  python    through Python workers and pyarrow, without jars (``objects``)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol
from urllib.parse import unquote

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from qo.config.settings import Settings
from qo.config.spark import BucketAccess
from qo.errors import UsageError


class Format(StrEnum):
    PARQUET = "parquet"
    JSON = "json"  # One object in each line.
    CSV = "csv"  # With a header.


_SUFFIXES = {".parquet": Format.PARQUET, ".jsonl": Format.JSON, ".json": Format.JSON, ".csv": Format.CSV}


@dataclass(frozen=True, slots=True)
class File:
    name: str  # Relative to the directory.
    size: int


class Files(Protocol):
    @property
    def count(self) -> Callable[[str, Sequence[File]], int] | None:
        """The rows of files below a directory, by their footers; None where those are too far to ask each."""
        ...

    def read(self, spark: SparkSession, uris: Sequence[str], schema: StructType | None) -> DataFrame:
        """Exactly these files, at least one, all of one format. Columns that a file lacks are null in its rows;
        those that the schema lacks are not read. Without a schema it is taken from the files."""
        ...

    def write(self, frame: DataFrame, uri: str) -> None:
        """Parquet files below a directory that is not there yet. Raises UsageError if it is."""
        ...

    def listed(self, uri: str) -> list[File]:
        """What was written there, by name."""
        ...

    def delete(self, uri: str) -> None:
        """The directory and all that is in it. One that is not there is no error."""
        ...

    def exists(self, uri: str) -> bool: ...


def files_for(settings: Settings, root_uri: str) -> Files:
    """The way to the files below a root."""
    if root_uri.startswith("file:"):
        from qo.spark.io.native import LocalFiles

        return LocalFiles()
    if not root_uri.startswith("s3://"):
        raise UsageError(f"{root_uri} cannot be read or written here: it begins with neither file: nor s3://")
    from qo.spark.io.bucket import bucket_access
    from qo.spark.io.objects import Bucket, BucketFiles

    if bucket_access(settings) is BucketAccess.PYTHON:
        return BucketFiles(Bucket(settings.s3))
    from qo.spark.io.native import HadoopFiles

    return HadoopFiles(Bucket(settings.s3))


def format_of(uris: Iterable[str]) -> Format:
    """Of files that are read together. Raises UsageError if they are of several formats, or of one that is unknown."""
    found: dict[Format, str] = {}
    for uri in uris:
        name = uri.rpartition("/")[2]
        suffix = f".{name.rpartition('.')[2]}" if "." in name else ""
        if suffix not in _SUFFIXES:
            known = ", ".join(_SUFFIXES)
            raise UsageError(f"{uri} cannot be read as a table: its name ends with none of {known}")
        found.setdefault(_SUFFIXES[suffix], uri)
    if len(found) > 1:
        named = " and ".join(f"{kind} ({uri})" for kind, uri in found.items())
        raise UsageError(f"files of several formats cannot be read together: {named}; write one format")
    return next(iter(found))


# Names of files, where Spark wants patterns

_SPECIAL = re.compile(r"([\[\]{}*?\\])")
_ESCAPED = re.compile(r"\\(.)")


def exactly(path: str) -> str:
    """The pattern that this path alone matches."""
    return _SPECIAL.sub(r"\\\1", path)


def only_path(pattern: str) -> str | None:
    """The one path that a pattern can match; None: it may match any number."""
    return None if _SPECIAL.search(_ESCAPED.sub("", pattern)) else _unescaped(pattern)


def _unescaped(pattern: str) -> str:
    return _ESCAPED.sub(r"\1", pattern)


# What is wrong with a file


class Wrong(StrEnum):
    MISSING = "missing"
    CORRUPT = "corrupt"


@dataclass(frozen=True, slots=True)
class Trouble:
    """A file that could not be read."""

    uri: str
    wrong: Wrong
    cause: str


# In our own readers' words, which pass through Spark as text: see ``parquet_source``.
_OURS = re.compile(r"qo: the file (?P<uri>\S.*?) is (?P<wrong>missing|corrupt): (?P<cause>.*)")
_READ = re.compile(
    r"\[FAILED_READ_FILE\.(?P<how>[A-Z_]+)\] Encountered error while reading file (?P<uri>\S.*?)\.\s"
)
_PATH = re.compile(r"\[PATH_NOT_FOUND\] Path does not exist: (?P<uri>\S.*?)\. SQLSTATE")
_FOOTER = re.compile(r"Could not read footer for file: (?P<uri>\S+)|(?P<uri2>\S+) is not a Parquet file")
_FRAME = re.compile(r"^\s+at .*$", re.MULTILINE)  # A method that reads footers is called so, whatever it meets.
_CAUSE = re.compile(r"^Caused by: (?:[\w.$]+: )?(.+)$", re.MULTILINE)
_CAUSES = re.compile(r"^Caused by: .+$", re.MULTILINE)
_GONE = ("FILE_NOT_EXIST", "FileNotFoundException", "NoSuchKey")
# What says that the bytes are not what they should be. Anything else may be the way to them.
_BROKEN = re.compile(
    r"is not a Parquet file|DATA_TYPE_MISMATCH|SchemaColumnConvertNotSupported|ChecksumException|"
    r"MALFORMED_RECORD|CORRUPT|corrupt|can not read class org\.apache\.parquet|Can not decompress|"
    # Cut off, not compressed, or changed since.
    r"Unexpected end of input stream|not a gzip file|incorrect (?:header|data) check|stored gzip|gzip stream CRC|"
    r"DataFormatException"
)


def trouble(text: str) -> Trouble | None:
    """The file that an error of Spark is about, from all that it says; None: it is about something else."""
    if found := _OURS.search(text):
        return Trouble(found["uri"], Wrong(found["wrong"]), found["cause"].strip())
    if found := _PATH.search(text):
        return Trouble(_plain(_unescaped(found["uri"])), Wrong.MISSING, "the path does not exist")
    text = _FRAME.sub("", text)
    if found := _READ.search(text):
        if any(word in text for word in _GONE):
            return Trouble(_plain(unquote(found["uri"])), Wrong.MISSING, "it was there when the job began")
        if _is_broken(text, found["how"]):
            said = text[found.end() :].split("SQLSTATE")[0].strip()
            return Trouble(_plain(unquote(found["uri"])), Wrong.CORRUPT, said or _deepest(text))
        return None
    if (found := _FOOTER.search(text)) and _is_broken(text):
        return Trouble(_plain(found["uri"] or found["uri2"]), Wrong.CORRUPT, _deepest(text))
    return None


def _is_broken(text: str, condition: str = "") -> bool:
    """By the causes, where they are told: beside any of them Spark advises to look whether the file is corrupt."""
    return _BROKEN.search("\n".join([condition, *(_CAUSES.findall(text) or [text])])) is not None


def _deepest(text: str) -> str:
    """What the innermost cause says."""
    causes = _CAUSE.findall(text)
    return causes[-1].strip()[:500] if causes else "its bytes are not what they should be"


def _plain(uri: str) -> str:
    """A URI as datasets name it."""
    return re.sub(r"^file:/+", "file:/", uri).replace("s3a://", "s3://", 1)
