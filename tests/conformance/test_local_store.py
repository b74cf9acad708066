"""The local store keeps the promises of every store, and answers exactly as the memory store does."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import sqlite3
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qo.errors import ConfigError, PreconditionFailed, Unavailable, UsageError
from qo.store import sqlite_objects
from qo.store.local import LocalStore
from qo.store.memory import MemoryStore
from qo.store.port import Doomed, ObjectStore
from qo.testing.conformance import StoreConformance

pytestmark = pytest.mark.fast


class TestLocalStore(StoreConformance):
    @pytest.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[ObjectStore]:
        async with contextlib.aclosing(await LocalStore.open(tmp_path / "store")) as store:
            yield store
