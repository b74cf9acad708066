"""Files of datasets, as Spark reads and writes them.

A reader names every file and never lists a directory. A writer has a directory of its own, to which nobody else has
ever written; the attempt that wrote it lists it once.

    file:            through Spark (``native``)
    s3://  s3a       through Spark, with the jars of hadoop-aws (``native``)
    s3://  python    through Python workers and pyarrow, without jars (``objects``)
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import unquote

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from qo.config.settings import Settings
from qo.config.spark import BucketAccess
from qo.core.pipeline.file_stats import FileStats
from qo.errors import UsageError

if TYPE_CHECKING:
    from qo.agent.attempt_credentials import AttemptCredentials


class Format(StrEnum):
    PARQUET = "parquet"
    JSON = "json"  # One object in each line.
    CSV = "csv"  # With a header.


_SUFFIXES = {".parquet": Format.PARQUET, ".jsonl": Format.JSON, ".json": Format.JSON, ".csv": Format.CSV}


@dataclass(frozen=True, slots=True)
class File:
    name: str  # Relative to the directory.
    size: int
    description: Mapping[str, Any] | None = None  # Of what its writer measured.


class Files(Protocol):
    counts_rows: bool  # Whether ``measure`` is a quick way to learn the number of rows.

    def measure(self, uri: str, files: Sequence[File], types: Mapping[str, Any]) -> list[FileStats | None]:
        """Return the statistics of files below a directory that were just written; None where they are not known.

        ``types``: of columns, by name in lower case.
        """
        ...

    def read(self, spark: SparkSession, uris: Sequence[str], schema: StructType | None) -> DataFrame:
        """Read exactly these files, at least one, all of one format.

        Columns that a file lacks are null in its rows; those that the schema lacks are not read. Without a schema it is
        taken from the files.
        """
        ...

    def read_footers(self, uris: Sequence[str]) -> list[Any] | None:
        """Return the footers of committed Parquet files, None for one that is damaged or gone; or None in place of all
        of them, if to read them takes about as long as to read the rows."""
        ...

    def write(
        self,
        frame: DataFrame,
        uri: str,
        ids: Mapping[str, int] | None = None,
        by: str | None = None,
        plain: Sequence[str] = (),
    ) -> None:
        """Write Parquet files below a new directory. Raises UsageError if it exists.

        ``ids``: of columns, by name, to be written into the files. ``by``: a column; rows with other values of it are
        written to directories of their own, and the files do not have it. ``plain``: columns for which a dictionary is
        not worth trying.
        """
        ...

    def list_files(self, uri: str) -> list[File]:
        """Return the files that were written below a directory, sorted by name."""
        ...

    def delete(self, uri: str) -> None:
        """Delete a directory with everything in it. A missing one is no error."""
        ...

    def exists(self, uri: str) -> bool: ...


def files_for(settings: Settings, root_uri: str, credentials: AttemptCredentials | None = None) -> Files:
    """Return the access to the files below a root. ``credentials``: of an attempt; without s3a, which has its own.

    Raises UsageError for a root of an unknown kind.
    """
    if root_uri.startswith("file:"):
        from qo.spark.io.native import LocalFiles

        return LocalFiles()
    if not root_uri.startswith("s3://"):
        raise UsageError(f"{root_uri} cannot be read or written here: it begins with neither file: nor s3://")
    from qo.spark.io.bucket import bucket_access
    from qo.spark.io.objects import Bucket, BucketFiles

    if bucket_access(settings) is BucketAccess.PYTHON:
        return BucketFiles(Bucket(settings.s3, credentials))
    from qo.spark.io.native import HadoopFiles

    return HadoopFiles(Bucket(settings.s3))


def format_of(uris: Iterable[str]) -> Format:
    """Return the format of files that are read together. Raises UsageError for several formats, or an unknown one."""
    examples: dict[Format, str] = {}
    for uri in uris:
        name = uri.rpartition("/")[2]
        suffix = f".{name.rpartition('.')[2]}" if "." in name else ""
        if suffix not in _SUFFIXES:
            suffixes = ", ".join(_SUFFIXES)
            raise UsageError(f"{uri} cannot be read as a table: its name ends with none of {suffixes}")
        examples.setdefault(_SUFFIXES[suffix], uri)
    if len(examples) > 1:
        formats = " and ".join(f"{kind} ({uri})" for kind, uri in examples.items())
        raise UsageError(f"files of several formats cannot be read together: {formats}; write one format")
    return next(iter(examples))


_SPECIAL = re.compile(r"([\[\]{}*?\\])")
_ESCAPED = re.compile(r"\\(.)")


def escape_pattern(path: str) -> str:
    """Return the pattern that only this path matches. Spark takes every path for a pattern."""
    return _SPECIAL.sub(r"\\\1", path)


def literal_path(pattern: str) -> str | None:
    """Return the only path that a pattern can match; None if it may match several."""
    return None if _SPECIAL.search(_ESCAPED.sub("", pattern)) else _unescape(pattern)


def _unescape(pattern: str) -> str:
    return _ESCAPED.sub(r"\1", pattern)


class ProblemKind(StrEnum):
    MISSING = "missing"
    CORRUPT = "corrupt"


@dataclass(frozen=True, slots=True)
class FileProblem:
    """A file that could not be read."""

    uri: str
    kind: ProblemKind
    cause: str


# The text of our own reader's errors, which Spark passes on: see ``parquet_source.BadFile``.
_OURS = re.compile(r"qo: the file (?P<uri>\S.*?) is (?P<kind>missing|corrupt): (?P<cause>.*)")
_READ = re.compile(
    r"\[FAILED_READ_FILE\.(?P<how>[A-Z_]+)\] Encountered error while reading file (?P<uri>\S.*?)\.\s"
)
_PATH = re.compile(r"\[PATH_NOT_FOUND\] Path does not exist: (?P<uri>\S.*?)\. SQLSTATE")
_FOOTER = re.compile(r"Could not read footer for file: (?P<uri>\S+)|(?P<uri2>\S+) is not a Parquet file")
_FRAME = re.compile(
    r"^\s+at .*$", re.MULTILINE
)  # Stack frames name methods that read footers, whatever the error.
_CAUSE = re.compile(r"^Caused by: (?:[\w.$]+: )?(.+)$", re.MULTILINE)
_CAUSES = re.compile(r"^Caused by: .+$", re.MULTILINE)
_MISSING = ("FILE_NOT_EXIST", "FileNotFoundException", "NoSuchKey")
# Texts that say that the bytes are wrong. Any other error may be one of access.
_CORRUPT = re.compile(
    r"is not a Parquet file|DATA_TYPE_MISMATCH|SchemaColumnConvertNotSupported|ChecksumException|"
    r"MALFORMED_RECORD|CORRUPT|corrupt|can not read class org\.apache\.parquet|Can not decompress|"
    # Cut off, not compressed, or changed since.
    r"Unexpected end of input stream|not a gzip file|incorrect (?:header|data) check|stored gzip|gzip stream CRC|"
    r"DataFormatException"
)


def find_file_problem(text: str) -> FileProblem | None:
    """Return the file that an error of Spark is about, from its whole text; None if it is about something else."""
    if match := _OURS.search(text):
        return FileProblem(match["uri"], ProblemKind(match["kind"]), match["cause"].strip())
    if match := _PATH.search(text):
        return FileProblem(_dataset_uri(_unescape(match["uri"])), ProblemKind.MISSING, "the path does not exist")
    text = _FRAME.sub("", text)
    if match := _READ.search(text):
        uri = _dataset_uri(unquote(match["uri"]))
        if any(word in text for word in _MISSING):
            return FileProblem(uri, ProblemKind.MISSING, "it was there when the job began")
        if _is_corrupt(text, match["how"]):
            cause = text[match.end() :].split("SQLSTATE")[0].strip()
            return FileProblem(uri, ProblemKind.CORRUPT, cause or _innermost_cause(text))
        return None
    if (match := _FOOTER.search(text)) and _is_corrupt(text):
        return FileProblem(
            _dataset_uri(match["uri"] or match["uri2"]), ProblemKind.CORRUPT, _innermost_cause(text)
        )
    return None


def _is_corrupt(text: str, condition: str = "") -> bool:
    """Whether the causes say so, if there are any: Spark's advice beside them mentions corrupt files in any case."""
    return _CORRUPT.search("\n".join([condition, *(_CAUSES.findall(text) or [text])])) is not None


def _innermost_cause(text: str) -> str:
    causes = _CAUSE.findall(text)
    return causes[-1].strip()[:500] if causes else "its bytes are not what they should be"


def _dataset_uri(uri: str) -> str:
    """Return a URI of Spark's as datasets name it."""
    return re.sub(r"^file:/+", "file:/", uri).replace("s3a://", "s3://", 1)
