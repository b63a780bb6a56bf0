"""Layout of rows in the session database: in the clear here, or encrypted (`EncryptedTables`).

The store's statements name the same tables and see the same values either way; `Tables` is everything that
differs.
"""

import sqlite3
from pathlib import Path

from kvchat.errors import EncryptionError, StorageError
from kvchat.platform import sqlite_locks
from kvchat.platform.encryptor import Encryptor
from kvchat.platform.key_file import key_path
from kvchat.session.database import rows, schema

ENCRYPTED_MARK = 0x6B767331
"""`PRAGMA application_id` of an encrypted database; one in the clear has none."""

_MARK_AT = 68
_HEADER_BYTES = 100


class Tables:
    """Rows in the clear. SQLite itself keeps the index of words."""

    encryptor: Encryptor | None = None
    """What the rows are encrypted with; None: they are in the clear."""

    def check(self, path: Path) -> None:
        """Refuse a file whose rows lie in another way.

        Raises: StorageError: another process has turned encryption on or off; EncryptionError: there is no
            key for it; DamageFound: the file's first bytes are not what they must be.
        """
        if not is_encrypted(path):
            return
        key = key_path(path.parent)
        if not key.exists():
            raise EncryptionError(f"{path} is encrypted and its key is gone: put {key} back from a backup")
        raise StorageError(f"{path} is encrypted now; start kvchat again")

    def migrate(self, connection: sqlite3.Connection, path: Path) -> None:
        """Create the tables, or bring older ones forward; see `schema.migrate`."""
        schema.migrate(connection, path)

    def show(self, connection: sqlite3.Connection) -> None:
        """Let statements on this connection name the tables, and see values in the clear.

        Raises: DamageFound: the tables are not those of the newest version; EncryptionError: their rows were
            encrypted with another key.
        """
        schema.refuse_damaged_tables(connection)

    def index_words(self, connection: sqlite3.Connection) -> None:
        """Bring `turns_fts` up to date for a search."""

    def stored_name(self, table: str) -> str:
        """Return the name under which a table's rows lie in the file."""
        return table

    def is_whole(self, table: str, row: sqlite3.Row) -> bool:
        """Return whether a row, as it lies in the file, is what was written, as far as it can be told."""
        return rows.is_whole(table, row)


PLAIN = Tables()


def is_encrypted(path: Path) -> bool:
    """Return whether a file says that its rows are encrypted."""
    try:
        header = sqlite_locks.first_bytes(path, _HEADER_BYTES)
    except OSError:
        return False
    return int.from_bytes(header[_MARK_AT : _MARK_AT + 4], "big") == ENCRYPTED_MARK
