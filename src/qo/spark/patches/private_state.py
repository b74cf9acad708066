"""Writes to private attributes of PySpark, for which it has no public call.

These change no code of PySpark, so ``spark.patches`` does not turn them off: without them a worker could not replace a
session whose JVM or server has died.
"""

# pyright: reportPrivateUsage=false, reportAttributeAccessIssue=false

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.udf import UserDefinedFunction

if TYPE_CHECKING:
    from pyspark.sql.connect.client import SparkConnectClient
    from pyspark.sql.connect.session import SparkSession as RemoteSession


def detach_context(context: SparkContext) -> None:
    """Keep ``context.stop()`` from calling its JVM, which is gone or may never answer."""
    context._jsc = None


def forget_jvm() -> None:
    """Make PySpark start another JVM for the next session."""
    SparkContext._active_spark_context = SparkContext._gateway = SparkContext._jvm = None
    SparkSession._instantiatedSession = SparkSession._activeSession = None
    for each in gc.get_objects():
        # Functions in modules of operators refer to their counterpart in the JVM that is gone.
        if isinstance(each, UserDefinedFunction):
            each._judf_placeholder = None


def set_session_of_thread(session: RemoteSession) -> None:
    """Make a Connect session that of the calling thread. PySpark's functions would use one left over otherwise."""
    type(session)._active_session.session = session


def disconnect(client: SparkConnectClient) -> None:
    """Close a client without a goodbye to its server, which does not answer; pending calls fail at once."""
    client._closed = True
    client._channel.close()
