"""`kvchat cache gauge`: what cache formats lose, on a conversation or on the built-in questions."""

import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated

from kvchat.app.config import STARTER, Settings
from kvchat.app.model_location import located, with_adapter
from kvchat.app.open_store import open_store
from kvchat.cli.output.streams import Status, as_json, tell
from kvchat.cli.parser.options import (
    SESSION_HELP,
    Device,
    Dtype,
    HubModel,
    ListOptions,
    Weights,
    session_argument,
)
from kvchat.cli.parser.typer_parameters import Option, option_class
from kvchat.engine.api.cache_format import canonical_cache_format
from kvchat.engine.api.loss import FormatLoss
from kvchat.engine.api.recall import FormatMarks
from kvchat.engine.quality.frontier import CANDIDATES, frontier_svg
from kvchat.errors import ConfigError, StorageError, UsageError
from kvchat.platform.private_files import system_errors_as
from kvchat.session.kv.provenance import answer_starts
from kvchat.session.tree import answer_positions, path_token_ids
from kvchat.text.figures import plural, seconds_text
from kvchat.text.gauge import figures_of, finite, report_lines, suite_lines, suite_values

if TYPE_CHECKING:
    from kvchat.engine.quality.gauge import Gauge


@option_class
class GaugeOptions(ListOptions):
    session: Annotated[
        str | None,
        session_argument(
            f"{SESSION_HELP} Without one: the built-in questions, with the starter model.",
            metavar="[SESSION]",
            show_default=False,
        ),
    ] = None
    cache_format: Annotated[
        list[str] | None, Option(help="Measure this format; may be given several times.", metavar="FORMAT")
    ] = None
    last: Annotated[int, Option(help="Replay the last N tokens of answers.", metavar="N", min=1)] = 128
    keep: Annotated[
        float,
        Option(help="Recommend what puts the same token first this often.", metavar="SHARE", min=0, max=1),
    ] = 0.99
    layers: Annotated[
        str | None, Option(help="Also convert each layer alone to this format.", metavar="FORMAT")
    ] = None
    converted: Annotated[
        bool, Option("--converted", help="Measure converting what there is, not computing all in a format.")
    ] = False
    branch: Annotated[
        str | None, Option(help="Measure this branch; else the one used last.", metavar="NAME")
    ] = None
    svg: Annotated[Path | None, Option(help="Draw bytes against loss into this file.", metavar="FILE")] = None
    figures: Annotated[
        Path | None, Option(help="Also write all figures into this file, as JSON.", metavar="FILE")
    ] = None
    quick: Annotated[bool, Option("--quick", help="Of the built-in questions ask a tenth.")] = False
    model: HubModel = None
    device: Device = None
    dtype: Dtype = None
    weights: Weights = None


def gauge(options: GaugeOptions) -> None:
    """Measure what formats lose, and say which one to take."""
    for name in (*(options.cache_format or ()), *([options.layers] if options.layers else [])):
        canonical_cache_format(name)  # what is no format is told before a model is loaded
    if options.session is None:
        _ask_suite(options)
    else:
        _replay_session(options, options.session)


def _replay_session(options: GaugeOptions, reference: str) -> None:
    settings, status = options.settings(), Status(quiet=options.quiet)
    with closing(open_store(settings)) as store:
        session = store.find(reference)
        branch = store.branch(session.id, options.branch or session.active_branch)
        turns = store.turns_to(branch.leaf_id)
    token_ids = path_token_ids(turns)
    if not token_ids:
        raise UsageError("the tokens of this conversation are not known; send a message, then measure again")
    wanted = answer_positions(turns)[-options.last :]
    settings = with_adapter(settings, session.adapter)
    model = options.model or session.model or settings.model
    loaded, name = _load(settings, model, status)
    from kvchat.engine.quality.gauge import Text

    report = loaded.measure(
        Text(token_ids, wanted, answer_starts(turns)),
        _formats(options, loaded),
        is_converted=options.converted,
        layers_in=options.layers,
        report=status.show,
    )
    status.clear()
    report = replace(report, model=name)
    figures = figures_of(report, session.id, options.keep)
    plot = partial(frontier_svg, report.formats, session.title, report.exact_token_bytes)
    _tell(options, figures, report_lines(report, options.keep), plot)


def _ask_suite(options: GaugeOptions) -> None:
    from kvchat.engine.quality.recall import examine
    from kvchat.engine.quality.recall_suite import CONTEXT_LEN, num_questions, suite_items

    settings, status = options.settings(), Status(quiet=options.quiet)
    model = options.model or STARTER
    location = located(settings, model)
    numbers = {"num_recall": 10, "num_needle": 4} if options.quick else {}
    items = suite_items(location.path, **numbers)
    loaded, _ = _load(settings, model, status)
    beside = [_load(settings, model, status)[0] for _ in range(loaded.num_copies - 1)]
    start_s = monotonic()
    marks = examine(
        loaded,
        items,
        _formats(options, loaded),
        lambda num_done: status.show(f"asking · {num_done} of {len(items)} texts …"),
        beside=beside,
    )
    status.clear()
    figures = finite(suite_values(items, marks))
    plot = partial(frontier_svg, _as_losses(marks), f"kvchat's questions, {model}", marks[0].token_bytes)
    _tell(options, figures, suite_lines(items, marks), plot)
    if as_json(options):
        return
    asked, took_s = plural(num_questions(items), "question"), seconds_text(monotonic() - start_s)
    status.note(
        f"{asked} about {plural(len(items), 'text')} of about {CONTEXT_LEN} tokens, each in"
        f" {plural(len(marks), 'format')}: {took_s}"
    )


def _tell(options: GaugeOptions, figures: object, lines: Iterable[str], plot: Callable[[], str]) -> None:
    """Write the files that were asked for, and print the figures or, for people, the lines."""
    if options.svg is not None:
        _write(options.svg, plot(), "--svg")
    if options.figures is not None:
        _write(options.figures, json.dumps(figures), "--figures")
    tell(options, figures, *lines)


def _write(path: Path, text: str, option: str) -> None:
    with system_errors_as(StorageError, f"{path} cannot be written", f"; give another file with {option}"):
        path.write_text(text, encoding="utf-8")


def _formats(options: GaugeOptions, loaded: "Gauge") -> Sequence[str]:
    """Return what is to be measured: what was asked for, else what this model can be stored in."""
    found = options.cache_format or loaded.supported(CANDIDATES)
    if not found:
        raise ConfigError("this model's KV is stored exact and in no other usual format; name one to measure")
    return found


def _as_losses(marks: Sequence[FormatMarks]) -> list[FormatLoss]:
    """Return what a plot shows of an exam; its sizes are those of a token."""
    return [
        FormatLoss(
            cache_format=one.cache_format,
            num_bytes=round(one.token_bytes),
            token_bytes=one.token_bytes,
            loss=one.answers,
            is_converted=False,
            seconds=0.0,
        )
        for one in marks[1:]
    ]


def _load(settings: Settings, model: str, status: Status) -> "tuple[Gauge, str]":
    """Load a model for the gauge alone; return it with its name."""
    location = located(settings, model)
    status.show(f"loading {model} …")
    from kvchat.engine.quality.gauge import Gauge

    config = replace(settings.engine, cache_dir=None, host_bytes=0)
    return Gauge.load(location.path, config, status.show), location.name
