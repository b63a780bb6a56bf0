"""`kvchat sessions convert`: a session's stored KV in fewer bits, in place, and back to exact.

What it saves and what it loses is measured on the session itself and told before anything is changed.
"""

import sys
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer

from kvchat.app.config import Settings
from kvchat.app.model_location import located, with_adapter
from kvchat.app.open_store import open_store
from kvchat.app.retention.open_block_store import drop_blocks, open_block_store
from kvchat.app.retention.session_removal import SessionService
from kvchat.cli.output.streams import Status, as_json, tell_done
from kvchat.cli.parser.options import Device, Dtype, HubModel, SessionOptions, Weights, Yes
from kvchat.cli.parser.typer_parameters import Argument, Option, option_class
from kvchat.engine.api.cache_format import EXACT, canonical_cache_format
from kvchat.engine.api.ids import root_key
from kvchat.engine.api.loss import GaugeReport
from kvchat.engine.models.known_fingerprints import layouts_of, recall
from kvchat.errors import CacheError, UsageError
from kvchat.session.kv.block_references import leaf_paths
from kvchat.session.kv.provenance import Origin, origin_of
from kvchat.session.tree import Session, Turn, answer_positions, path_token_ids
from kvchat.text.figures import bytes_text, plural

if TYPE_CHECKING:
    from kvchat.engine.quality.convert import Converted, Converter
    from kvchat.engine.startup.weights import Candidate


@option_class
class ConvertOptions(SessionOptions):
    cache_format: Annotated[
        str, Argument(help="fp8, int8, int4, int2, k=int8,v=int4 …, or exact.", metavar="FORMAT")
    ]
    last: Annotated[
        int, Option(help="Show the loss on the last N tokens of answers.", metavar="N", min=1)
    ] = 64
    no_gauge: Annotated[bool, Option("--no-gauge", help="Do not measure the loss.")] = False
    yes: Yes = False
    dry_run: Annotated[bool, Option("--dry-run", help="Show only what it would save and lose.")] = False
    model: HubModel = None
    device: Device = None
    dtype: Dtype = None
    weights: Weights = None


@dataclass(frozen=True, slots=True)
class _Work:
    """What is to be converted, and with what."""

    settings: Settings
    store: SessionService
    session: Session
    turns: tuple[Turn, ...]


def convert_session(options: ConvertOptions) -> int | None:
    """Say what converting saves and loses, ask, and convert."""
    settings, status = options.settings(), Status(quiet=options.quiet)
    wanted = canonical_cache_format(options.cache_format)
    with closing(open_store(settings)) as store:
        session = store.find(options.session)
        work = _Work(
            with_adapter(settings, session.adapter), store, session, tuple(store.all_turns(session.id))
        )
        if wanted == EXACT:
            _back(options, work)
            return None
        _refuse_converted(session)
        return _convert(options, work, wanted, status)


def _convert(options: ConvertOptions, work: _Work, wanted: str, status: Status) -> int | None:
    from kvchat.engine.quality.convert import Converter, load_exact

    model = options.model or work.session.model or work.settings.model
    location = located(work.settings, model)
    status.show(f"loading {model} …")
    config = work.settings.engine
    candidate = load_exact(location.path, config, status.show)
    converter = Converter(candidate, replace(config, cache_dir=work.settings.paths.cache_dir), wanted)
    report = _measured(options, work, candidate, wanted, status)
    status.clear()
    if not as_json(options) and report is not None:
        status.note(_loss_words(report))
    is_sure = options.yes or not sys.stdin.isatty()
    if options.dry_run or not (is_sure or typer.confirm("convert it?", err=True)):
        _tell(options, work.session, report, None)
        return None if options.dry_run else 1
    origin = Origin(cache_format=wanted, source=EXACT, fingerprint=converter.target.fingerprint.hex())
    done = _written(work, converter, origin, status)
    _tell(options, work.session, report, done)
    return None


def _measured(
    options: ConvertOptions, work: _Work, candidate: "Candidate", wanted: str, status: Status
) -> GaugeReport | None:
    """Return what the session's last answer tokens lose, None where there are none or nobody asks."""
    from kvchat.engine.quality.gauge import Gauge, Text

    branch = work.store.branch(work.session.id, work.session.active_branch)
    turns = work.store.turns_to(branch.leaf_id)
    ids, positions = path_token_ids(turns), answer_positions(turns)
    if not ids or not positions or options.no_gauge:
        return None
    gauge = Gauge(candidate, work.settings.engine)
    text = Text(ids, positions[-options.last :])
    return gauge.measure(text, [wanted], is_converted=True, report=status.show)


def _written(work: _Work, converter: "Converter", origin: Origin, status: Status) -> "Converted":
    """Write the converted blocks, let the session use them, and remove exact ones that nobody else uses.

    The session changes hands in one step of its database, after everything is written: a conversion that
    fails or is cut off leaves it as it was.
    """
    from kvchat.engine.quality.convert import Conversion

    exact, target = converter.exact, converter.target
    roots = (
        root_key(exact.fingerprint, work.session.namespace),
        root_key(target.fingerprint, origin.namespace),
    )
    with (
        closing(open_block_store(work.settings, exact.fingerprint, exact.pool.layouts())) as source,
        closing(open_block_store(work.settings, target.fingerprint, target.pool.layouts())) as block_store,
    ):
        conversion = Conversion(converter, source, block_store, roots, leaf_paths(work.turns))
        if not conversion.planned.num_tokens:
            raise CacheError(
                "no exact KV of this session is stored for this model, so there is nothing to convert; ask"
                f" something in it first, or compute it again in this format: kvchat {work.session.id}"
                f" --cache-format '{origin.cache_format}'"
            )
        done = conversion.run(status.show)
        try:
            work.store.use_blocks_of(work.session.id, origin.namespace)
        except BaseException:  # it may have been deleted meanwhile, with the blocks that it had then
            conversion.undo()
            raise
        freed_bytes = drop_blocks(work.settings, work.store, source, work.session, work.turns)
    status.clear()
    return replace(done, freed_bytes=freed_bytes)


def _back(options: ConvertOptions, work: _Work) -> None:
    """Let a converted session use exact blocks again: those that are left, and else computed ones."""
    origin = origin_of(work.session.namespace)
    is_done = origin is not None and not options.dry_run
    if origin is None:
        _refuse_imported(work.session)
        words = "its KV is exact already; nothing was changed"
    elif options.dry_run:
        words = "its KV would be computed exactly again when it goes on; nothing was changed"
    else:
        words = "its KV is computed exactly again when it goes on"
        work.store.use_blocks_of(work.session.id, "")
        fingerprint = bytes.fromhex(origin.fingerprint)
        fields = recall(work.settings.paths.cache_dir, fingerprint)
        if fields is not None:
            with closing(open_block_store(work.settings, fingerprint, layouts_of(fields))) as block_store:
                drop_blocks(work.settings, work.store, block_store, work.session, work.turns)
    tell_done(options, {"session": work.session.id, "done": is_done, "cache_format": EXACT}, words)


def _refuse_converted(session: Session) -> None:
    origin = origin_of(session.namespace)
    if origin is not None:
        raise UsageError(
            f"its KV was converted to {origin.cache_format}, and what that lost cannot come back by"
            f" converting; go back first: kvchat sessions convert {session.id} exact"
        )
    _refuse_imported(session)


def _refuse_imported(session: Session) -> None:
    if session.namespace:
        raise UsageError(
            "its KV was imported and is not verified; compute it again first:"
            f" kvchat sessions verify --all {session.id}"
        )


def _loss_words(report: GaugeReport) -> str:
    (found,) = report.formats
    loss = found.loss
    before, after = bytes_text(report.exact_bytes), bytes_text(found.num_bytes)
    if before == after:
        return "No saving yet: conversation too short"
    return (
        f"{before} → {after}; last {plural(loss.num_tokens, 'answer token')}:"
        f" {100 * loss.agreement:.0f} % same, divergence {loss.divergence:.2g}"
    )


def _tell(
    options: ConvertOptions, session: Session, report: GaugeReport | None, done: "Converted | None"
) -> None:
    loss = None if report is None else asdict(report.formats[0])
    values = {"session": session.id, "done": done is not None, "loss": loss}
    if done is None:
        tell_done(options, values | {"converted": None}, "nothing was changed")
        return
    words = (
        f"converted {plural(done.num_tokens, 'token')}, {_saved(done)}: kvchat {session.id} goes on with"
        f" it; kvchat sessions convert {session.id} exact goes back"
    )
    tell_done(options, values | {"converted": asdict(done)}, words)


def _saved(done: "Converted") -> str:
    """Say what the disk gave back; exact blocks stay that others use."""
    saved_bytes = done.freed_bytes - done.num_bytes
    if saved_bytes >= 0:
        return f"{bytes_text(saved_bytes)} saved"
    return f"{bytes_text(-saved_bytes)} more on disk, since others use its exact blocks too"
