"""Translates errors of Spark into qo's: whether another attempt could help, and a text for people.

Spark's texts have hundreds of lines. The condition, the message and the innermost cause are kept. An error that follows
from the data or the operator is fatal: the next attempt would read the same rows with the same code. An error of the
machinery (disk, memory, connection, a missing file) is retried.
"""

from __future__ import annotations

import re

from pyspark.errors import (
    AnalysisException,
    ArithmeticException,
    ArrayIndexOutOfBoundsException,
    DateTimeException,
    IllegalArgumentException,
    PySparkException,
    PySparkPicklingError,
    PythonException,
    UnsupportedOperationException,
)

from qo.errors import QoError, UsageError
from qo.spark.io.files import ProblemKind, find_file_problem

TEXT_CHARS_MAX = 1_500
LINES_MAX = 16
_SEAM = "\n\n\n"  # Between the text of an error and its stack in Java.

_STATE = re.compile(r"SQLSTATE: ([0-9A-Z]{5})")
_CAUSE = re.compile(r"^Caused by: (.+)$", re.MULTILINE)
_FRAMES = re.compile(r"^\s+at [\w.$/<>]+\(|^\t\.\.\. \d+ more|^Driver stacktrace|^JVM stacktrace", re.MULTILINE)
_PLAN = re.compile(r"\n(?:'|[+:]- |\w+ \[)", re.MULTILINE)  # Where the plan begins that Spark appends.
_PREFIX = re.compile(r"^An error occurred while calling [^\n]*\n?: ?")
_JOB = re.compile(r"Job aborted due to stage failure: .*?\(TID \d+\) \([^)]*\): ", re.DOTALL)
_UDF_ERROR = re.compile(r"^(\w[\w.]*(?:Error|Exception|Exit|Interrupt)\b.*)$", re.MULTILINE)

# Texts to look for anywhere in the chain of causes; the first match decides.
_LOST = (
    "INVALID_HANDLE.SESSION",
    "INVALID_HANDLE.OPERATION_NOT_FOUND",
    "stopped SparkContext",
    "SparkContext was shut down",
    "Connection refused",
    "StatusCode.UNAVAILABLE",
    "failed to connect to all addresses",
    "Answer from Java side is empty",
    "An error occurred while trying to connect to the Java server",
)
_CANCELLED = ("SPARK_JOB_CANCELLED", "OPERATION_CANCELED", "JOB_CANCELLED", "cancelled part of cancelled job")
_DISK = ("No space left on device", "Disk quota exceeded")
_MEMORY = ("OutOfMemoryError", "UNABLE_TO_ACQUIRE_MEMORY", "Cannot grow BufferHolder", "exceeding memory limits")
_DATA_SOURCE = "PYTHON_DATA_SOURCE_ERROR"  # Raised as an error of analysis, whatever the cause.
_DATA_STATES = ("21", "22", "23", "42", "0A")  # Classes of SQLSTATE: the statement or its data are at fault.
_DATA_ERRORS = (
    AnalysisException,
    ArithmeticException,
    ArrayIndexOutOfBoundsException,
    DateTimeException,
    IllegalArgumentException,
    UnsupportedOperationException,
    PySparkPicklingError,
    ValueError,  # PySpark raises these, too, for a wrong call, before Spark sees it.
    TypeError,
    AttributeError,
    LookupError,
)


class SparkFailed(QoError):
    """Spark failed; another attempt may succeed."""


class SessionLost(SparkFailed):
    """The session has ended, or cannot be reached."""


class SparkCancelled(SparkFailed):
    """The Spark jobs were ended from outside."""


class BadData(UsageError):
    """The operator or the rows it reads are at fault: a retry would fail as well."""


def explain(error: BaseException) -> BaseException:
    """Return what to raise instead: a short error of qo for one of Spark, with its traceback; any other as it is."""
    if not from_spark(error):
        return error
    # The traceback has the operator's frames; Spark's own text, with pages of Java, is dropped.
    return _translate(error).with_traceback(error.__traceback__)


def from_spark(error: BaseException) -> bool:
    return isinstance(error, PySparkException) or type(error).__module__.startswith(("py4j.", "grpc"))


def _translate(error: BaseException) -> QoError:
    whole, text = full_text(error), short_text(error)

    def contains(*words: str) -> bool:
        return any(word in whole for word in words)

    if contains(*_CANCELLED):
        return SparkCancelled(f"its Spark jobs were cancelled: {text}")
    if contains(*_LOST) or type(error).__module__.startswith("grpc") or "Py4JNetworkError" in type(error).__name__:
        return SessionLost(f"the Spark session was lost: {text}")
    if contains(*_DISK):
        return SparkFailed(f"no space is left on the disk that Spark writes to: {text}")
    if contains(*_MEMORY):
        return SparkFailed(f"Spark ran out of memory (give it more with spark.driver_memory): {text}")
    if (file := find_file_problem(whole)) is not None:
        if file.kind is ProblemKind.CORRUPT:
            return BadData(f"the file {file.uri} cannot be read: {file.cause}")
        # Another attempt reads what is committed by then.
        return SparkFailed(f"the file {file.uri} is missing: {file.cause}")
    if isinstance(error, PythonException) or _DATA_SOURCE in whole:
        return SparkFailed(text)  # A user's function, or one that reads files: the cause may be anything.
    states = _STATE.findall(whole)
    if isinstance(error, _DATA_ERRORS) or any(each.startswith(_DATA_STATES) for each in states):
        return BadData(text)
    return SparkFailed(text)


def full_text(error: BaseException) -> str:
    """Return Spark's whole text, with every cause."""
    try:
        # The attribute's name in a classic session, and in one of Connect.
        stack = getattr(error, "_stackTrace", None) or getattr(error, "_stacktrace", None)
        parts = [str(error), stack or ""]
    except Exception as failure:  # The text is fetched from Java, which may be gone.
        return f"Answer from Java side is empty: {failure!r}"
    return _SEAM.join(parts)


def short_text(error: BaseException) -> str:
    """Return the message in a few lines, and the innermost cause unless the message contains it."""
    whole = full_text(error)
    if isinstance(error, PythonException) or "PythonException" in whole or _DATA_SOURCE in whole:
        raised = _UDF_ERROR.findall(whole.split("Traceback (most recent call last)")[-1])
        if raised:
            return f"a Python function raised {raised[0]}"[:TEXT_CHARS_MAX]
    message = _PREFIX.sub("", whole.split("\n\nJVM stacktrace")[0].split(_SEAM)[0])
    message = _JOB.sub("", _FRAMES.split(message, maxsplit=1)[0])
    message = _PLAN.split(message, maxsplit=1)[0] if isinstance(error, AnalysisException) else message
    lines = [line.rstrip() for line in message.splitlines() if line.strip()][:LINES_MAX]
    text = "\n".join(lines).rstrip(";")
    causes = [each.strip() for each in _CAUSE.findall(whole)]
    if causes and _without_class(causes[-1]) not in text:
        text = f"{text}\ncaused by {causes[-1]}"
    return text[:TEXT_CHARS_MAX] or type(error).__name__


def _without_class(cause: str) -> str:
    """Return a cause without the name of its Java class."""
    return cause.split(": ", 1)[-1][:100]
