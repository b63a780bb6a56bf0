"""The key that a server wants, in a file that nobody else can read."""

from pathlib import Path

from kvchat.errors import ConfigError


def client_key(file: Path) -> str:
    """Return the key in a file.

    Raises: ConfigError: it cannot be read, or others can read it too.
    """
    try:
        if file.stat().st_mode & 0o077:
            raise ConfigError(f"others can read the API key in {file}: chmod 600 {file}")
        key = file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the API key in {file}: {error}") from error
    if not key or not key.isprintable():
        raise ConfigError(f"there is no API key in {file}; it is one line of text")
    return key
