"""Exporter: writes a session as one file, with its KV or as text to read. Loads no model."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from time import localtime, strftime

from msgspec import convert

from kvchat.app.config import Settings
from kvchat.app.export.formats import Format
from kvchat.engine.memory.disk.store import DiskStore
from kvchat.engine.models.known_fingerprints import layouts_of, recall
from kvchat.errors import UsageError
from kvchat.session.bundle.manifest import (
    FORMAT,
    BundleBranch,
    BundleGroup,
    BundleLayout,
    BundleModel,
    Manifest,
)
from kvchat.session.bundle.session_blocks import session_blocks
from kvchat.session.bundle.writer import SourceBlock, Written, new_file, write_bundle
from kvchat.session.kv.block_references import chain_root
from kvchat.session.render.markdown_text import Document, DocumentMessage, markdown_text
from kvchat.session.store import SessionStore
from kvchat.session.timestamp_limits import LATEST
from kvchat.session.tree import Branch, Finish, Role, Session, Turn
from kvchat.text.answer_footer import ENDINGS, footer_parts
from kvchat.text.figures import bytes_text, plural
from kvchat.text.fit_text import UNTITLED
from kvchat.text.trust import trust_words

SUFFIX = Format.BUNDLE.suffix
Show = Callable[[str], object]
Write = Callable[[bytes], object]
_MAX_NAME_LEN = 80
_MAX_NAME_BYTES = 200
"""File systems take 255; what is written first has a longer name."""

_ENDINGS = ENDINGS | {Finish.PARTIAL: "still being written"}


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


class Exporter:
    """Writes sessions of a store to files.

    Args:
        show: told what is going on.
        stdout: takes the bytes of a session that is written to no file.
    """

    def __init__(
        self,
        settings: Settings,
        store: SessionStore,
        *,
        with_kv: bool = True,
        show: Show | None = None,
        stdout: Write | None = None,
    ) -> None:
        self._settings = settings
        self._store = store
        self._with_kv = with_kv
        self._show = show
        self._stdout = stdout

    def write(self, session: Session, branch: str | None, format: Format, target: Path | None) -> Exported:
        """Write a session, or one branch of it."""
        if branch is None and format.is_one_branch:
            branch = session.active_branch
        branches, turns = _chosen(self._store, session, branch)
        num_blocks, digest = 0, None
        if format is Format.BUNDLE:
            with self._opened(target) as write:
                written = write_session(
                    self._settings, session, branches, turns, write, with_kv=self._with_kv, show=self._show
                )
            num_bytes, num_blocks, digest = written.num_bytes, written.num_blocks, written.digest.hex()
        else:
            data = _readable_text(format, session, branches, turns).encode()
            with self._opened(target) as write:
                write(data)
            num_bytes = len(data)
        return Exported(
            target=target,
            format=format,
            num_turns=len(turns),
            num_tokens=sum(len(turn.token_ids or ()) for turn in turns),
            num_bytes=num_bytes,
            num_blocks=num_blocks,
            digest=digest,
            is_encrypted_at_home=self._settings.engine.encryptor is not None,
        )

    def _opened(self, target: Path | None) -> AbstractContextManager[Write]:
        """Give a function that writes to a file, whole or not at all; to standard output for None."""
        if target is not None:
            return new_file(target)
        assert self._stdout is not None
        return nullcontext(self._stdout)


def write_session(
    settings: Settings,
    session: Session,
    branches: Sequence[Branch],
    turns: Sequence[Turn],
    write: Write,
    *,
    with_kv: bool = True,
    show: Show | None = None,
) -> Written:
    """Write a session's turns, and the blocks that are stored of them, as a bundle.

    Args:
        write: takes the bundle's bytes, in order.
        show: told what is going on.
    """

    def progress(num_bytes: int) -> None:
        if show is not None:
            show(f"writing · {bytes_text(num_bytes)} …")

    kv = _model(settings, turns, with_kv=with_kv)
    blocks: Iterable[SourceBlock] = ()
    with ExitStack() as stack:
        if kv is not None and kv.layouts:
            assert kv.fields is not None
            block_store = DiskStore(
                settings.paths.cache_dir,
                fingerprint=kv.fingerprint,
                layouts=layouts_of(kv.fields),
                block_size=kv.block_size,
                limit_bytes=None,
                encryptor=settings.engine.encryptor,
            )
            stack.enter_context(closing(block_store))
            blocks = session_blocks(block_store, turns, kv.fingerprint, session.namespace, kv.block_size)
        return write_bundle(
            write,
            _manifest(session, branches, turns, kv),
            [replace(turn, model=_portable_name(turn.model)) for turn in turns],
            blocks,
            progress,
        )


def _chosen(
    store: SessionStore, session: Session, branch: str | None
) -> tuple[Sequence[Branch], Sequence[Turn]]:
    if branch is None:
        return store.branches(session.id), store.all_turns(session.id)
    chosen = store.branch(session.id, branch)
    return (chosen,), store.turns_to(chosen.leaf_id)


def target_of(output: Path | None, session: Session, format: Format) -> Path:
    """Return the file to write; its name is the session's unless `output` is a file.

    Raises: UsageError: a device, a pipe or the like has that name.
    """
    target = output or Path(file_name(session, format))
    if target.is_dir():
        target = target / file_name(session, format)
    if target.exists() and not target.is_file():
        raise UsageError(
            f"{target} is not a regular file, and would be replaced by one; `-o -` prints instead"
        )
    return target


def file_name(session: Session, format: Format) -> str:
    """Return a name for a session's file that every file system takes."""
    words = "-".join(re.findall(r"\w+", session.title.lower()))
    words = words[:_MAX_NAME_LEN].encode()[:_MAX_NAME_BYTES].decode(errors="ignore")
    return (words.strip("-_") or session.id) + format.suffix


def _model(settings: Settings, turns: Sequence[Turn], *, with_kv: bool) -> BundleModel | None:
    """Return whose blocks the session would go on with: those of the model that answered last."""
    named = [turn.fingerprint for turn in turns if chain_root(turn.fingerprint) is not None]
    if not named:
        return None
    fingerprint = bytes.fromhex(named[-1])
    fields = recall(settings.paths.cache_dir, fingerprint)
    layouts = layouts_of(fields) if fields is not None and with_kv else {}
    return BundleModel(
        digest=named[-1],
        fields=None if fields is None else dict(fields),
        block_size=settings.engine.block_size if fields is None else fields["block_size"],
        groups=tuple(
            BundleGroup(group, convert(layout, BundleLayout, from_attributes=True))
            for group, layout in sorted(layouts.items())
        ),
    )


def _manifest(
    session: Session, branches: Sequence[Branch], turns: Sequence[Turn], kv: BundleModel | None
) -> Manifest:
    numbers = {turn.id: number for number, turn in enumerate(turns)}
    names = [branch.name for branch in branches]
    return Manifest(
        format=FORMAT,
        title=session.title,
        system=session.system,
        model=_portable_name(session.model),
        created_at=min(session.created_at, LATEST),
        updated_at=min(session.updated_at, LATEST),
        active_branch=session.active_branch if session.active_branch in names else names[0],
        branches=tuple(
            BundleBranch(
                name=branch.name,
                leaf=None if branch.leaf_id is None else numbers[branch.leaf_id],
                updated_at=min(branch.updated_at, LATEST),
            )
            for branch in branches
        ),
        num_turns=len(turns),
        kv=kv,
    )


def _portable_name(model: str) -> str:
    """Return a model's name without where it lies on this machine."""
    return Path(model).name if Path(model).is_absolute() else model


def _readable_text(
    format: Format, session: Session, branches: Sequence[Branch], turns: Sequence[Turn]
) -> str:
    """Return a session as text; Markdown and the web page are of the first branch."""
    if format is Format.JSON:
        from kvchat.session.render.json_text import json_text

        portable = [replace(turn, model=_portable_name(turn.model)) for turn in turns]
        return json_text(replace(session, model=_portable_name(session.model)), branches, portable)
    document = _document(session, branches[0], turns)
    if format is Format.MARKDOWN:
        return markdown_text(document)
    from kvchat.session.render.web_page import web_page

    return web_page(document)


def _document(session: Session, branch: Branch, turns: Sequence[Turn]) -> Document:
    return Document(
        title=session.title or UNTITLED,
        facts=tuple(_facts(session, branch, turns)),
        system=session.system,
        messages=tuple(
            DocumentMessage(
                role=turn.role, text=turn.text, reasoning=turn.reasoning, notes=_notes(turn, session)
            )
            for turn in turns
        ),
    )


def _facts(session: Session, branch: Branch, turns: Sequence[Turn]) -> Iterator[str]:
    if session.model:
        yield _portable_name(session.model)
    yield f"branch {branch.name}"
    yield strftime("%Y-%m-%d %H:%M", localtime(session.created_at))
    yield plural(len(turns), "message")
    yield plural(sum(len(turn.token_ids or ()) for turn in turns), "token")
    if trust := trust_words(session):
        yield trust


def _notes(turn: Turn, session: Session) -> tuple[str, ...]:
    if turn.role is Role.USER:
        return ()
    ending = (_ENDINGS[turn.finish],) if turn.finish in _ENDINGS else ()
    return ending + footer_parts(turn, session)
