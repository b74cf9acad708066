"""What errors of Spark mean, told by their words alone: no session is needed for that."""

from __future__ import annotations

import pytest
from pyspark.errors import AnalysisException

from qo.spark.engine.error_translation import BadData, SparkFailed, explain

pytestmark = pytest.mark.fast

AWAY = """[PYTHON_DATA_SOURCE_ERROR] Failed to commit or abort Python data source write: \
Traceback (most recent call last):
  File "parquet_source.py", line 204, in commit
    with filesystem(self._options).open_output_stream(f"{self._directory}/{LIST}") as file:
  File "pyarrow/error.pxi", line 92, in pyarrow.lib.check_status
OSError: When initiating multiple part upload for key 'data/a': AWS Error NETWORK_CONNECTION: Empty reply from server
 SQLSTATE: 38000"""


def test_a_bucket_that_does_not_answer_a_data_source_is_asked_again() -> None:
    """Spark calls it an error of analysis, which others are: those follow from the query, and are final."""
    said = explain(AnalysisException(AWAY))
    assert isinstance(said, SparkFailed)
    assert str(said).startswith("a Python function raised OSError: When initiating multiple part upload")
    assert isinstance(explain(AnalysisException("[TABLE_OR_VIEW_NOT_FOUND] SQLSTATE: 42P01")), BadData)
