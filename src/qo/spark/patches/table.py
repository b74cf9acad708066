"""Every patch that qo makes to PySpark, py4j and Hadoop. ``spark.patches = false`` turns all of them off.

To add one: write its function in this package, add it here, and call it through ``apply_if_enabled``. A new
version of a package is allowed here once the tests pass with it.
"""

from __future__ import annotations

from qo.spark.patches.patch import Patch, Versions

_HERE = "qo.spark.patches"
_PYSPARK = {"pyspark": Versions("4.2", "4.4")}
_PY4J = {"py4j": Versions("0.10.9.7", "0.10.9.10")}

LOOKUP_CACHE = Patch(
    name="look-up cache",
    changes="send_command of py4j's client: answers look-ups of classes and static methods from a cache",
    why="PySpark looks up the class and the method again before every static call",
    gain="an operator of nine expressions makes 143 calls to the JVM instead of 275",
    without="operators make twice as many calls to the JVM",
    made_for=_PYSPARK | _PY4J,
    function=f"{_HERE}.py4j_lookup:install_lookup_cache",
)
SCALAR_CONVERTER = Patch(
    name="scalar converter",
    changes="py4j's list of input converters: one more, which comes first and leaves scalars as they are",
    why="py4j asks ten converters about every string, and none of them converts it",
    gain="the same operator takes 11.4 ms of CPU time in Python instead of 13.9 ms",
    without="every call to the JVM takes longer",
    made_for=_PYSPARK | _PY4J,
    function=f"{_HERE}.py4j_lookup:install_scalar_converter",
)
ACTIVE_SESSION = Patch(
    name="active session",
    changes="SparkSession.getActiveSession: returns the session of the attempt whose thread calls it",
    why="PySpark's own returns the worker's first session, and asks the JVM for every method of a column",
    gain="the same operator makes 112 calls to the JVM instead of 143",
    without="getActiveSession() in an operator is a session without the views and settings of its attempt",
    made_for=_PYSPARK,
    function=f"{_HERE}.active_session:install_active_session",
)
STOP_GUARD = Patch(
    name="stop guard",
    changes="stop of the sessions and the context that qo makes: raises an error",
    why="all attempts of a worker share one context, and scripts end with spark.stop()",
    gain="",
    without="an operator that stops its session ends the tasks of all others",
    made_for={},  # It replaces a public method.
    function=f"{_HERE}.stop_guard:forbid_stop",
)
LAUNCH = Patch(
    name="launch",
    changes="Popen in pyspark.java_gateway, while a JVM starts: adds a deadline, passes settings in a private file",
    why="PySpark waits for ever for a JVM that found the disk full, and passes secret settings as arguments",
    gain="",
    without="every user of the machine can read Spark's settings in the arguments of its process, and a JVM that "
    "never answers is waited for",
    made_for=_PYSPARK,
    function=f"{_HERE}.launch:guard_launch",
)
LEAN_JAR = Patch(
    name="lean jar",
    changes="Hadoop's default settings and its local file system, by a jar at the head of the class path",
    why="Spark sends a thousand settings with every job, and Hadoop starts chmod for every file it makes",
    gain="a small task takes 65 ms of CPU instead of 133 ms (docs/adr/0018-a-lean-hadoop.md)",
    without="small tasks take twice the time",
    made_for=_PYSPARK,  # Which brings its Hadoop along.
    function=f"{_HERE}.lean:conf",
)

PATCHES = (
    LOOKUP_CACHE,
    SCALAR_CONVERTER,
    ACTIVE_SESSION,
    STOP_GUARD,
    LAUNCH,
    LEAN_JAR,
)
