"""The store of secrets that the settings choose, and the way from files into the database."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from qo.config.secret_keys import SecretPlace, SecretsSettings
from qo.config.settings import Settings
from qo.dispatcher.secrets.command_secrets import CommandSecrets
from qo.dispatcher.secrets.database_secrets import DatabaseSecrets, sealing_keys
from qo.dispatcher.secrets.file_secrets import FileSecrets
from qo.dispatcher.secrets.secret_store import PREFIXES, SecretStore
from qo.dispatcher.state.database import State
from qo.errors import ConfigError
from qo.queue.sealer import SECRETS, Sealer, load_keys

log = logging.getLogger(__name__)

REFRESH_S = 2.0  # Between looks at what other dispatchers, and people, have written.
_SOURCES = "secrets.key_file, secrets.keys or secrets.keys_from"


def open_secrets(settings: Settings, state: State) -> SecretStore:
    """Open the store that the settings choose. The first to use an empty database moves the files there into it.

    Raises ConfigError, with what to set, for a store that cannot be used.
    """
    place, directory = chosen_place(settings, state), settings.dispatcher.secrets_dir
    if place is SecretPlace.FILES:
        return FileSecrets.open(directory)
    if place is SecretPlace.COMMAND:
        if settings.secrets.command is None:
            raise ConfigError("secrets.place = command needs secrets.command: the command of the secret manager")
        manager = CommandSecrets(settings.secrets.command)
        manager.refresh(at_once=True)
        return manager
    secrets = open_database_secrets(settings.secrets, state)
    contents = _read_files(FileSecrets(Path(directory)))
    if contents and (names := secrets.create_all(contents, only_if_empty=True)):
        log.warning(
            "moved %d signing keys and webhook secrets from %s into the state database; delete the files with "
            "qo key import --remove when all dispatchers use it",
            len(names),
            directory,
        )
    return secrets


def open_database_secrets(settings: SecretsSettings, state: State) -> DatabaseSecrets:
    def load_sealer() -> Sealer:
        ring = load_keys(settings, SECRETS)
        if ring is None:
            raise ConfigError(
                f"secrets in the state database need a key to encrypt them with: make one with qo key generate ID, and "
                f"set {_SOURCES}"
            )
        return Sealer(ring, purpose=SECRETS)

    secrets = DatabaseSecrets(state, load_sealer)
    secrets.refresh(at_once=True)
    return secrets


def chosen_place(settings: Settings, state: State) -> SecretPlace:
    """Return where the secrets are. Raises ConfigError if others keep them in the database, and this one could not."""
    place = settings.secrets.place
    if place is not SecretPlace.AUTO:
        return place
    if settings.secrets.has_keys and state.engine.dialect.name == "postgresql":
        return SecretPlace.DATABASE
    if key_ids := sealing_keys(state):
        # With keys of its own it would refuse the tokens of the others.
        raise ConfigError(
            f"the secrets are in the state database, encrypted with key {', '.join(key_ids)}, and this process would "
            f"use files: set {_SOURCES} to that key, or secrets.place"
        )
    return SecretPlace.FILES


@dataclass(frozen=True, slots=True)
class SecretImport:
    created: list[str]  # These are new in the database.
    present: list[str]  # The database has them already.
    different: list[str]  # The database has another content under this name: that one stays.


def import_files(secrets: DatabaseSecrets, directory: Path, *, remove: bool = False) -> SecretImport:
    """Copy the secrets in the directory into the database; with ``remove``, delete the files that are then there too.

    It may be killed and repeated at any time: a file is deleted only after the database has returned its content.
    """
    files = FileSecrets(directory)
    contents = _read_files(files)
    created = secrets.create_all(contents)
    same = {name for name, content in contents.items() if secrets.read(name) == content}
    if remove:
        for name in sorted(same):
            files.delete(name)
    return SecretImport(created, sorted(same - set(created)), sorted(contents.keys() - same))


def _read_files(files: FileSecrets) -> Mapping[str, bytes]:
    """Raises ConfigError for a file that others can read."""
    names = [name for prefix in PREFIXES for name in files.entries(prefix)]
    return {name: content for name in names if (content := files.read(name)) is not None}


async def watch(secrets: SecretStore, stopped: asyncio.Event) -> None:
    """Look for new secrets every few seconds until ``stopped``. While nobody answers, what was seen last counts."""
    while not stopped.is_set():
        try:
            async with asyncio.timeout(REFRESH_S):
                await stopped.wait()
        except TimeoutError:
            try:
                await asyncio.to_thread(secrets.refresh)
            except Exception as error:  # Whatever it is, the next look may succeed.
                log.warning("new secrets could not be looked for: %s: %s", type(error).__name__, error)
