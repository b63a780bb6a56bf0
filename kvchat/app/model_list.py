"""Models that can be loaded without a network, and whether memory here holds them. Loads no torch."""

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kvchat.app.interface_types import ModelEntry
from kvchat.engine.formats.kv_size import cache_sizes, read_shape
from kvchat.engine.models.checkpoints.model_directory_check import check_model, read_config, weight_files
from kvchat.engine.models.locate import GGUF_SUFFIX, STARTER, locate_model
from kvchat.errors import KvchatError
from kvchat.platform.host_memory import available_bytes
from kvchat.text.figures import bytes_text, count_text, short_count_text
from kvchat.text.fit_text import one_line

_CONTEXT = 8192
"""A conversation of this many tokens, or of all that the model can read, has to fit beside the weights."""
_FITS = {True: "fits:", False: "does not fit:", None: "takes"}
_UNKNOWN_KV = "KV unknown"
_REPO_PREFIX = "models--"
COLUMNS_WIDTH = 31
"""Of what stands before whether a model fits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """A model that is here.

    Args:
        name: as `-m` takes it.
        path: its directory, or its GGUF file.
        num_bytes: of its weights.
        max_context: most tokens it can read; None: the config does not say.
        token_bytes: KV of one token; None where the config does not say enough.
        needed_bytes: weights, and KV of a conversation; None: unknown.
        fits: whether memory holds that now; None: unknown.
        problem: why it cannot be loaded, None if nothing is known against it.
    """

    name: str
    path: str
    num_bytes: int
    max_context: int | None = None
    token_bytes: int | None = None
    needed_bytes: int | None = None
    fits: bool | None = None
    problem: str | None = None

    @property
    def line(self) -> str:
        """Size, context, and whether it fits, in columns."""
        context = "" if self.max_context is None else f"{count_text(self.max_context)} tokens"
        return f"{bytes_text(self.num_bytes):>9}  {context:>16}  {self.fit_words}".rstrip()

    @property
    def fit_words(self) -> str:
        if self.problem is not None:
            return f"cannot be loaded: {one_line(self.problem)}"
        if self.needed_bytes is None:
            return _UNKNOWN_KV
        context = count_text(min(self.max_context or _CONTEXT, _CONTEXT))
        words = f"{bytes_text(self.needed_bytes)} with the KV of {context} tokens"
        return f"{_FITS[self.fits]} {words}"

    @property
    def short_line(self) -> str:
        """The same in fewer words, for a list that says what the last figure is."""
        context = "" if self.max_context is None else short_count_text(self.max_context)
        is_known = self.problem is None and self.needed_bytes is not None
        fit = f"{_FITS[self.fits]} {bytes_text(self.needed_bytes or 0)}" if is_known else self.fit_words
        return f"{bytes_text(self.num_bytes):>8}  {context:>5}  {fit}"


def models_here(
    current: str, named: Iterable[str], free_bytes: int | None, running: Path | None = None
) -> tuple[ModelEntry, ...]:
    """Return the models that are installed, and those that sessions were held with, each once.

    Args:
        current: the model that answers now.
        named: models by the names that sessions keep.
        free_bytes: what another model may take; None: nobody can say that yet.
        running: directory of the model that runs; None: none does.
    """
    used = ((name, Path(name)) for name in sorted(filter(None, named)) if os.sep in name)
    places = dict(installed_models()) | {name: path for name, path in used if is_model_place(path)}
    if running is not None:
        places[current] = running
    names = dict.fromkeys([current, *places])
    return tuple(
        ModelEntry(
            name=name, summary=describe(name, places[name], free_bytes).short_line, is_current=name == current
        )
        for name in names
        if name in places
    )


def is_model_place(path: Path) -> bool:
    """Return whether a path may be a model: a directory or a GGUF file."""
    return path.is_dir() or (path.suffix == GGUF_SUFFIX and path.is_file())


def free_bytes_of(device: str) -> int | None:
    """Return what can be allocated on a device; None for a GPU while torch is not loaded."""
    torch: Any = sys.modules.get("torch")  # a list of models must not wait for it
    is_loaded = hasattr(torch, "compile")  # which it defines last; another thread may be importing it
    has_gpu = is_loaded and torch.cuda.is_available()
    if device.startswith("cuda") or (device == "auto" and has_gpu):
        return int(torch.cuda.mem_get_info()[0]) if has_gpu else None
    return available_bytes()


def installed_models() -> Iterator[tuple[str, Path]]:
    """Yield names and places: the starter, GGUF files of the working directory, and the hub's cache."""
    yield STARTER, locate_model(STARTER).path
    yield from ((str(file), file) for file in _gguf_files(Path.cwd()))
    for repo in sorted(hub_cache().glob(_REPO_PREFIX + "*")):
        if (snapshot := _snapshot(repo)) is not None:
            yield repo.name.removeprefix(_REPO_PREFIX).replace("--", "/"), snapshot
        for snapshot in sorted(repo.glob("snapshots/*")):
            yield from ((str(file), file) for file in _gguf_files(snapshot))


def hub_cache() -> Path:
    """Return where Hugging Face's libraries keep models, by their own variables."""
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    hub_home = os.environ.get("HF_HOME") or f"{home}/huggingface"
    return Path(os.environ.get("HF_HUB_CACHE") or f"{hub_home}/hub").expanduser()


def describe(name: str, path: Path, free_bytes: int | None) -> Installed:
    """Return what files and config say of a model; nothing is loaded, and a GGUF file is not opened."""
    found = Installed(name=name, path=str(path), num_bytes=weight_bytes(path))
    if path.is_file():
        is_large = free_bytes is not None and found.num_bytes > free_bytes
        problem = f"its weights alone take {bytes_text(found.num_bytes)}" if is_large else None
        return replace(found, problem=problem)
    try:
        check_model(path)
    except KvchatError as error:
        return replace(found, problem=str(error))
    # A config that leaves something open is completed by transformers, for which a list must not wait.
    with suppress(KvchatError):
        config = read_config(path)
        longest = config.get("max_position_embeddings")
        if isinstance(longest, int) and longest > 0:
            found = replace(found, max_context=longest)
        size = cache_sizes(read_shape(config), min(found.max_context or _CONTEXT, _CONTEXT))[0]
        needed = found.num_bytes + size.context_bytes
        fits = None if free_bytes is None else needed <= free_bytes
        found = replace(found, token_bytes=size.token_bytes, needed_bytes=needed, fits=fits)
    return found


def _gguf_files(directory: Path) -> list[Path]:
    return sorted(file for file in directory.glob(f"*{GGUF_SUFFIX}") if file.is_file())


def _snapshot(repo: Path) -> Path | None:
    """Return the directory of the revision that `main` names, else of any with a config."""
    with suppress(OSError, UnicodeDecodeError):
        named = repo / "snapshots" / (repo / "refs" / "main").read_text().strip()
        if (named / "config.json").is_file():
            return named
    found = sorted((repo / "snapshots").glob("*/config.json"))
    return found[0].parent if found else None


def weight_bytes(path: Path) -> int:
    with suppress(KvchatError, OSError):
        return sum(file.stat().st_size for file in ([path] if path.is_file() else weight_files(path)))
    return 0
