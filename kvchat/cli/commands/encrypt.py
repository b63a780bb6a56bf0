"""`kvchat encrypt`: turn encryption of conversations and KV on and off, and change what opens them."""

import secrets
from contextlib import closing
from dataclasses import replace
from typing import Annotated

from kvchat.app import unlock
from kvchat.app.config import Settings
from kvchat.cli.output.streams import Status, tell
from kvchat.cli.parser.options import ListOptions
from kvchat.cli.parser.typer_parameters import Option, option_class
from kvchat.errors import UsageError
from kvchat.platform.encryptor import KEY_BYTES, Encryptor, require_packages
from kvchat.platform.key_file import (
    LOG_N,
    KeyFile,
    KeyKind,
    KeyState,
    key_path,
    new_data_key,
    wrap,
    write_key,
)
from kvchat.platform.paths import Paths
from kvchat.session.database.backups import damaged_copies
from kvchat.session.database.plain_tables import PLAIN, Tables
from kvchat.session.encryption.rewrite import rewrite
from kvchat.session.encryption.tables import EncryptedTables
from kvchat.session.packs import PackStore
from kvchat.session.store import SessionStore
from kvchat.session.unsent_drafts import DraftStore


@option_class
class EncryptOptions(ListOptions):
    keyring: Annotated[
        bool, Option("--keyring", help="Keep the key in the system's keyring; no passphrase.")
    ] = False
    cost: Annotated[
        int | None,
        Option(help="Of guessing a passphrase once: 2^N KiB of memory.", metavar="N", min=10, max=20),
    ] = None


_OPENERS = {KeyKind.PASSPHRASE: "a passphrase", KeyKind.KEYRING: "the system's keyring"}


def turn_on(options: EncryptOptions) -> None:
    """Encrypt all conversations, and all KV from now on."""
    settings = options.settings(unlock=False)
    paths, status = settings.paths, Status(quiet=options.quiet)
    if unlock.key_in_use(paths) is not None:
        raise UsageError("the conversations are encrypted already; `kvchat encrypt change` changes the key")
    require_packages()
    data_key = new_data_key()
    encryptor = Encryptor(data_key)
    key = _wrapped(data_key, options, unlock.given())
    try:
        switch(paths, key, PLAIN, EncryptedTables(encryptor))
    except BaseException:
        if unlock.key_in_use(paths) is None:
            unlock.forget_in_keyring(key)
        raise
    status.note(f"{_num_sessions(settings, encryptor)} encrypted; {_OPENERS[key.kind]} opens them")
    status.note("KV that was not encrypted was removed; it is recomputed when needed")
    if key.kind is KeyKind.PASSPHRASE:
        status.note("nobody can read them without the passphrase, not even you: keep a copy of it")
    else:
        status.note("nobody can read them without the keyring: `kvchat encrypt change` sets a passphrase")
    for copy in damaged_copies(paths.sessions_db):
        status.note(f"not encrypted: {copy}, a damaged database that was kept; remove it if you can")
    tell(options, _values(key))


def turn_off(options: ListOptions) -> None:
    """Keep all conversations in the clear again."""
    settings = options.settings(unlock=False)
    paths, status = settings.paths, Status(quiet=options.quiet)
    key = _key_of(settings)
    encryptor = Encryptor(unlock.data_key_of(key))
    switch(paths, replace(key, state=KeyState.TURNING_OFF), EncryptedTables(encryptor), PLAIN)
    unlock.forget_in_keyring(key)
    status.note(f"{_num_sessions(settings, None)} decrypted")
    tell(options, _values(None))


def change(options: EncryptOptions) -> None:
    """Change the passphrase, or what opens the conversations. Nothing is encrypted anew."""
    settings = options.settings(unlock=False)
    key = _key_of(settings)
    data_key = unlock.data_key_of(key)
    with unlock.alone(settings.paths):
        changed = replace(_wrapped(data_key, options, unlock.given_new()), state=key.state)
        write_key(key_path(settings.paths.data_dir), changed)
    unlock.forget_in_keyring(key)
    Status(quiet=options.quiet).note(f"{_OPENERS[changed.kind]} opens the conversations from now on")
    tell(options, _values(changed))


def switch(paths: Paths, key: KeyFile, source: Tables, target: Tables) -> None:
    """Write all conversations in another way; killed at any moment, the next start ends it or takes it back.

    Args:
        key: of the encrypted side; its state says which way it goes.

    Raises: StorageError: it could not be done, and everything is as before.
    """
    with unlock.alone(paths):
        write_key(key_path(paths.data_dir), key)

        def copy_files() -> None:
            PackStore(paths.packs_dir, source.encryptor).copy_to(target.encryptor)
            DraftStore(paths.unsent_dir, source.encryptor).copy_to(target.encryptor)

        try:
            rewrite(paths.sessions_db, source, target, copy_files)
        finally:
            unlock.settle(paths, key)


def show_status(options: ListOptions) -> None:
    """Say whether conversations and KV are encrypted, and what opens them. Asks for no passphrase."""
    settings = options.settings(unlock=False)
    key = unlock.key_in_use(settings.paths)
    words = "conversations and KV are not encrypted; `kvchat encrypt on` encrypts them"
    if key is not None:
        words = f"conversations and KV are encrypted; {_OPENERS[key.kind]} opens them"
    tell(options, _values(key), words)


def _values(key: KeyFile | None) -> dict[str, object]:
    return {"encrypted": key is not None, "opened_by": None if key is None else str(key.kind)}


def _key_of(settings: Settings) -> KeyFile:
    key = unlock.key_in_use(settings.paths)
    if key is None:
        raise UsageError("the conversations are not encrypted; `kvchat encrypt on` encrypts them")
    return key


def _wrapped(data_key: bytes, options: EncryptOptions, secret: bytes | None) -> KeyFile:
    """Return a data key behind the keyring if that was asked for, else behind a passphrase."""
    if not options.keyring:
        secret = unlock.ask_new() if secret is None else unlock.accepted(secret)
        return wrap(data_key, secret, KeyKind.PASSPHRASE, options.cost or LOG_N)
    secret = secrets.token_bytes(KEY_BYTES)
    key = wrap(data_key, secret, KeyKind.KEYRING)
    unlock.put_into_keyring(key, secret)
    return key


def _num_sessions(settings: Settings, encryptor: Encryptor | None) -> str:
    with closing(SessionStore(settings.paths.sessions_db, encryptor)) as store:
        count = len(store.list_sessions())
    return "1 session is" if count == 1 else f"{count} sessions are"
