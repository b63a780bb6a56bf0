"""`kvchat models`: what can be loaded without a network, and whether memory here holds it. Loads no torch."""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

from kvchat.cli.output.streams import Output, Status, as_json, written_as_json
from kvchat.cli.parser.options import ListOptions
from kvchat.cli.parser.typer_parameters import Argument, option_class
from kvchat.engine.formats.kv_size import cache_sizes, read_shape
from kvchat.engine.models.checkpoints.model_directory_check import check_model, read_config, weight_files
from kvchat.engine.models.locate import GGUF_SUFFIX, STARTER, locate_model
from kvchat.errors import KvchatError, ModelNotFound
from kvchat.platform.host_memory import available_bytes
from kvchat.text.figures import bytes_text, count_text
from kvchat.text.fit_text import one_line


@option_class
class ModelOptions(ListOptions):
    model: Annotated[
        str, Argument(help="A directory, a hub id, or `starter`.", needs_value=True, metavar="MODEL")
    ]


_CONTEXT = 8192
"""A conversation of this many tokens, or of all that the model can read, has to fit beside the weights."""
_REPO_PREFIX = "models--"
_LABEL_WIDTH = 10
_COLUMNS_WIDTH = 31
"""Of what stands between a model's name and whether it fits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """A model that is here.

    Args:
        name: as `-m` takes it.
        path: its directory.
        num_bytes: of its weights.
        max_context: most tokens it can read; None: the config does not say.
        token_bytes: KV of one token; None where the config does not say enough.
        needed_bytes: weights, and KV of a conversation; None: unknown.
        fits: whether the memory of this machine holds that now; None: unknown.
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


def list_models(options: ListOptions) -> None:
    """List the starter, and what is in the Hugging Face cache."""
    output = Output()
    free_bytes = available_bytes()
    found = [describe(name, path, free_bytes) for name, path in installed_models()]
    if written_as_json(options, output, map(asdict, found)):
        return
    width = max(len(one_line(one.name)) for one in found)
    for one in found:
        output.folded(f"{one_line(one.name):{width}}  {_line(one)}", width + _COLUMNS_WIDTH)
    status = Status(quiet=options.quiet)
    status.note(f"{bytes_text(free_bytes)} of memory are free; a GPU's are not counted")


def show_model(options: ModelOptions) -> None:
    """Say what is known of one model that is here."""
    path = dict(installed_models()).get(options.model) or _place(options.model)
    one = _gguf(options.model, path) if path.is_file() else describe(options.model, path, available_bytes())
    output = Output()
    if as_json(options):
        output.json(asdict(one))
        return
    output.folded(one_line(one.name), 0)
    for label, words in _facts(one):
        output.folded(f"{label:{_LABEL_WIDTH}}{words}", _LABEL_WIDTH)


def _facts(one: Installed) -> Iterator[tuple[str, str]]:
    yield "place", one.path
    yield "weights", bytes_text(one.num_bytes)
    if one.max_context is not None:
        yield "context", f"{count_text(one.max_context)} tokens"
    if one.token_bytes is not None:
        yield "KV", f"{bytes_text(one.token_bytes)} per token (`kvchat plan` says more)"
    yield "here", _fit_words(one)


def installed_models() -> Iterator[tuple[str, Path]]:
    """Yield the names and directories of models that need no network, the starter first."""
    yield STARTER, locate_model(STARTER).path
    for repo in sorted(hub_cache().glob(_REPO_PREFIX + "*")):
        if (snapshot := _snapshot(repo)) is not None:
            yield repo.name.removeprefix(_REPO_PREFIX).replace("--", "/"), snapshot


def hub_cache() -> Path:
    """Return where Hugging Face's libraries keep models, by their own variables."""
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    hub_home = os.environ.get("HF_HOME") or f"{home}/huggingface"
    return Path(os.environ.get("HF_HUB_CACHE") or f"{hub_home}/hub").expanduser()


def describe(name: str, path: Path, free_bytes: int) -> Installed:
    """Return what files and config say of a model; nothing is loaded."""
    found = Installed(name=name, path=str(path), num_bytes=_weight_bytes(path))
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
        fits = needed <= free_bytes
        found = replace(found, token_bytes=size.token_bytes, needed_bytes=needed, fits=fits)
    return found


def _snapshot(repo: Path) -> Path | None:
    """Return the directory of the revision that `main` names, else of any with a config."""
    with suppress(OSError, UnicodeDecodeError):
        named = repo / "snapshots" / (repo / "refs" / "main").read_text().strip()
        if (named / "config.json").is_file():
            return named
    found = sorted((repo / "snapshots").glob("*/config.json"))
    return found[0].parent if found else None


def _weight_bytes(path: Path) -> int:
    with suppress(KvchatError, OSError):
        return sum(file.stat().st_size for file in weight_files(path))
    return 0


def _gguf(name: str, file: Path) -> Installed:
    """Return what the size of a GGUF file says; its header is read when it is loaded."""
    num_bytes = file.stat().st_size
    is_large = num_bytes > available_bytes()
    problem = f"its weights alone take {bytes_text(num_bytes)}" if is_large else None
    return Installed(name=name, path=str(file), num_bytes=num_bytes, problem=problem)


def _place(name: str) -> Path:
    """Return the directory of a model, or a GGUF file."""
    path = Path(name).expanduser()
    if not path.is_dir() and not (path.suffix == GGUF_SUFFIX and path.is_file()):
        raise ModelNotFound(
            f"there is no model {name!r} here: no directory or GGUF file, and not in {hub_cache()};"
            f" `kvchat models` lists what is, and `kvchat ask -m {name}` fetches a hub id"
        )
    return path.resolve()


def _line(one: Installed) -> str:
    context = "" if one.max_context is None else f"{count_text(one.max_context)} tokens"
    return f"{bytes_text(one.num_bytes):>9}  {context:>16}  {_fit_words(one)}".rstrip()


def _fit_words(one: Installed) -> str:
    if one.problem is not None:
        return f"cannot be loaded: {one_line(one.problem)}"
    if one.needed_bytes is None:
        return "unknown whether it fits: its cache is not known before it is loaded"
    context = count_text(min(one.max_context or _CONTEXT, _CONTEXT))
    words = f"{bytes_text(one.needed_bytes)} with a conversation of {context} tokens"
    return f"fits: {words}" if one.fits else f"does not fit: {words}"
