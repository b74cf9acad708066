"""The suite for the store that ``qo.testing.examination`` has opened."""

from __future__ import annotations

import pytest

from qo.store.port import ObjectStore
from qo.testing.conformance import StoreConformance


class TestStore(StoreConformance):
    @pytest.fixture
    def store(self, examined: ObjectStore) -> ObjectStore:
        return examined
