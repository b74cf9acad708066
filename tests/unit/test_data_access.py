"""With whose rights an attempt works: its own wherever that can be, and never unnoticed with others."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace
from typing import Any, cast

import pytest

from qo.agent.data_access import CredentialsMissing, choose_access
from qo.api.contract.task import Claimed, DataAccess
from qo.config.settings import Settings
from qo.config.spark import BucketAccess, SparkSettings
from qo.config.worker import CredentialUse

pytestmark = pytest.mark.fast

OWN = DataAccess.ATTEMPT
HADOOP = "org.apache.hadoop:hadoop-aws:3.5.0"


def claim(root: str, *, mints: bool) -> Claimed:
    """A claim with what the decision reads of it."""
    output = SimpleNamespace(prefix=f"{root}/d")
    work = SimpleNamespace(outputs=[output], inputs=[], log=None)
    return Claimed.model_construct(mints_credentials=mints, work=cast("Any", work))


def access(use: CredentialUse, claimed: Claimed, *, is_scoped: bool) -> DataAccess | None:
    """None: the attempt does not run."""
    try:
        return choose_access(use, claimed, is_scoped=is_scoped)
    except CredentialsMissing:
        return None


def test_where_credentials_are_required_nothing_runs_without_its_own() -> None:
    for root, mints, is_scoped in product(("s3://lake", "file:/data"), (True, False), (True, False)):
        found = access(CredentialUse.REQUIRED, claim(root, mints=mints), is_scoped=is_scoped)
        assert found == (OWN if mints and is_scoped else None)


def test_an_attempt_uses_its_own_wherever_it_can_and_else_records_why_not() -> None:
    in_bucket, minted = claim("s3://lake", mints=False), claim("s3://lake", mints=True)
    assert access(CredentialUse.AUTO, minted, is_scoped=True) == OWN
    assert access(CredentialUse.AUTO, minted, is_scoped=False) == DataAccess.S3A
    assert access(CredentialUse.AUTO, in_bucket, is_scoped=True) == DataAccess.NOT_MINTED
    assert access(CredentialUse.AUTO, claim("file:/data", mints=False), is_scoped=True) == DataAccess.FILES
    assert access(CredentialUse.OFF, minted, is_scoped=True) == DataAccess.OFF


@pytest.mark.parametrize(
    ("settings", "is_scoped"),
    [
        (SparkSettings(), True),
        (SparkSettings(packages=(HADOOP,)), False),
        (SparkSettings(conf=(("spark.jars.packages", HADOOP),)), False),
        (SparkSettings(bucket_access=BucketAccess.S3A), False),
        (SparkSettings(packages=(HADOOP,), bucket_access=BucketAccess.PYTHON), True),
    ],
)
def test_attempts_on_spark_are_isolated_unless_s3a_is_in_use(settings: SparkSettings, is_scoped: bool) -> None:
    from qo.spark.io.bucket import bucket_access

    assert (bucket_access(Settings(spark=settings)) is BucketAccess.PYTHON) == is_scoped
