"""`kvchat import`: bundles, and other programs' conversations as text. Loads no model.

Blocks first, then the session in one transaction: whatever is interrupted leaves no session, and blocks that
nothing refers to. The blocks of a bundle go into its own namespace, since their names say which tokens they
belong to and nothing of their bytes.
"""

import stat
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

from kvchat.cli.agreement import Agreement, agree
from kvchat.cli.block_shelf import open_shelf
from kvchat.cli.session_options import ImportOptions
from kvchat.cli.shelf import open_store, short_id
from kvchat.cli.streams import Output, Status
from kvchat.config import Settings
from kvchat.engine.api.ids import BlockKey, GroupId, block_key
from kvchat.engine.memory.bundle_blocks import BlockShelf
from kvchat.engine.models.identity import layouts_of, remember
from kvchat.errors import BundleError, StorageError
from kvchat.session.bundle.foreign import Transcript, read_transcripts
from kvchat.session.bundle.reader import Bundle, read_blocks, read_bundle, renamed
from kvchat.session.bundle.record import MAGIC
from kvchat.session.store import SessionStore
from kvchat.session.tree import Session, Turn
from kvchat.ui.figures import bytes_text, plural
from kvchat.ui.plain_text import one_line


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """One session that was imported, and what became of its KV."""

    session: Session
    num_turns: int
    num_tokens: int
    num_blocks: int = 0
    of_blocks: int = 0
    """That the bundle holds; `num_blocks` of them are stored now."""
    num_bytes: int = 0
    kv: str = "none"
    """`untrusted` (kept apart until verified), `refused` (see `reasons`), or `none` (there is none here)."""
    reasons: tuple[str, ...] = ()
    """Why KV was refused, or why not all of it could be stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Installed:
    """What is stored of a bundle's blocks, and why not all of them are."""

    num_blocks: int = 0
    num_bytes: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _BundleFile:
    """A bundle that has been checked, and what came of comparing it with a model that is here."""

    path: Path
    bundle: Bundle
    agreement: Agreement


def import_sessions(options: ImportOptions) -> None:
    """Import sessions from files; a file that is refused keeps all of them out."""
    settings = options.settings()
    status = Status(quiet=options.quiet)
    sources = [_read(path, settings, options.model, status) for path in options.files]
    imported: list[Imported] = []
    with closing(open_store(settings)) as store:
        for source in sources:
            if isinstance(source, _BundleFile):
                imported.append(_import_bundle(settings, store, source, status, with_kv=not options.no_kv))
            else:
                imported += [_import_transcript(store, transcript) for transcript in source]
        ids = [summary.session.id for summary in store.list_sessions()]
    status.clear()
    if options.json:
        Output().json([_values(one) for one in imported])
        return
    for one in imported:
        _tell(status, one, short_id(one.session.id, ids))


def _read(
    path: Path, settings: Settings, model: str | None, status: Status
) -> "_BundleFile | list[Transcript]":
    """Read a file and check all of it; nothing is changed."""
    if not _is_bundle(path):
        transcripts, num_skipped = read_transcripts(path)
        if num_skipped:
            status.note(f"{path}: {plural(num_skipped, 'conversation')} without text, or damaged, left out")
        return transcripts
    bundle = read_bundle(path, lambda num_bytes: status.show(f"checking {path} · {bytes_text(num_bytes)} …"))
    return _BundleFile(path=path, bundle=bundle, agreement=agree(settings, path, bundle.manifest, model))


def _is_bundle(path: Path) -> bool:
    """Return whether a file is to be read as a bundle: by its first bytes, or by its name."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return True  # opening a pipe would wait for somebody to write into it; this refuses one
        with path.open("rb") as file:
            start = file.read(len(MAGIC))
    except OSError as error:
        raise BundleError(f"{path} cannot be read: {error.strerror or error}") from error
    return start == MAGIC or path.suffix != ".json"


def _import_transcript(store: SessionStore, transcript: Transcript) -> Imported:
    session = store.adopt(transcript.session, transcript.branches, transcript.turns)
    return Imported(session=session, num_turns=len(transcript.turns), num_tokens=0)


def _import_bundle(
    settings: Settings, store: SessionStore, source: _BundleFile, status: Status, *, with_kv: bool
) -> Imported:
    bundle, agreement = source.bundle, source.agreement
    is_wanted = bool(bundle.num_blocks) and with_kv
    installed = _Installed()
    kv = "none"
    reasons: tuple[str, ...] = ()
    if is_wanted and agreement.is_same:
        installed = _install(settings, source.path, bundle, status)
        kv = "untrusted" if installed.num_blocks else "none"
        reasons = (installed.reason,) if installed.reason else ()
    elif is_wanted:
        kv, reasons = "refused", _reasons(agreement)
    namespace = bundle.namespace if kv == "untrusted" else ""
    session = bundle.session(model=agreement.model, namespace=namespace)
    return Imported(
        session=store.adopt(session, bundle.branches, bundle.turns),
        num_turns=len(bundle.turns),
        num_tokens=_num_tokens(bundle.turns),
        num_blocks=installed.num_blocks,
        of_blocks=bundle.num_blocks,
        num_bytes=installed.num_bytes,
        kv=kv,
        reasons=reasons,
    )


def _install(settings: Settings, path: Path, bundle: Bundle, status: Status) -> "_Installed":
    """Write a bundle's blocks into its namespace, as far as there is room; return what is there then."""
    kv = bundle.manifest.kv
    assert kv is not None
    assert kv.fields is not None
    names = renamed(bundle.turns, kv, bundle.namespace)
    remember(settings.paths.cache_dir, kv.fields)
    written: list[tuple[GroupId, BlockKey, int]] = []
    reason = ""
    with ExitStack() as opened:
        shelf: BlockShelf | None = None
        try:
            layouts = layouts_of(kv.fields)
            shelf = open_shelf(settings, kv.fingerprint, layouts, block_size=kv.block_size)
            opened.enter_context(closing(shelf))
        except (StorageError, OSError) as error:  # the text is kept without it
            reason = str(error)
        for number, block in enumerate(read_blocks(path, bundle)):
            status.show(f"importing · {number} of {bundle.num_blocks} blocks …")
            if reason or shelf is None:
                continue  # it is read to its end all the same, which tells whether it is what it was
            group, parent = GroupId(block.group), names[block.parent]
            try:
                shelf.write(group, parent, block.token_ids, bytes(block.payload))
            except StorageError as error:
                reason = str(error)
            else:
                written.append((group, block_key(parent, block.token_ids), len(block.payload)))
        # What is written last may push out what was written first.
        sizes = [size for group, key, size in written if shelf is not None and group in shelf.groups_of(key)]
    if len(sizes) < bundle.num_blocks and not reason:
        reason = _no_room(len(sizes), bundle.num_blocks)
    return _Installed(num_blocks=len(sizes), num_bytes=sum(sizes), reason=reason)


def _no_room(num_blocks: int, of_blocks: int) -> str:
    return (
        f"the disk limit has no room for more than {num_blocks} of {plural(of_blocks, 'block')}, since"
        " conversations that are used again, and what is kept, hold the rest, or `kvchat cache gc` took them"
        " meanwhile; give it more with KVCHAT_KV_DISK_BYTES, or import it again"
    )


def _reasons(agreement: Agreement) -> tuple[str, ...]:
    return agreement.differing or (agreement.problem,)


def _num_tokens(turns: tuple[Turn, ...]) -> int:
    return sum(len(turn.token_ids or ()) for turn in turns)


def _tell(status: Status, imported: Imported, name: str) -> None:
    session = imported.session
    figures = f"{plural(imported.num_turns, 'turn')}, {plural(imported.num_tokens, 'token')}"
    status.note(f"imported {session.id}  {one_line(session.title) or '(untitled)'}  ({figures})")
    if imported.kv == "untrusted":
        status.note(
            f"its KV ({_blocks_words(imported)}) serves this session alone until it is verified: "
            f"kvchat sessions verify --all {name}"
        )
    elif imported.kv == "refused":
        status.note(
            f"its KV is of another model ({', '.join(imported.reasons)}); the text is kept and computed again"
        )
    if imported.kv != "refused" and imported.reasons:
        status.note(f"{_missing_words(imported)} computed again: {imported.reasons[0]}")
    status.note(f"go on with: kvchat {name}")


def _blocks_words(imported: Imported) -> str:
    num_blocks = plural(imported.num_blocks, "block")
    if imported.num_blocks < imported.of_blocks:
        num_blocks = f"{imported.num_blocks} of {plural(imported.of_blocks, 'block')}"
    return f"{num_blocks}, {bytes_text(imported.num_bytes)}"


def _missing_words(imported: Imported) -> str:
    return "the rest of its KV is" if imported.num_blocks else "its KV is not stored, and"


def _values(imported: Imported) -> dict[str, object]:
    return {
        "session": imported.session.id,
        "title": imported.session.title,
        "turns": imported.num_turns,
        "tokens": imported.num_tokens,
        "kv": imported.kv,
        "differing": list(imported.reasons) if imported.kv == "refused" else [],
        "not_stored": list(imported.reasons) if imported.kv != "refused" else [],
        "blocks": imported.num_blocks,
        "of_blocks": imported.of_blocks,
        "bytes": imported.num_bytes,
    }
