"""The conformance suite: what every object store must do. qo supports a store that passes.

    class TestMyStore(StoreConformance):
        @pytest.fixture
        async def store(self) -> AsyncIterator[ObjectStore]:
            store = await MyStore.open(...)
            yield store
            await store.close()

The store must be versioned. It need not be empty: each test works below a prefix of its own. Class attributes set the
number of concurrent writers and repetitions, for servers that are slow, and declare known deviations of a server.
"""

from __future__ import annotations

from qo.testing.conformance.deletes import Deletes
from qo.testing.conformance.history import History
from qo.testing.conformance.lists import Lists
from qo.testing.conformance.races import Races
from qo.testing.conformance.writes import Writes


class StoreConformance(Writes, Races, Deletes, Lists, History):
    """The whole suite. Subclass it with a fixture ``store``."""


__all__ = ["StoreConformance"]
