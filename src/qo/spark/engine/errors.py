"""What an error of Spark means: whether another attempt could mend it, and what to tell people.

Spark raises by the hundred lines. Of these the condition, the message and the cause at the bottom are kept. An error
that follows from the data or the operator is fatal: the next attempt would read the same rows with the same code.
One of the machinery (disk, memory, connection, a file that is gone) is retried.
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
from qo.spark.io.files import Wrong, trouble

TEXT_CHARS_MAX = 1_500
LINES_MAX = 16
_SEAM = "\n\n\n"  # Between what an error says and where in Java it was said.

_STATE = re.compile(r"SQLSTATE: ([0-9A-Z]{5})")
_CAUSE = re.compile(r"^Caused by: (.+)$", re.MULTILINE)
_FRAMES = re.compile(r"^\s+at [\w.$/<>]+\(|^\t\.\.\. \d+ more|^Driver stacktrace|^JVM stacktrace", re.MULTILINE)
_PLAN = re.compile(r"\n(?:'|[+:]- |\w+ \[)", re.MULTILINE)  # Where the plan begins that Spark appends.
_PREFIX = re.compile(r"^An error occurred while calling [^\n]*\n?: ?")
_JOB = re.compile(r"Job aborted due to stage failure: .*?\(TID \d+\) \([^)]*\): ", re.DOTALL)
_UDF_ERROR = re.compile(r"^(\w[\w.]*(?:Error|Exception|Exit|Interrupt)\b.*)$", re.MULTILINE)

# By their words, wherever in the chain of causes they stand: the first that is found decides.
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
_DATA_SOURCE = "PYTHON_DATA_SOURCE_ERROR"  # Raised as an error of analysis, whatever it met.
_DATA_STATES = ("21", "22", "23", "42", "0A")  # Classes of SQLSTATE: the statement or its data are at fault.
_DATA_ERRORS = (
    AnalysisException,
    ArithmeticException,
    ArrayIndexOutOfBoundsException,
    DateTimeException,
    IllegalArgumentException,
    UnsupportedOperationException,
    PySparkPicklingError,
    ValueError,  # PySpark's own are these, too: it found the call wrong before Spark saw it.
    TypeError,
    AttributeError,
    LookupError,
)


class SparkFailed(QoError):
    """Spark could not do it this time."""


class SessionLost(SparkFailed):
    """The session, or the way to it, is gone."""


class SparkCancelled(SparkFailed):
    """The Spark jobs were ended from outside."""


class BadData(UsageError):
    """The operator or the rows it reads are at fault: no retry would mend it."""


def explained(error: BaseException) -> BaseException:
    """What to raise instead: an error of Spark in few words, with where it happened; any other as it is."""
    if not from_spark(error):
        return error
    # The frames of the operator stay; the pages of Java that Spark's own text holds do not.
    return _meaning(error).with_traceback(error.__traceback__)


def from_spark(error: BaseException) -> bool:
    return isinstance(error, PySparkException) or type(error).__module__.startswith(("py4j.", "grpc"))


def _meaning(error: BaseException) -> QoError:
    whole, text = full_text(error), short_text(error)

    def says(*words: str) -> bool:
        return any(word in whole for word in words)

    if says(*_CANCELLED):
        return SparkCancelled(f"its Spark jobs were cancelled: {text}")
    if says(*_LOST) or type(error).__module__.startswith("grpc") or "Py4JNetworkError" in type(error).__name__:
        return SessionLost(f"the Spark session was lost: {text}")
    if says(*_DISK):
        return SparkFailed(f"no space is left on the disk that Spark writes to: {text}")
    if says(*_MEMORY):
        return SparkFailed(f"Spark ran out of memory (give it more with spark.driver_memory): {text}")
    if (file := trouble(whole)) is not None:
        if file.wrong is Wrong.CORRUPT:
            return BadData(f"the file {file.uri} cannot be read: {file.cause}")
        # Another attempt reads what is committed then.
        return SparkFailed(f"the file {file.uri} is missing: {file.cause}")
    if isinstance(error, PythonException) or _DATA_SOURCE in whole:
        return SparkFailed(text)  # A function of the user's, or of a way to files: it may have met anything.
    states = _STATE.findall(whole)
    if isinstance(error, _DATA_ERRORS) or any(each.startswith(_DATA_STATES) for each in states):
        return BadData(text)
    return SparkFailed(text)


def full_text(error: BaseException) -> str:
    """All that Spark said, with every cause."""
    try:
        # As a session of our own calls it, and as one on a server does.
        stack = getattr(error, "_stackTrace", None) or getattr(error, "_stacktrace", None)
        said = [str(error), stack or ""]
    except Exception as unsaid:  # Asking goes through Java, which may be gone.
        return f"Answer from Java side is empty: {unsaid!r}"
    return _SEAM.join(said)


def short_text(error: BaseException) -> str:
    """The message in a few lines, and the cause at the bottom, if that is not what it says already."""
    whole = full_text(error)
    if isinstance(error, PythonException) or "PythonException" in whole or _DATA_SOURCE in whole:
        raised = _UDF_ERROR.findall(whole.split("Traceback (most recent call last)")[-1])
        if raised:
            return f"a Python function raised {raised[0]}"[:TEXT_CHARS_MAX]
    said = _PREFIX.sub("", whole.split("\n\nJVM stacktrace")[0].split(_SEAM)[0])
    said = _JOB.sub("", _FRAMES.split(said, maxsplit=1)[0])
    said = _PLAN.split(said, maxsplit=1)[0] if isinstance(error, AnalysisException) else said
    lines = [line.rstrip() for line in said.splitlines() if line.strip()][:LINES_MAX]
    text = "\n".join(lines).rstrip(";")
    causes = [each.strip() for each in _CAUSE.findall(whole)]
    if causes and _bare(causes[-1]) not in text:
        text = f"{text}\ncaused by {causes[-1]}"
    return text[:TEXT_CHARS_MAX] or type(error).__name__


def _bare(cause: str) -> str:
    """Without the name of the Java class."""
    return cause.split(": ", 1)[-1][:100]
