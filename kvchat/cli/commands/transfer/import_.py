"""`kvchat import`: bundles, and other programs' conversations as text. Loads no model.

The text of a file first, in one transaction, and then its blocks: whatever is interrupted leaves all of the
text or none, and no block that no session refers to. The blocks of a bundle go into its own namespace, since
their names say which tokens they belong to and nothing of their bytes.
"""

import stat
from collections.abc import Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from kvchat.app.config import Settings
from kvchat.app.open_store import open_store, short_ids
from kvchat.app.retention.open_block_store import open_block_store
from kvchat.cli.commands.transfer.bundle_compatibility import Agreement, agree
from kvchat.cli.output.streams import Output, Status, written_as_json
from kvchat.cli.parser.options import CacheFormat, Dtype, ListOptions, NoKv, model_option
from kvchat.cli.parser.typer_parameters import Argument, option_class
from kvchat.engine.api.ids import BlockKey, GroupId
from kvchat.engine.memory.disk.io import SYSTEM, SystemFiles
from kvchat.engine.memory.disk.store import BlockHeader, DiskStore
from kvchat.engine.models.known_fingerprints import layouts_of, remember
from kvchat.errors import BundleError, SessionNotFound, StorageError
from kvchat.platform.private_files import system_errors_as
from kvchat.session.bundle.container import MAGIC
from kvchat.session.bundle.foreign import ForeignConversation, read_transcripts
from kvchat.session.bundle.reader import Bundle, read_blocks, read_bundle, renamed
from kvchat.session.store import SessionStore
from kvchat.session.tree import Session
from kvchat.text.figures import bytes_text, plural
from kvchat.text.fit_text import one_line


@option_class
class ImportOptions(ListOptions):
    files: Annotated[
        list[Path],
        Argument(help="Bundles, ChatGPT's conversations.json, or `llm logs --json`.", metavar="FILE..."),
    ]
    model: Annotated[str | None, model_option("Use this model, not the one it names.")] = None
    dtype: Dtype = None
    cache_format: CacheFormat = None
    no_kv: NoKv = False


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
class BundleFile:
    """A bundle that has been checked, and what came of comparing it with a model that is here."""

    path: Path
    bundle: Bundle
    agreement: Agreement


Source = BundleFile | list[ForeignConversation]


def import_sessions(options: ImportOptions) -> None:
    """Import sessions from files; a file that is refused keeps all of them out."""
    settings = options.settings()
    status = Status(quiet=options.quiet)
    sources = [_read(path, settings, options.model, status) for path in options.files]
    imported: list[Imported] = []
    with closing(open_store(settings)) as store:
        importer = Importer(settings, store, status, with_kv=not options.no_kv)
        for path, source in zip(options.files, sources, strict=True):
            try:
                imported += importer.bring(source)
            except StorageError as error:
                before = f"; {plural(len(imported), 'conversation')} before it came in" if imported else ""
                raise StorageError(f"{path} was not imported: {error}{before}") from error
        known = [summary.session for summary in store.list_sessions()]
        names = short_ids(session.id for session in (*known, *(one.session for one in imported)))
    status.clear()
    if written_as_json(options, Output(), map(_values, imported)):
        return
    for one in imported:
        _tell(status, one, names[one.session.id])


def _read(path: Path, settings: Settings, model: str | None, status: Status) -> Source:
    """Read a file and check all of it; nothing is changed."""
    if not _is_bundle(path):
        transcripts, num_skipped = read_transcripts(path)
        if num_skipped:
            status.note(f"{path}: {plural(num_skipped, 'conversation')} without text, or damaged, left out")
        return transcripts
    bundle = read_bundle(path, lambda num_bytes: status.show(f"checking {path} · {bytes_text(num_bytes)} …"))
    return BundleFile(path=path, bundle=bundle, agreement=agree(settings, path, bundle.manifest, model))


def _is_bundle(path: Path) -> bool:
    """Return whether a file is to be read as a bundle: by its first bytes, or by its name."""
    with system_errors_as(BundleError, f"{path} cannot be read"):
        if not stat.S_ISREG(path.stat().st_mode):
            return True  # opening a pipe would wait for somebody to write into it; this refuses one
        with path.open("rb") as file:
            start = file.read(len(MAGIC))
    return start == MAGIC or path.suffix != ".json"


class Importer:
    """Brings what files hold into a store.

    Args:
        status: told how far it has got.
        with_kv: whether blocks come too.
        files: how blocks are written.
    """

    def __init__(
        self,
        settings: Settings,
        store: SessionStore,
        status: Status,
        *,
        with_kv: bool = True,
        files: SystemFiles = SYSTEM,
    ) -> None:
        self._settings = settings
        self._store = store
        self._status = status
        self._with_kv = with_kv
        self._files = files

    def bring(self, source: Source) -> list[Imported]:
        """Import one file: all of its text, and of its KV what there is room for.

        Raises:
            BundleError: the file is another one by now; nothing of it is stored.
            StorageError: the text cannot be stored; nothing of the file is.
        """
        if isinstance(source, BundleFile):
            return [self._bring_bundle(source)]
        adopted = self._store.adopt_all(source)
        return [
            Imported(session=session, num_turns=len(turns), num_tokens=0)
            for session, (_, _, turns) in zip(adopted, source, strict=True)
        ]

    def _bring_bundle(self, source: BundleFile) -> Imported:
        bundle, agreement = source.bundle, source.agreement
        has_kv = bool(bundle.num_blocks) and self._with_kv
        takes_kv = has_kv and not agreement.differing
        # The text comes first, so that its blocks are somebody's from the first on: what nobody refers to may
        # be collected at any time.
        namespace = bundle.namespace if takes_kv else ""
        session = bundle.session(model=agreement.model, namespace=namespace)
        session = self._store.adopt(session, bundle.branches, bundle.turns)
        sizes: Sequence[int] = ()
        reasons = agreement.differing
        if takes_kv:
            sizes, reasons = self._installed(source, session)
        return Imported(
            session=session,
            num_turns=len(bundle.turns),
            num_tokens=sum(len(turn.token_ids or ()) for turn in bundle.turns),
            num_blocks=len(sizes),
            of_blocks=bundle.num_blocks,
            num_bytes=sum(sizes),
            kv="refused" if has_kv and not takes_kv else "untrusted" if sizes else "none",
            reasons=reasons if has_kv else (),
        )

    def _installed(self, source: BundleFile, session: Session) -> tuple[Sequence[int], tuple[str, ...]]:
        """Store the blocks of a session whose text is stored; where the file fails, the text goes again.

        Returns: the bytes of each that is stored now, and why not all of them are.
        """
        try:
            sizes, reason = self._install(source.path, source.bundle)
        except BaseException:
            with suppress(StorageError, SessionNotFound):
                self._store.delete_session(session.id)
            raise
        if not sizes:
            # On a full disk it counts as imported KV of no blocks; somebody may have deleted it meanwhile.
            with suppress(StorageError, SessionNotFound):
                self._store.use_blocks_of(session.id, "")
        return sizes, (reason,) if reason else ()

    def _install(self, path: Path, bundle: Bundle) -> tuple[Sequence[int], str]:
        """Write a bundle's blocks into its namespace, as far as there is room; see `_installed`."""
        kv = bundle.manifest.kv
        assert kv is not None
        assert kv.fields is not None
        names = renamed(bundle.turns, kv, bundle.namespace)
        remember(self._settings.paths.cache_dir, kv.fields, self._files)
        tried: list[tuple[GroupId, BlockKey, int]] = []
        reason = ""
        with ExitStack() as opened:
            block_store: DiskStore | None = None
            try:
                opening = open_block_store(
                    self._settings,
                    kv.fingerprint,
                    layouts_of(kv.fields),
                    block_size=kv.block_size,
                    files=self._files,
                )
                block_store = opened.enter_context(closing(opening))
            except (StorageError, OSError) as error:  # the text is kept without it
                reason = str(error)
            for number, block in enumerate(read_blocks(path, bundle)):
                self._status.show(f"importing · {number} of {bundle.num_blocks} blocks …")
                if reason or block_store is None:
                    continue  # it is read to its end all the same, which tells whether it is what it was
                header = BlockHeader.of(GroupId(block.group), names[block.parent], block.token_ids)
                tried.append((header.group, header.key, len(block.payload)))
                try:
                    block_store.write([(header, bytes(block.payload))])
                except StorageError as error:
                    reason = str(error)
            # What is written last may push out what was written first, and what was refused may be there.
            sizes = [size for group, key, size in tried if block_store and block_store.has(key, group)]
            if block_store is not None and not sizes:
                with suppress(StorageError):  # nobody will refer to what appears once there is room
                    block_store.remove_keys(key for _, key, _ in tried)
        if len(sizes) < bundle.num_blocks and not reason:
            reason = self._no_room(len(sizes), bundle.num_blocks)
        return sizes, reason

    def _no_room(self, num_blocks: int, of_blocks: int) -> str:
        of_all = f"{num_blocks} of {plural(of_blocks, 'block')}"
        if self._settings.engine.disk_bytes is None:
            return f"no more than {of_all} are left, since others were removed meanwhile; import it again"
        return (
            f"the disk limit has no room for more than {of_all}, since conversations that are used again, and"
            " what is kept, hold the rest; give it more with KVCHAT_KV_DISK_BYTES"
        )


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
        missing = "the rest of its KV is" if imported.num_blocks else "its KV is not stored, and"
        status.note(f"{missing} computed again: {imported.reasons[0]}")
    status.note(f"resume with: kvchat {name}")


def _blocks_words(imported: Imported) -> str:
    num_blocks = plural(imported.num_blocks, "block")
    if imported.num_blocks < imported.of_blocks:
        num_blocks = f"{imported.num_blocks} of {plural(imported.of_blocks, 'block')}"
    return f"{num_blocks}, {bytes_text(imported.num_bytes)}"


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
