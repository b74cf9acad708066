"""What every object store must do. A store is supported by qo if it passes.

    class TestMyStore(StoreConformance):
        @pytest.fixture
        async def store(self) -> AsyncIterator[ObjectStore]:
            store = await MyStore.open(...)
            yield store
            await store.close()

The store must be versioned. It need not be empty: each test works under a prefix of its own. Class attributes say
how hard to try, for servers that are slow on one hot key, and which deviations of a server are known.
"""

from __future__ import annotations

from qo.testing.conformance.deletes import Deletes
from qo.testing.conformance.history import History
from qo.testing.conformance.lists import Lists
from qo.testing.conformance.races import Races
from qo.testing.conformance.writes import Writes


class StoreConformance(Writes, Races, Deletes, Lists, History):
    """All of it. Subclass with a fixture ``store``."""


__all__ = ["StoreConformance"]
