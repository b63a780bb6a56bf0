"""The tables of the block index. One of another version is dropped, and filled again from the block files."""

from typing import Final

from kvchat.engine.memory.disk.block_encryption import BlockNames

WRITTEN: Final = "CREATE TABLE written (day INTEGER PRIMARY KEY, bytes INTEGER NOT NULL) WITHOUT ROWID"
"""What no file tells: it stays when the other tables are of another version."""

# The checks are for `integrity_check`, which finds rows that a damaged disk has changed.
# Triggers keep the totals, so that a limit can be enforced before every write without counting rows.
SCHEMA: Final = (
    """CREATE TABLE blocks (
    fingerprint BLOB NOT NULL,
    key BLOB NOT NULL,
    grp INTEGER NOT NULL,
    parent BLOB NOT NULL,
    num_tokens INTEGER NOT NULL,
    block_size INTEGER NOT NULL,
    token_ids BLOB NOT NULL,
    bytes INTEGER NOT NULL,
    last_used REAL NOT NULL,
    proven INTEGER NOT NULL,
    writer TEXT,
    PRIMARY KEY (fingerprint, key, grp),
    CHECK (typeof(fingerprint) = 'blob' AND length(fingerprint) = 32),
    CHECK (typeof(key) = 'blob' AND length(key) = 32),
    CHECK (typeof(parent) = 'blob' AND length(parent) = 32),
    CHECK (typeof(token_ids) = 'blob' AND length(token_ids) = 4 * num_tokens AND num_tokens <= block_size),
    CHECK (typeof(grp) = 'integer' AND typeof(bytes) = 'integer' AND typeof(last_used) = 'real'),
    CHECK (proven IN (0, 1))
) WITHOUT ROWID""",
    "CREATE INDEX blocks_by_parent ON blocks (fingerprint, parent, token_ids)",
    "CREATE INDEX blocks_by_age ON blocks (last_used)",
    "CREATE INDEX blocks_by_worth ON blocks (proven, last_used)",
    "CREATE INDEX blocks_unsettled ON blocks (writer) WHERE writer IS NOT NULL",
    """CREATE TABLE totals (
    fingerprint BLOB PRIMARY KEY,
    num_blocks INTEGER NOT NULL,
    num_tails INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    num_proven INTEGER NOT NULL
) WITHOUT ROWID""",
    "CREATE TABLE writers (id TEXT PRIMARY KEY, boot TEXT NOT NULL) WITHOUT ROWID",
    WRITTEN,
    """CREATE TRIGGER count_added AFTER INSERT ON blocks BEGIN
    INSERT INTO totals SELECT new.fingerprint, 0, 0, 0, 0
        WHERE NOT EXISTS (SELECT 1 FROM totals WHERE fingerprint = new.fingerprint);
    UPDATE totals SET num_blocks = num_blocks + 1, bytes = bytes + new.bytes,
        num_tails = num_tails + (new.num_tokens < new.block_size), num_proven = num_proven + new.proven
        WHERE fingerprint = new.fingerprint;
END""",
    """CREATE TRIGGER count_removed AFTER DELETE ON blocks BEGIN
    UPDATE totals SET num_blocks = num_blocks - 1, bytes = bytes - old.bytes,
        num_tails = num_tails - (old.num_tokens < old.block_size), num_proven = num_proven - old.proven
        WHERE fingerprint = old.fingerprint;
END""",
    """CREATE TRIGGER count_proven AFTER UPDATE OF proven ON blocks WHEN new.proven <> old.proven BEGIN
    UPDATE totals SET num_proven = num_proven + new.proven - old.proven WHERE fingerprint = new.fingerprint;
END""",
)

RECOUNT: Final = (
    "DELETE FROM totals",
    """INSERT INTO totals SELECT fingerprint, count(*), sum(num_tokens < block_size), sum(bytes), sum(proven)
    FROM blocks GROUP BY fingerprint""",
)


def schema_of(seal: BlockNames) -> tuple[str, ...]:
    """Return the statements that create the tables, indexes and triggers for blocks that lie so."""
    if not seal.entry_overhead:
        return SCHEMA
    length = f"4 * num_tokens + {seal.entry_overhead}"
    return tuple(statement.replace("4 * num_tokens", length) for statement in SCHEMA)
