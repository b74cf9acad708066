"""How hard the suite tries, which deviations of a server are known, and the prefix of each test."""

from __future__ import annotations

from typing import ClassVar

import pytest

from qo.ambient import SYSTEM


class ConformanceTests:
    # How many writers race for one key, and how often.
    RACERS: ClassVar[int] = 32
    ROUNDS: ClassVar[int] = 5
    # More than one page of versions, where a store lists them in pages. (S3 has a thousand to a page.)
    VERSIONS_MANY: ClassVar[int] = 25
    # False declares a known deviation: keys are not listed in the order of their bytes where they differ in a
    # character below "/", because the server lists directory by directory.
    LISTS_BY_BYTES: ClassVar[bool] = True

    @pytest.fixture
    def root(self) -> str:
        """A prefix that no other test uses, ending in a slash."""
        return f"conformance/{SYSTEM.token()}/"
