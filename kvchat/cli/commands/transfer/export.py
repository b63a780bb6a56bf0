"""`kvchat export`: a session as one file, with its KV or as text to read. Loads no model."""

import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from dataclasses import replace
from pathlib import Path

from kvchat.app.config import Settings
from kvchat.app.export_format import Format, format_of
from kvchat.app.open_sessions import open_store
from kvchat.cli.commands.sessions.options import ExportOptions
from kvchat.cli.commands.transfer.readable import portable_name, readable_text
from kvchat.cli.output.streams import Output, Status, as_json
from kvchat.engine.memory.disk.bundle_blocks import BundleBlockStore
from kvchat.engine.models.identity import layouts_of, recall
from kvchat.errors import FileTaken, UsageError
from kvchat.platform.values import dataclass
from kvchat.session.bundle.blocks import session_blocks
from kvchat.session.bundle.layout import BundleRegion
from kvchat.session.bundle.manifest import BundleBranch, BundleModel, Manifest
from kvchat.session.bundle.writer import SourceBlock, Written, new_file, write_bundle
from kvchat.session.kv.references import chain_root
from kvchat.session.store import SessionStore
from kvchat.session.tree import Branch, Session, Turn
from kvchat.text.figures import bytes_text, plural

SUFFIX = Format.BUNDLE.suffix
_MAX_NAME_LEN = 80
_MAX_NAME_BYTES = 200
"""File systems take 255; what is written first has a longer name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """What was written. `target` is None for standard output; only a bundle has blocks and a digest.

    `is_encrypted_at_home`: what is in the clear in the file is encrypted where it came from.
    """

    target: Path | None
    format: Format
    num_turns: int
    num_tokens: int
    num_bytes: int
    num_blocks: int = 0
    digest: str | None = None
    is_encrypted_at_home: bool = False

    @property
    def words(self) -> str:
        parts = [plural(self.num_turns, "turn"), plural(self.num_tokens, "token")]
        if self.format is Format.BUNDLE:
            parts.append(f"{plural(self.num_blocks, 'block')} of KV" if self.num_blocks else "no KV")
        parts.append(bytes_text(self.num_bytes))
        warning = "; it is NOT encrypted, whoever has it can read it" if self.is_encrypted_at_home else ""
        return f"wrote {self.target or 'standard output'}: {', '.join(parts)}{warning}"


def export_session(options: ExportOptions) -> None:
    """Write a session to a file, or to standard output."""
    settings = options.settings()
    status = Status(quiet=options.quiet)
    output = Path(options.output) if options.output not in (None, "-") else None
    format = options.format or (output and format_of(output)) or Format.BUNDLE
    with closing(open_store(settings)) as store:
        session = store.find(options.session)
        if options.output == "-":
            _refuse_stdout(options, format)
            target = None
        else:
            target = target_of(output, session, format)
            if target.exists() and not options.force:
                raise FileTaken(f"{target} exists; choose another name with -o, or replace it with --force")
        exporter = Exporter(settings, store, status, with_kv=not options.no_kv)
        exported = exporter.write(session, options.branch, format, target)
    status.clear()
    if as_json(options):
        figures = {"turns": exported.num_turns, "tokens": exported.num_tokens, "blocks": exported.num_blocks}
        values = {"file": None if target is None else str(target), "session": session.id, "format": format}
        Output().json(values | figures | {"bytes": exported.num_bytes, "digest": exported.digest})
        return
    status.note(exported.words)


class Exporter:
    """Writes sessions of a store to files."""

    def __init__(
        self, settings: Settings, store: SessionStore, status: Status, *, with_kv: bool = True
    ) -> None:
        self._settings = settings
        self._store = store
        self._status = status
        self._with_kv = with_kv

    def write(self, session: Session, branch: str | None, format: Format, target: Path | None) -> Exported:
        """Write a session, or one branch of it."""
        if branch is None and format.is_one_branch:
            branch = session.active_branch
        branches, turns = _chosen(self._store, session, branch)
        num_tokens = sum(len(turn.token_ids or ()) for turn in turns)
        is_encrypted = self._settings.engine.sealer is not None
        if format is Format.BUNDLE:
            written = write_session(
                self._settings, session, branches, turns, target, self._status, with_kv=self._with_kv
            )
            return Exported(
                target=target,
                format=format,
                num_turns=len(turns),
                num_tokens=num_tokens,
                num_bytes=written.num_bytes,
                num_blocks=written.num_blocks,
                digest=written.digest.hex(),
                is_encrypted_at_home=is_encrypted,
            )
        data = readable_text(format, session, branches, turns).encode()
        with _opened(target) as write:
            write(data)
        return Exported(
            target=target,
            format=format,
            num_turns=len(turns),
            num_tokens=num_tokens,
            num_bytes=len(data),
            is_encrypted_at_home=is_encrypted,
        )


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
        write = stack.enter_context(_opened(target))
        return write_bundle(
            write,
            _manifest(session, branches, turns, kv),
            [replace(turn, model=portable_name(turn.model)) for turn in turns],
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


def _refuse_stdout(options: ExportOptions, format: Format) -> None:
    if format is Format.BUNDLE and Output().is_terminal:
        raise UsageError("a bundle is no text for a terminal; give a file with -o, or a pipe")
    if as_json(options):
        raise UsageError("--json and -o - both write to standard output; choose one")


def target_of(output: Path | None, session: Session, format: Format) -> Path:
    """Return the file to write; its name is the session's unless `output` is a file.

    Raises: UsageError: a device, a pipe or the like has that name.
    """
    target = output or Path(file_name(session, format))
    if target.is_dir():
        target = target / file_name(session, format)
    if target.exists() and not target.is_file():
        raise UsageError(f"{target} is no regular file, and would be replaced by one; `-o -` prints instead")
    return target


def file_name(session: Session, format: Format) -> str:
    """Return a name for a session's file that every file system takes."""
    words = "-".join(re.findall(r"\w+", session.title.lower()))
    words = words[:_MAX_NAME_LEN].encode()[:_MAX_NAME_BYTES].decode(errors="ignore")
    return (words.strip("-_") or session.id) + format.suffix


def _opened(target: Path | None) -> AbstractContextManager[Callable[[bytes], object]]:
    """Give a function that writes to a file, whole or not at all; to standard output for None."""
    return nullcontext(Output().data) if target is None else new_file(target)


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


def _shelf(settings: Settings, kv: BundleModel) -> BundleBlockStore:
    fields = recall(settings.paths.cache_dir, kv.fingerprint)
    assert fields is not None
    return BundleBlockStore(
        settings.paths.cache_dir,
        kv.fingerprint,
        layouts_of(fields),
        block_size=kv.block_size,
        sealer=settings.engine.sealer,
    )


def _manifest(
    session: Session, branches: Sequence[Branch], turns: Sequence[Turn], kv: BundleModel | None
) -> Manifest:
    numbers = {turn.id: number for number, turn in enumerate(turns)}
    names = [branch.name for branch in branches]
    return Manifest(
        title=session.title,
        system=session.system,
        model=portable_name(session.model),
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
