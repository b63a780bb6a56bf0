"""Paths of kvchat's files: by the conventions of the system, or all in one home."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kvchat.errors import ConfigError
from kvchat.platform.parsing import path


@dataclass(frozen=True, slots=True, kw_only=True)
class Paths:
    """Where kvchat keeps what. Nothing here has been created."""

    config_file: Path
    data_dir: Path
    """Conversations: cannot be computed again."""
    cache_dir: Path
    """KV blocks: may be deleted at any time."""
    state_dir: Path
    """The log."""
    runtime_dir: Path

    @property
    def sessions_db(self) -> Path:
        return self.data_dir / "sessions.db"

    @property
    def packs_dir(self) -> Path:
        return self.data_dir / "packs"

    @property
    def unsent_dir(self) -> Path:
        return self.data_dir / "unsent"

    @property
    def log_file(self) -> Path:
        return self.state_dir / "kvchat.log"


def places(environ: Mapping[str, str]) -> tuple[Paths, Path | None]:
    """Return the standard places and the system's file; beside a KVCHAT_HOME no system file counts."""
    home = environ.get("KVCHAT_HOME")
    if home:
        root = path(home)
        names = ("data", "cache", "state", "run")
        data_dir, cache_dir, state_dir, runtime_dir = (root / name for name in names)
        config_file, system_file = root / "config.toml", None
    else:
        from platformdirs import PlatformDirs

        dirs = PlatformDirs("kvchat", appauthor=False)
        try:
            data_dir, cache_dir, state_dir = dirs.user_data_path, dirs.user_cache_path, dirs.user_state_path
            config_file = dirs.user_config_path / "config.toml"
        except RuntimeError as error:
            raise ConfigError("nobody knows where your home is; set HOME, or KVCHAT_HOME") from error
        runtime_root = environ.get("XDG_RUNTIME_DIR", "")
        runtime_dir = Path(runtime_root) / "kvchat" if runtime_root.startswith("/") else state_dir / "run"
        system_file = dirs.site_config_path / "config.toml"
    paths = Paths(
        config_file=config_file,
        data_dir=data_dir,
        cache_dir=cache_dir,
        state_dir=state_dir,
        runtime_dir=runtime_dir,
    )
    return paths, system_file
