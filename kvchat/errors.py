"""Everything that a person, a file or a machine can cause to go wrong.

    KvchatError                       1   runtime failure
    ├── UsageError                    2   contradictory or impossible arguments
    │   ├── SessionExists             2   `--new` with a name that is taken
    │   ├── PackExists                2   `pack make` with a name that is taken
    │   ├── FileTaken                 2   a file to be written exists
    │   ├── NoTerminal                2   the interface needs a terminal
    │   └── InvalidRequest            2   a request the engine cannot take (empty prompt, unknown token id)
    ├── ConfigError                   3   a configuration file or variable that cannot be read
    │   └── EncryptionError           3   the key is missing or another one, or its packages are not installed
    ├── ModelError                    4
    │   ├── ModelNotFound             4   no such directory, hub id or file
    │   ├── ModelUnreadable           4   found, but damaged or in a format that is never opened
    │   └── UnsupportedModel          4   loads, but its attention cannot be hooked exactly
    ├── SessionError                  5
    │   ├── SessionNotFound           5
    │   ├── SessionAmbiguous          5   a prefix that names several
    │   └── PackNotFound              5
    ├── CapacityError                 6
    │   ├── ContextOverflow           6   longer than the model's context
    │   ├── PoolExhausted             6   needs more blocks than the pool has
    │   ├── PinRefused                6   would leave too few blocks for everybody else
    │   └── OutOfMemory               6
    ├── CacheError                    7
    │   ├── CacheMissed               7   with --strict-cache: what should have been reused was not
    │   ├── PackMismatch              7   a pack of another model, or of KV in another format
    │   ├── BlockMissing              7   announced by the index, gone from the tier
    │   └── BlockDamaged              7   checksum, shape or fingerprint disagree
    ├── BundleError                   7   an import that is damaged, hostile or of an unknown format
    ├── StorageError                  1   disk full, read-only directory, locked database
    ├── RemoteError                   1   a server that cannot be reached, or answers with an error
    └── EngineFailed                  1   the engine thread stopped; sessions are safe

`exit_code` is the status with which the command line ends. Messages say what to do. Bugs of kvchat itself are
`assert`s, not members of this tree.
"""


class KvchatError(Exception):
    """Base of every error that is shown to a person as one message without a traceback."""

    exit_code = 1


class UsageError(KvchatError):
    exit_code = 2


class SessionExists(UsageError):
    pass


class PackExists(UsageError):
    pass


class FileTaken(UsageError):
    pass


class NoTerminal(UsageError):
    pass


class InvalidRequest(UsageError):
    pass


class ConfigError(KvchatError):
    exit_code = 3


class EncryptionError(ConfigError):
    pass


class ModelError(KvchatError):
    exit_code = 4


class ModelNotFound(ModelError):
    pass


class ModelUnreadable(ModelError):
    pass


class UnsupportedModel(ModelError):
    pass


class SessionError(KvchatError):
    exit_code = 5


class SessionNotFound(SessionError):
    pass


class SessionAmbiguous(SessionError):
    pass


class PackNotFound(SessionError):
    pass


class CapacityError(KvchatError):
    exit_code = 6


class ContextOverflow(CapacityError):
    """Args:
    num_tokens, max_context: how long the prompt is, and what the model takes; 0 where that is not known.
    """

    def __init__(self, message: str = "", num_tokens: int = 0, max_context: int = 0) -> None:
        super().__init__(message)
        self.num_tokens = num_tokens
        self.max_context = max_context


class PoolExhausted(CapacityError):
    """Args:
    fits_in: cache formats in which it would fit, the one that loses least first.
    """

    def __init__(self, message: str = "", fits_in: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.fits_in = fits_in


class PinRefused(CapacityError):
    pass


class OutOfMemory(CapacityError):
    pass


class CacheError(KvchatError):
    exit_code = 7


class CacheMissed(CacheError):
    pass


class PackMismatch(CacheError):
    pass


class BlockMissing(CacheError):
    pass


class BlockDamaged(CacheError):
    pass


class BundleError(KvchatError):
    exit_code = 7


class StorageError(KvchatError):
    pass


class EngineFailed(KvchatError):
    pass


class RemoteError(KvchatError):
    pass
