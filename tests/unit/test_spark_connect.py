"""The address of a Spark Connect server."""

from __future__ import annotations

import pytest

from qo.spark.engine.connect import with_parameters


@pytest.mark.fast
@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("sc://h:1", "sc://h:1/;user_id=qo"),
        ("sc://h:1/", "sc://h:1/;user_id=qo"),
        ("sc://h:1/;token=t", "sc://h:1/;token=t;user_id=qo"),
        ("sc://h/;user_id=me;use_ssl=true", "sc://h/;user_id=me;use_ssl=true"),
    ],
)
def test_what_an_address_says_itself_stays(address: str, expected: str) -> None:
    assert with_parameters(address, user_id="qo") == expected
