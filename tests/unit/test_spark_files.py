"""Which files are read together, and what Spark's many words say of one that cannot be."""

from __future__ import annotations

import pytest

from qo.config.settings import Settings
from qo.errors import UsageError
from qo.spark.engine.error_translation import full_text
from qo.spark.io.files import FileProblem, Format, ProblemKind, files_for, find_file_problem, format_of
from qo.spark.io.native import LocalFiles
from qo.spark.io.parquet_source import BadFile
from qo.spark.operators import missing_files

pytestmark = pytest.mark.fast  # Texts only: no session is needed.

READ = (
    "org.apache.spark.SparkException: [FAILED_READ_FILE.{how}] Encountered error while reading file {uri}. {said}"
)


def test_the_end_of_a_name_says_the_format() -> None:
    assert format_of(["file:/d/part-0.snappy.parquet", "file:/d/b.parquet"]) is Format.PARQUET
    assert format_of(["s3://b/a.jsonl", "s3://b/a.json"]) is Format.JSON
    assert format_of(["file:/d.x/a.csv"]) is Format.CSV
    for names in (["file:/d.parquet/part-0"], ["file:/d/a.xlsx"]):
        with pytest.raises(UsageError, match="ends with none of"):
            format_of(names)
    with pytest.raises(UsageError, match="several formats"):
        format_of(["a.csv", "a.parquet"])


def test_only_places_that_can_be_read_are_accepted() -> None:
    assert isinstance(files_for(Settings(), "file:/data"), LocalFiles)
    with pytest.raises(UsageError, match="neither file: nor s3://"):
        files_for(Settings(), "hdfs://host/data")


def test_spellings_of_one_file_are_the_same() -> None:
    spellings = ("file:/d/a b.csv", "file:///d/a%20b.csv", "file:////d//a b.csv", "/d/a b.csv")
    assert {missing_files._normalise(each) for each in spellings} == {"/d/a b.csv"}
    assert missing_files._normalise("s3a://b/a") == missing_files._normalise("s3://b//a")


FRAME = "\tat org.apache.parquet.hadoop.ParquetFileReader.readFooter(ParquetFileReader.java:580)"
ADVICE = "Could not read footer. If the file is in the valid format, please check if it is corrupt."


def read(how: str, uri: str = "file:///d/%5Ba%5D%20b.parquet", said: str = "", cause: str = "") -> str:
    because = f"Caused by: {cause}\n{FRAME}\n" if cause else ""
    return READ.format(how=how, uri=uri, said=f"{said} SQLSTATE: KD001\n{FRAME}\n{because}")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (
            read("FILE_NOT_EXIST", said="File does not exist."),
            FileProblem("file:/d/[a] b.parquet", ProblemKind.MISSING, "it was there when the job began"),
        ),
        (
            read("NO_HINT", cause="java.lang.RuntimeException: x is not a Parquet file. Expected magic number"),
            FileProblem(
                "file:/d/[a] b.parquet", ProblemKind.CORRUPT, "x is not a Parquet file. Expected magic number"
            ),
        ),
        (
            read(
                "PARQUET_COLUMN_DATA_TYPE_MISMATCH", said="Data type mismatches when reading Parquet column [id]."
            ),
            FileProblem(
                "file:/d/[a] b.parquet",
                ProblemKind.CORRUPT,
                "Data type mismatches when reading Parquet column [id].",
            ),
        ),
        (
            "[PATH_NOT_FOUND] Path does not exist: s3a://b/d/\\[a\\].parquet. SQLSTATE: 42K03",
            FileProblem("s3://b/d/[a].parquet", ProblemKind.MISSING, "the path does not exist"),
        ),
        (
            str(BadFile("b/d/a.parquet", "missing", "404")),
            FileProblem("s3://b/d/a.parquet", ProblemKind.MISSING, "404"),
        ),
        (
            read("NO_HINT", "file:///d/a.csv.gz", cause="java.io.EOFException: Unexpected end of input stream"),
            FileProblem("file:/d/a.csv.gz", ProblemKind.CORRUPT, "Unexpected end of input stream"),
        ),
        (
            read("NO_HINT", "file:///d/a.csv.gz", cause="java.io.IOException: gzip stream CRC failure"),
            FileProblem("file:/d/a.csv.gz", ProblemKind.CORRUPT, "gzip stream CRC failure"),
        ),
        (
            read("NO_HINT", "file:///d/a.csv.gz", cause="java.io.IOException: not a gzip file"),
            FileProblem("file:/d/a.csv.gz", ProblemKind.CORRUPT, "not a gzip file"),
        ),
        # The way to a file may be mended: that is no word about the file.
        (read("NO_HINT", "s3a://b/a.parquet", cause="java.net.SocketTimeoutException: Read timed out"), None),
        (
            read("CANNOT_READ_FILE_FOOTER", said=ADVICE, cause="java.lang.IllegalStateException: Pool shut down"),
            None,
        ),
        (
            read("NO_HINT", "s3a://b/a.parquet", cause="java.io.EOFException: Premature EOF: expected 90 bytes"),
            None,
        ),
        (f"java.net.ConnectException: refused\n{FRAME}\nCould not read footer for file: s3a://b/a.parquet", None),
        (
            read("CANNOT_READ_FILE_FOOTER", said=ADVICE),  # A server need not say more.
            FileProblem("file:/d/[a] b.parquet", ProblemKind.CORRUPT, ADVICE),
        ),
        ("[CAST_INVALID_INPUT] The value 'x' cannot be cast", None),
    ],
)
def test_what_is_wrong_with_a_file_is_told_from_what_is_wrong_elsewhere(
    text: str, found: FileProblem | None
) -> None:
    assert find_file_problem(f"An error occurred while calling o1.collect.\n: {text}") == found


def test_what_a_server_says_of_the_cause_is_heard_too() -> None:
    from pyspark.errors.exceptions.connect import SparkConnectGrpcException

    said = READ.format(how="NO_HINT", uri="file:///d/a.parquet", said="SQLSTATE: KD001")
    stack = f"{FRAME}\nCaused by: java.lang.RuntimeException: a.parquet is not a Parquet file\n{FRAME}\n"
    error = SparkConnectGrpcException(said, server_stacktrace=stack)
    found = find_file_problem(full_text(error))
    assert found == FileProblem("file:/d/a.parquet", ProblemKind.CORRUPT, "a.parquet is not a Parquet file")
