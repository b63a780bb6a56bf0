"""`kvchat sessions verify` and `kvchat cache verify`: hold stored KV to what the model computes.

A session whose KV came in a bundle becomes native when all of it has been computed again here: its own blocks
are stored under the names that every session shares, and the bundle's go. What was computed over a view is
counted and not looked at: only exact blocks have the names that are verified here.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from random import sample
from time import time
from typing import TYPE_CHECKING, Annotated

from kvchat.app.config import Settings
from kvchat.app.model_location import located, with_adapter
from kvchat.app.open_store import open_store
from kvchat.app.retention.open_block_store import drop_blocks, open_block_store
from kvchat.app.retention.view_blocks import add_view_turns
from kvchat.cli.output.streams import Status, tell_done
from kvchat.cli.parser.options import (
    CacheFormat,
    Device,
    DeviceBytes,
    Dtype,
    HubModel,
    ListOptions,
    SessionWord,
    Weights,
)
from kvchat.cli.parser.typer_parameters import Option, option_class
from kvchat.engine.api.cache_format import parse_cache_format
from kvchat.engine.api.ids import block_key, root_key
from kvchat.engine.api.inspection import PathBlock
from kvchat.engine.memory.disk.pinned_blocks import used_views
from kvchat.engine.memory.disk.store import BlockHeader, DiskStore
from kvchat.errors import CacheError, StorageError, UsageError
from kvchat.session.kv.block_references import References, blocks_on, leaf_paths
from kvchat.session.kv.provenance import origin_of
from kvchat.session.tree import Session, Turn, Verdict, Verification
from kvchat.text.figures import plural

if TYPE_CHECKING:
    from kvchat.engine.quality.verify import Findings, Verifier


@option_class
class VerifyOptions(ListOptions):
    """How much KV is computed again, and with which model."""

    model: HubModel = None
    all: Annotated[bool, Option("--all", help="Compute everything again.")] = False
    sample: Annotated[int | None, Option(help="Recompute N blocks (8 by default).", metavar="N", min=1)] = (
        None
    )
    device: Device = None
    dtype: Dtype = None
    weights: Weights = None
    cache_format: CacheFormat = None
    kv_device_bytes: DeviceBytes = None


@option_class
class VerifySessionOptions(VerifyOptions):
    session: SessionWord


DIFFERENT = 7
DEFAULT_SAMPLE = 8


@dataclass(frozen=True, slots=True)
class _Path:
    """The ids of one path, and what is stored of it."""

    token_ids: tuple[int, ...]
    blocks: tuple[PathBlock, ...]


@dataclass(frozen=True, slots=True)
class _Scope:
    """How many blocks are stored: those that can be computed again, and others, over views.

    `num_converted`: sessions whose KV was converted to this format, and is not what is computed in it.
    """

    num_blocks: int
    num_unseen: int = 0
    num_damaged: int = 0
    num_converted: int = 0


def verify_session(options: VerifySessionOptions) -> int | None:
    """Compute a session's KV again, or a sample of it, and compare."""
    settings, status = options.settings(), Status(quiet=options.quiet)
    with closing(open_store(settings)) as store:
        session = store.find(options.session)
        _refuse_converted(session)
        model = options.model or session.model or settings.model
        with _verifier(with_adapter(settings, session.adapter), model, status) as (verifier, block_store):
            turns = store.all_turns(session.id)
            paths = _session_paths(block_store, turns, session.namespace)
            scope = _scope(settings, block_store, [(session, turns)], paths)
            if not scope.num_blocks:
                _refuse_foreign(settings, turns, block_store.fingerprint)
            _check(verifier, paths, options, status)
            found = verifier.findings
            verification = _verification(found, scope, is_all=options.all)
            namespace = "" if options.all and scope.num_blocks else session.namespace
            if namespace != session.namespace:
                _require_native(block_store, paths)
            if scope.num_blocks:
                store.mark_verified(session.id, verification, namespace)
            if namespace != session.namespace:
                drop_blocks(settings, store, block_store, session, turns)
    return _report(options, status, found, scope, session, namespace)


def verify_cache(options: VerifyOptions) -> int | None:
    """Read every stored block of a model, then compute the sessions' KV again, or a sample of it."""
    settings, status = options.settings(), Status(quiet=options.quiet)
    with (
        closing(open_store(settings)) as store,
        _verifier(settings, options.model or settings.model, status) as (verifier, block_store),
    ):
        paths: list[_Path] = []
        sessions: list[tuple[Session, Sequence[Turn]]] = []
        num_converted = 0
        for summary in store.list_sessions():
            if origin := origin_of(summary.session.namespace):
                num_converted += origin.fingerprint == block_store.fingerprint.hex()
                continue
            session, turns = summary.session, store.all_turns(summary.session.id)
            sessions.append((session, turns))
            paths += _session_paths(block_store, turns, session.namespace)
        scope = _scope(settings, block_store, sessions, paths)
        scope = replace(scope, num_damaged=_read_all(block_store, paths, status), num_converted=num_converted)
        readable = [_still_stored(path, block_store) for path in paths] if scope.num_damaged else paths
        _check(verifier, readable, options, status)
    return _report(options, status, verifier.findings, scope, None, "")


def _scope(
    settings: Settings,
    block_store: DiskStore,
    sessions: Sequence[tuple[Session, Sequence[Turn]]],
    paths: Sequence[_Path],
) -> _Scope:
    """Count what is stored of sessions, and what of it lies on none of the paths: that of views."""
    looked_at = {block.key for path in paths for block in path.blocks}
    seen = References()
    for session, turns in sessions:
        add_view_turns(seen, session, turns, block_store.block_size, settings.paths.cache_dir)
    unseen = {key for key in seen.keys - looked_at if block_store.groups_of(key)}
    for parent in seen.runs:
        for key, ids in block_store.tails_behind(parent):
            if key not in looked_at and seen.covers_tail(parent, ids):
                unseen.add(key)
    return _Scope(len(looked_at), len(unseen))


def _still_stored(path: _Path, block_store: DiskStore) -> _Path:
    """Return a path with what is still stored of it."""
    blocks = (replace(block, groups=tuple(block_store.groups_of(block.key))) for block in path.blocks)
    return _Path(path.token_ids, tuple(block for block in blocks if block.groups))


def _read_all(block_store: DiskStore, paths: Sequence[_Path], status: Status) -> int:
    """Read every block once, which sets damaged ones aside; return how many were."""
    num_damaged = 0
    blocks = {block.key: block for path in paths for block in path.blocks}
    for number, block in enumerate(blocks.values()):
        status.show(f"reading · {number} of {len(blocks)} blocks …")
        num_damaged += any(
            block_store.read_if_sound(BlockHeader.of(group, block.parent, block.token_ids)) is None
            for group in block.groups
        )
    status.clear()
    return num_damaged


@contextmanager
def _verifier(settings: Settings, model: str, status: Status) -> "Iterator[tuple[Verifier, DiskStore]]":
    """Load a model without tiers of its own, and open what is stored for it.

    A view shares the names of the exact format, and what is computed over it never has them.
    """
    stored_as = parse_cache_format(settings.engine.cache_format).stored
    location = located(settings, model)
    status.show(f"loading {model} …")
    from kvchat.engine.engine import Engine
    from kvchat.engine.quality.verify import Recompute, Verifier
    from kvchat.engine.startup.assembly import build_parts

    config = replace(settings.engine, cache_dir=None, host_bytes=0, cache_format=stored_as)
    parts = build_parts(location.name, location.path, config)
    fingerprint = bytes.fromhex(parts.info.fingerprint)
    with (
        closing(Engine(parts)),
        closing(open_block_store(settings, fingerprint, parts.pool.layouts())) as block_store,
    ):
        status.clear()
        yield Verifier(Recompute(parts, config.max_batch_tokens), block_store), block_store


def _session_paths(block_store: DiskStore, turns: Sequence[Turn], namespace: str) -> list[_Path]:
    root, native = root_key(block_store.fingerprint, namespace), root_key(block_store.fingerprint)
    return [_Path(path, tuple(blocks_on(block_store, path, root, native))) for path in leaf_paths(turns)]


def _check(verifier: "Verifier", paths: Sequence[_Path], options: VerifyOptions, status: Status) -> None:
    keys = {block.key for path in paths for block in path.blocks}
    if options.all:
        for path in paths:
            for _ in verifier.check_path(path.token_ids, path.blocks):
                status.show(f"verifying · {verifier.findings.num_blocks} of {len(keys)} blocks …")
        return
    chosen = _sample(paths, options.sample or DEFAULT_SAMPLE)
    for number, (path, block) in enumerate(chosen):
        status.show(f"verifying · {number} of {len(chosen)} blocks …")
        verifier.check_block(path.token_ids, path.blocks, block)


def _sample(paths: Sequence[_Path], num_blocks: int) -> list[tuple[_Path, PathBlock]]:
    found = {block.key: (path, block) for path in paths for block in path.blocks}
    chosen = sample(list(found.values()), min(num_blocks, len(found)))
    # Earlier blocks first: what is set aside must not be the past that later ones are held to.
    return sorted(chosen, key=lambda one: one[1].number)


def _require_native(block_store: DiskStore, paths: Sequence[_Path]) -> None:
    """Make sure that all of what was computed is still there before it takes the place of a bundle's."""
    for path in paths:
        for block in path.blocks:
            native = block_key(block.native_parent, block.token_ids)
            if not set(block.groups) <= set(block_store.groups_of(native)):
                raise StorageError(
                    "the disk limit has no room for what was computed beside what came in the bundle; the "
                    "session is as it was: give it more with KVCHAT_KV_DISK_BYTES for as long as this takes"
                )


def _refuse_converted(session: Session) -> None:
    """Refuse to hold converted KV to what is computed in its format: that is not what it was made of."""
    origin = origin_of(session.namespace)
    if origin is not None:
        raise UsageError(
            f"its KV was converted from {origin.source} to {origin.cache_format}, and what is computed in "
            f"that format differs; to have it exact again: kvchat sessions convert {session.id} exact"
        )


def _refuse_foreign(settings: Settings, turns: Sequence[Turn], fingerprint: bytes) -> None:
    """Say that the model at hand is not the one that answered, or not in the layout of its blocks."""
    named = {turn.fingerprint for turn in turns if turn.fingerprint}
    if not named or fingerprint.hex() in named:
        return
    others = "or of other weights"
    if any(view.is_pyramid for view in used_views(settings.paths.cache_dir)):
        others = "of other weights, or over a pyramid, whose blocks are not verified"
    raise CacheError(
        f"this session's KV is of another model, {others}; name its model with -m, and its type with --dtype"
    )


def _verification(found: "Findings", scope: _Scope, *, is_all: bool) -> Verification:
    verdict = Verdict.SAME if is_all and not scope.num_unseen else Verdict.SAMPLED
    if found.different or found.wrong_logits:
        verdict = Verdict.DIFFERENT
    of_blocks = scope.num_blocks + scope.num_unseen
    return Verification(verdict=verdict, at=time(), num_blocks=found.num_blocks, of_blocks=of_blocks)


def _report(
    options: VerifyOptions,
    status: Status,
    found: "Findings",
    scope: _Scope,
    session: Session | None,
    namespace: str,
) -> int | None:
    status.clear()
    is_wrong = bool(found.different or found.wrong_logits or scope.num_damaged)
    values = {
        "session": None if session is None else session.id,
        "blocks": scope.num_blocks,
        "verified": found.num_blocks,
        "exact": found.num_exact,
        "worst": found.worst,
        "different": len(found.different),
        "damaged": scope.num_damaged,
        "over_views": scope.num_unseen,
        "converted_sessions": scope.num_converted,
        "logits": found.num_logits,
        "worst_logits": found.worst_logits,
        "wrong_logits": found.wrong_logits,
        "trusted": not namespace,
    }
    notes = [*_lines(found, scope)]
    if session is not None and session.namespace:
        notes.append(_namespace_words(namespace, is_wrong=is_wrong))
    tell_done(options, values, *notes)
    return DIFFERENT if is_wrong else None


def _lines(found: "Findings", scope: _Scope) -> Iterator[str]:
    if not scope.num_blocks + scope.num_unseen:
        yield "no KV is stored, so there is nothing to verify"
        return
    looked_at = f"{found.num_blocks} of {plural(scope.num_blocks, 'block')}"
    yield (
        f"verified {looked_at}: {found.num_exact} to the last bit, "
        f"others within {found.worst:.1e}; logits within {found.worst_logits:.1e}"
    )
    if scope.num_unseen:
        yield f"{plural(scope.num_unseen, 'block')} computed over views: not looked at"
    if scope.num_converted:
        yield f"{plural(scope.num_converted, 'converted session')}: not looked at"
    if found.different:
        yield f"{plural(len(found.different), 'block')} disagreed and set aside; they are computed again"
    if found.wrong_logits:
        yield f"{plural(found.wrong_logits, 'row')} of logits disagreed"
    if scope.num_damaged:
        yield f"{plural(scope.num_damaged, 'block')} damaged and set aside; they are computed again"


def _namespace_words(namespace: str, *, is_wrong: bool) -> str:
    if namespace:
        return "the rest was not looked at, so its KV stays apart; --all computes everything again"
    if is_wrong:
        return "what was computed here takes the place of its KV, which other sessions share from now on"
    return "its KV is that of this model: other sessions share it from now on"
