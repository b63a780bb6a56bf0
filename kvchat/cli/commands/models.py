"""`kvchat models`: what can be loaded without a network, and whether memory here holds it."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from kvchat.app.model_list import (
    COLUMNS_WIDTH,
    Installed,
    describe,
    hub_cache,
    installed_models,
    is_model_place,
)
from kvchat.cli.output.streams import Output, Status, as_json, written_as_json
from kvchat.cli.parser.options import ListOptions
from kvchat.cli.parser.typer_parameters import Argument, option_class
from kvchat.errors import ModelNotFound
from kvchat.platform.host_memory import available_bytes
from kvchat.text.figures import bytes_text, count_text
from kvchat.text.fit_text import one_line

_LABEL_WIDTH = 10


@option_class
class ModelOptions(ListOptions):
    model: Annotated[
        str,
        Argument(
            help="A directory, a GGUF file, a Hugging Face id, or `starter`.",
            needs_value=True,
            metavar="MODEL",
        ),
    ]


def list_models(options: ListOptions) -> None:
    """List the starter, GGUF files in the working directory, and what is in the Hugging Face cache."""
    output = Output()
    free_bytes = available_bytes()
    found = [describe(name, path, free_bytes) for name, path in installed_models()]
    if written_as_json(options, output, map(asdict, found)):
        return
    width = max(len(one_line(one.name)) for one in found)
    for one in found:
        output.folded(f"{one_line(one.name):{width}}  {one.line}", width + COLUMNS_WIDTH)
    status = Status(quiet=options.quiet)
    status.note(f"{bytes_text(free_bytes)} of memory are free, without that of a GPU")


def show_model(options: ModelOptions) -> None:
    """Say what is known of one model that is here."""
    path = dict(installed_models()).get(options.model) or _place(options.model)
    one = describe(options.model, path, available_bytes())
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
    yield "here", one.fit_words


def _place(name: str) -> Path:
    """Return the directory of a model, or a GGUF file."""
    path = Path(name).expanduser()
    if not is_model_place(path):
        raise ModelNotFound(
            f"there is no model {name!r} here: no directory or GGUF file, and not in {hub_cache()};"
            f" `kvchat models` lists what is, and `kvchat ask -m {name}` fetches a Hugging Face id"
        )
    return path.resolve()
