"""`kvchat plan`: how many bytes a model's cache takes. Reads the config alone and loads no torch."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any

from kvchat.cli.output.streams import Output, Status, as_json
from kvchat.cli.parser.options import ListOptions
from kvchat.cli.parser.typer_parameters import Argument, Option, option_class
from kvchat.engine.formats.format_sizes import FormatSize, format_sizes
from kvchat.engine.formats.kv_size import (
    ASSUMED_DTYPE,
    AttentionShape,
    CacheSize,
    cache_sizes,
    names_dtype,
    read_shape,
)
from kvchat.engine.models.config_file import normalised, read_config
from kvchat.errors import UsageError
from kvchat.platform.parsing import tokens
from kvchat.text.figures import bytes_text, count_text


@option_class
class PlanOptions(ListOptions):
    model: Annotated[
        str,
        Argument(
            help="A config.json, a directory, a Hugging Face id, or `starter`.",
            metavar="MODEL",
            needs_value=True,
        ),
    ]
    context: Annotated[
        str, Option(help="Length of the context in tokens, such as 8192 or 128k.", metavar="N")
    ] = "128k"
    format: Annotated[
        list[str] | None,
        Option(
            help="This cache format alone, as `--cache-format` names it; may be given several times.",
            metavar="FORMAT",
        ),
    ] = None


KNOWN_TYPES = frozenset(
    {
        "deepseek_v2",
        "deepseek_v3",
        "gpt2",
        "llama",
        "mistral",
        "mixtral",
        "qwen2",
        "qwen2_moe",
        "qwen3",
        "qwen3_moe",
        "phi3",
    }
)
"""Model types whose `config.json` says everything; others are completed by transformers."""
_INDENT = 4


def plan(options: PlanOptions) -> None:
    """Print the bytes per token and per context for every kind of attention a model could have."""
    try:
        context_len = tokens(options.context)
    except ValueError as error:
        raise UsageError(f"--context {error}") from None
    config = read_config(options.model)
    status = Status(quiet=options.quiet)
    is_completed, config = _completed(config, status)
    if not names_dtype(config):
        status.note(f"the config names no dtype; counted as {ASSUMED_DTYPE}")
    shape = read_shape(config)
    sizes = cache_sizes(shape, context_len)
    formats = format_sizes(shape, context_len, options.format or ())
    output = Output()
    if as_json(options):
        output.json(
            asdict(shape)
            | {"context_len": context_len, "by_transformers": is_completed}
            | {"sizes": [asdict(size) for size in sizes]}
            | {"formats": [asdict(size) for size in formats]}
        )
        return
    output.folded(f"{options.model}: {_summary(shape)}", _INDENT)
    output.line()
    rows = [*_rows(sizes, context_len), *_format_rows(formats, len(shape.visible))]
    for line in _aligned(rows, output.width):
        output.folded(line, _INDENT)


def _completed(config: Mapping[str, Any], status: Status) -> tuple[bool, Mapping[str, Any]]:
    """Return whether transformers completed the config, and the config to read."""
    model_type = config.get("model_type")
    # Which layers have a window follows from a rule of the model's own where the config does not list them.
    has_open_windows = config.get("use_sliding_window") and not config.get("layer_types")
    if model_type in KNOWN_TYPES and not has_open_windows:
        return False, config
    completed = normalised(config)
    if completed is None:
        status.note(f"model type {model_type!r} is unknown to transformers too; read as it stands")
        return False, config
    status.note(f"model type {model_type!r}: what the config leaves open is as transformers has it")
    return True, completed


def _summary(shape: AttentionShape) -> str:
    """Return the shape in words."""
    layers = ", ".join(
        f"{number} full" if most is None else f"{number} that see {count_text(most)} tokens"
        for most, number in Counter(shape.visible).items()
    )
    without = shape.num_layers - len(shape.visible)
    rest = f", {without} without keys and values" if without else ""
    if shape.state_bytes != 0:
        size = "an unknown number of bytes" if shape.state_bytes is None else bytes_text(shape.state_bytes)
        rest += f"; {size} of recurrent state for a conversation and for each snapshot of it"
    return f"{shape.model_type}, {shape.num_layers} layers ({layers}{rest}), {shape.dtype}"


def _rows(sizes: Sequence[CacheSize], context_len: int) -> list[tuple[str, ...]]:
    own = sizes[0]
    head = ("", "per token", f"{count_text(context_len)} tokens", "", "")
    rows = (
        (
            size.name,
            f"{count_text(size.token_bytes)} B",
            f"{size.context_bytes / 2**30:.4g} GiB",
            "as it is" if size.is_own else f"{size.context_bytes / own.context_bytes:.3g}x",
            size.assumption,
        )
        for size in sizes
    )
    return [head, *rows]


def _format_rows(formats: Sequence[FormatSize], num_layers: int) -> list[tuple[str, ...]]:
    exact = formats[0].context_bytes
    return [
        (
            f"--cache-format {size.name}",
            "",
            f"{size.context_bytes / 2**30:.4g} GiB",
            f"{size.context_bytes / max(exact, 1):.3g}x",
            f"{num_layers} layers x {count_text(size.context_bytes // num_layers)} B{_beside(size)}"
            "; approximate",
        )
        for size in formats
        if not size.is_exact
    ]


def _beside(size: FormatSize) -> str:
    """Return what a format takes beside blocks that it leaves as they are, in words."""
    return f", {size.beside_bytes / 2**30:.3g} GiB of all beside its blocks" if size.beside_bytes else ""


def _aligned(rows: Sequence[tuple[str, ...]], width: int | None) -> Iterator[str]:
    """Yield a line for each row; where one does not fit, a long name stands above the figures, and what is
    assumed below them.
    """
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    figures_width = sum(widths[1:]) + 2 * 3
    name_width = widths[0] if width is None else max(0, min(widths[0], width - figures_width))
    for row in rows:
        figures = "".join("  " + row[column].rjust(widths[column]) for column in (1, 2, 3))
        line = f"{row[0].ljust(name_width)}{figures}  {row[4]}".rstrip()
        if width is None or (len(row[0]) <= name_width and len(line) <= width):
            yield line
        else:
            yield from _in_lines(row, figures, name_width)


def _in_lines(row: tuple[str, ...], figures: str, name_width: int) -> Iterator[str]:
    name, assumed = row[0], row[4]
    if len(name) > name_width:
        yield name
        name = ""
    yield f"{name.ljust(name_width)}{figures}".rstrip()
    if assumed:
        yield " " * _INDENT + assumed
