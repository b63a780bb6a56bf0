"""`kvchat import`: bundles, and other programs' conversations as text. Loads no model.

Blocks first, then the session in one transaction: whatever is interrupted leaves no session, and blocks that
nothing refers to. The blocks of a bundle go into its own namespace, since their names say which tokens they
belong to and nothing of their bytes.
"""

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from kvchat.cli.agreement import Agreement, agree
from kvchat.cli.session_options import ImportOptions
from kvchat.cli.shelf import open_store, short_id
from kvchat.cli.streams import Output, Status
from kvchat.config import Settings
from kvchat.engine.memory.bundle_blocks import BlockShelf
from kvchat.engine.models.identity import layouts_of, remember
from kvchat.errors import BundleError
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
    num_bytes: int = 0
    kv: str = "none"
    """`untrusted` (kept apart until verified), `refused` (see `reasons`), or `none` (there was none)."""
    reasons: tuple[str, ...] = ()


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
        with path.open("rb") as file:
            start = file.read(len(MAGIC)) if path.is_file() else b""
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
    num_blocks = num_bytes = 0
    kv = "none"
    if is_wanted and agreement.is_same:
        num_blocks, num_bytes = _install(settings, source.path, bundle, status)
        kv = "untrusted"
    elif is_wanted:
        kv = "refused"
    namespace = bundle.namespace if kv == "untrusted" else ""
    session = bundle.session(model=agreement.model, namespace=namespace)
    return Imported(
        session=store.adopt(session, bundle.branches, bundle.turns),
        num_turns=len(bundle.turns),
        num_tokens=_num_tokens(bundle.turns),
        num_blocks=num_blocks,
        num_bytes=num_bytes,
        kv=kv,
        reasons=_reasons(agreement) if kv == "refused" else (),
    )


def _install(settings: Settings, path: Path, bundle: Bundle, status: Status) -> tuple[int, int]:
    """Write a bundle's blocks into its namespace; return how many there are now, and their bytes."""
    kv = bundle.manifest.kv
    assert kv is not None
    assert kv.fields is not None
    names = renamed(bundle.turns, kv, bundle.namespace)
    remember(settings.paths.cache_dir, kv.fields)
    shelf = BlockShelf(
        settings.paths.cache_dir,
        kv.fingerprint,
        layouts_of(kv.fields),
        block_size=kv.block_size,
        limit_bytes=settings.engine.disk_bytes,
        sealer=settings.engine.sealer,
    )
    num_blocks = num_bytes = 0
    with closing(shelf):
        for block in read_blocks(path, bundle):
            shelf.write(block.group, names[block.parent], block.token_ids, bytes(block.payload))  # type: ignore[arg-type]
            num_blocks += 1
            num_bytes += len(block.payload)
            status.show(f"importing · {num_blocks} of {bundle.num_blocks} blocks …")
    return num_blocks, num_bytes


def _reasons(agreement: Agreement) -> tuple[str, ...]:
    return agreement.differing or (agreement.problem,)


def _num_tokens(turns: tuple[Turn, ...]) -> int:
    return sum(len(turn.token_ids or ()) for turn in turns)


def _tell(status: Status, imported: Imported, name: str) -> None:
    session = imported.session
    figures = f"{plural(imported.num_turns, 'turn')}, {plural(imported.num_tokens, 'token')}"
    status.note(f"imported {session.id}  {one_line(session.title) or '(untitled)'}  ({figures})")
    if imported.kv == "untrusted":
        blocks = f"{plural(imported.num_blocks, 'block')}, {bytes_text(imported.num_bytes)}"
        status.note(
            f"its KV ({blocks}) serves this session alone until it is verified: "
            f"kvchat sessions verify --all {name}"
        )
    elif imported.kv == "refused":
        status.note(
            f"its KV is of another model ({', '.join(imported.reasons)}); the text is kept and computed again"
        )
    status.note(f"go on with: kvchat {name}")


def _values(imported: Imported) -> dict[str, object]:
    return {
        "session": imported.session.id,
        "title": imported.session.title,
        "turns": imported.num_turns,
        "tokens": imported.num_tokens,
        "kv": imported.kv,
        "differing": list(imported.reasons),
        "blocks": imported.num_blocks,
        "bytes": imported.num_bytes,
    }
