"""`kvchat export`: a session as one file, with its KV. Loads no model."""

import re
import sys
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, closing, nullcontext
from dataclasses import replace
from pathlib import Path

from kvchat.cli.options import ExportOptions
from kvchat.cli.shelf import open_store
from kvchat.cli.streams import Output, Status
from kvchat.config import Settings
from kvchat.engine.memory.bundle_blocks import BlockShelf
from kvchat.engine.models.identity import layouts_of, recall
from kvchat.errors import UsageError
from kvchat.session.bundle.blocks import session_blocks
from kvchat.session.bundle.layout import BundleRegion
from kvchat.session.bundle.manifest import BundleBranch, BundleModel, Manifest
from kvchat.session.bundle.writer import SourceBlock, Written, new_file, write_bundle
from kvchat.session.references import chain_root
from kvchat.session.store import SessionStore
from kvchat.session.tree import Branch, Session, Turn
from kvchat.ui.figures import bytes_text, plural

SUFFIX = ".kvchat"
_MAX_NAME_LEN = 80


def export_session(options: ExportOptions) -> None:
    """Write a session to a bundle."""
    settings = options.settings()
    status = Status(quiet=options.quiet)
    with closing(open_store(settings)) as store:
        session = store.find(options.session)
        branches, turns = _chosen(store, session, options.branch)
    target = _target(options, session)
    written = write_session(settings, session, branches, turns, target, status, with_kv=not options.no_kv)
    status.clear()
    num_tokens = sum(len(turn.token_ids or ()) for turn in turns)
    if options.json:
        values = {"file": None if target is None else str(target), "session": session.id}
        figures = {"turns": len(turns), "tokens": num_tokens, "blocks": written.num_blocks}
        Output().json(values | figures | {"bytes": written.num_bytes, "digest": written.digest.hex()})
        return
    blocks = f"{plural(written.num_blocks, 'block')} of KV" if written.num_blocks else "no KV"
    figures_text = f"{plural(len(turns), 'turn')}, {plural(num_tokens, 'token')}, {blocks}"
    status.note(f"wrote {target or 'standard output'}: {figures_text}, {bytes_text(written.num_bytes)}")


def write_session(
    settings: Settings,
    session: Session,
    branches: Sequence[Branch],
    turns: Sequence[Turn],
    target: Path | None,
    status: Status,
    *,
    with_kv: bool = True,
) -> Written:
    """Write a session's turns, and the blocks that are stored of them.

    Args:
        target: the file, whole or not at all; None: standard output.
    """
    kv = _model(settings, turns, with_kv=with_kv)
    blocks: Iterable[SourceBlock] = ()
    with ExitStack() as stack:
        if kv is not None and kv.layouts:
            shelf = stack.enter_context(closing(_shelf(settings, kv)))
            blocks = session_blocks(shelf, turns, kv.fingerprint, session.namespace, kv.block_size)
        writing = nullcontext(sys.stdout.buffer.write) if target is None else new_file(target)
        write = stack.enter_context(writing)
        return write_bundle(
            write,
            _manifest(session, branches, turns, kv),
            [replace(turn, model=_portable_name(turn.model)) for turn in turns],
            blocks,
            lambda num_bytes: status.show(f"writing · {bytes_text(num_bytes)} …"),
        )


def _chosen(
    store: SessionStore, session: Session, branch: str | None
) -> tuple[Sequence[Branch], Sequence[Turn]]:
    if branch is None:
        return store.branches(session.id), store.all_turns(session.id)
    chosen = store.branch(session.id, branch)
    return (chosen,), store.turns_to(chosen.leaf_id)


def _target(options: ExportOptions, session: Session) -> Path | None:
    if options.output == "-":
        if sys.stdout.isatty():
            raise UsageError("a bundle is no text for a terminal; give a file with -o, or a pipe")
        if options.json:
            raise UsageError("--json and -o - both write to standard output; choose one")
        return None
    target = Path(options.output or file_name(session))
    if target.is_dir():
        target /= file_name(session)
    if target.exists() and not options.force:
        raise UsageError(f"{target} exists; choose another name with -o, or replace it with --force")
    return target


def file_name(session: Session) -> str:
    """Return a name for a session's bundle that every file system takes."""
    words = "-".join(re.findall(r"\w+", session.title.lower()))
    return (words[:_MAX_NAME_LEN].strip("-_") or session.id) + SUFFIX


def _model(settings: Settings, turns: Sequence[Turn], *, with_kv: bool) -> BundleModel | None:
    """Return whose blocks the session would go on with: those of the model that answered last."""
    named = [turn.fingerprint for turn in turns if chain_root(turn.fingerprint) is not None]
    if not named:
        return None
    fingerprint = bytes.fromhex(named[-1])
    fields = recall(settings.paths.cache_dir, fingerprint)
    layouts = layouts_of(fields) if fields is not None and with_kv else {}
    return BundleModel(
        fingerprint=fingerprint,
        fields=fields,
        block_size=settings.engine.block_size if fields is None else fields["block_size"],
        layouts={
            group: tuple(
                BundleRegion(name=region.name, dtype=region.dtype, shape=region.shape) for region in layout
            )
            for group, layout in layouts.items()
        },
    )


def _shelf(settings: Settings, kv: BundleModel) -> BlockShelf:
    fields = recall(settings.paths.cache_dir, kv.fingerprint)
    assert fields is not None
    return BlockShelf(settings.paths.cache_dir, kv.fingerprint, layouts_of(fields), block_size=kv.block_size)


def _manifest(
    session: Session, branches: Sequence[Branch], turns: Sequence[Turn], kv: BundleModel | None
) -> Manifest:
    numbers = {turn.id: number for number, turn in enumerate(turns)}
    names = [branch.name for branch in branches]
    return Manifest(
        title=session.title,
        system=session.system,
        model=_portable_name(session.model),
        created_at=session.created_at,
        updated_at=session.updated_at,
        active_branch=session.active_branch if session.active_branch in names else names[0],
        branches=tuple(
            BundleBranch(
                name=branch.name,
                leaf=None if branch.leaf_id is None else numbers[branch.leaf_id],
                updated_at=branch.updated_at,
            )
            for branch in branches
        ),
        num_turns=len(turns),
        kv=kv,
    )


def _portable_name(model: str) -> str:
    """Return a model's name without where it lies on this machine."""
    return Path(model).name if Path(model).is_absolute() else model
