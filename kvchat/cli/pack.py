"""`kvchat pack`: beginnings of conversations that are computed once, and kept."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from time import localtime, monotonic, sleep, strftime, time

from kvchat.chat import Chat
from kvchat.cli.compose import borrowed_or_started, opened, start_worker
from kvchat.cli.logs import start_log
from kvchat.cli.options import ListOptions
from kvchat.cli.pack_options import MakeOptions, PackOptions, RemovePacksOptions
from kvchat.cli.prompt import piped_stdin, read_prompt
from kvchat.cli.signals import StopAsked, StopSignals
from kvchat.cli.streams import Output, Status
from kvchat.cli.unlocking import alone
from kvchat.cli.waiting import wait_until_loaded
from kvchat.config import Settings
from kvchat.engine.memory.block_catalog import BlockCatalog
from kvchat.errors import PinRefused, StorageError, UsageError
from kvchat.lending.borrower import Borrowed
from kvchat.session.packs import Pack, PackShelf, new_pack_id
from kvchat.ui.figures import bytes_text, count_text, plural
from kvchat.ui.plain_text import one_line

_MOST_KEPT = 2
"""At most one byte in so many of the disk's limit may be kept."""
_SAVE_S = 60.0
_POLL_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class OnDisk:
    """What of a pack is on disk. `is_whole`: all of its blocks are."""

    is_whole: bool
    num_bytes: int


def shelf_of(settings: Settings) -> PackShelf:
    """Return the packs of these settings' conversations."""
    return PackShelf(settings.paths.packs_dir, settings.engine.sealer)


# Making


def make_pack(options: MakeOptions) -> int:
    """Compute a beginning and keep it under a name."""
    if options.temp:
        raise UsageError("--temp keeps nothing, and a pack is there to be kept; leave it out")
    settings = options.settings()
    text = _text_of(options, settings)
    name = _accepted(options.name)
    if not options.force:
        shelf_of(settings).refuse_taken(name)
    start_log(settings.paths, verbose=options.verbose)
    status = Status(quiet=options.quiet, color=settings.display.color)
    factory = start_worker if options.no_attach else borrowed_or_started(settings.paths.runtime_dir)
    with StopSignals() as signals:
        try:
            with opened(settings, factory) as kvchat:
                chat = kvchat.load(None, options.model, options.adapter)
                wait_until_loaded(kvchat.engine, status)
                pack = _drawn_up(chat, name, text, [str(file) for file in options.file or ()])
                _compute(chat, pack, settings, status)
                patience_s = _SAVE_S if isinstance(kvchat.engine, Borrowed) else 0.0
        except StopAsked:
            return signals.exit_code or 0
    with closing(_catalog(settings)) as catalog:
        on_disk = _finish(pack, settings, catalog, patience_s)
    if options.json:
        Output().json(_values(pack, on_disk))
    else:
        Output().line(f"{pack.name}: {_words(pack, on_disk)}")
    return 0


def _text_of(options: MakeOptions, settings: Settings) -> str:
    """Return the system prompt that was given, and the documents behind it."""
    documents = read_prompt([], options.file or (), piped_stdin(), is_optional=True)
    text = "\n\n".join(part for part in (settings.system, documents) if part)
    if not text:
        raise UsageError("a pack needs a text: a document with -f, a system prompt with --system, or both")
    return text


def _accepted(name: str) -> str:
    name = one_line(name).strip()
    if not name or name.startswith("-"):
        raise UsageError("a pack needs a name, such as `spec`")
    return name


def _drawn_up(chat: Chat, name: str, text: str, sources: Sequence[str]) -> Pack:
    """Return the pack of a text, whose blocks are not there yet."""
    info, now = chat.engine.info(), time()
    token_ids = chat.variants.beginning_ids(text, now)
    if not info.disk_enabled:
        raise StorageError("blocks are not kept on disk here, so no pack can be; see `kvchat doctor`")
    return Pack(
        id=new_pack_id(),
        name=name,
        text=text,
        sources=tuple(sources),
        model=chat.model,
        adapter=chat.adapter,
        fingerprint=info.fingerprint,
        cache_format=info.cache_format,
        token_ids=token_ids,
        block_size=info.block_size,
        created_at=now,
    )


def _compute(chat: Chat, pack: Pack, settings: Settings, status: Status) -> None:
    """Compute a pack's blocks and wait until they are on disk, or until its engine is to be closed."""
    with closing(_catalog(settings)) as catalog:
        catalog.keep(pack.id, bytes.fromhex(pack.fingerprint), pack.keys)
        status.show(f"computing {plural(len(pack.token_ids), 'token')} …")
        reading = chat.variants.read(pack.token_ids)
        try:
            reading.run()
        except BaseException:
            catalog.let_go(pack.id)
            raise
        finally:
            reading.stop()
    status.clear()


def _finish(pack: Pack, settings: Settings, catalog: BlockCatalog, patience_s: float) -> OnDisk:
    """Write a pack whose blocks are on their way to the disk, once they are there.

    Args:
        patience_s: how long they may take; an engine of this process has written all when it is closed.

    Raises:
        StorageError: they do not get there.
        PinRefused: they take too much of the disk's limit.
    """
    try:
        on_disk = _awaited(pack, catalog, patience_s)
        limit = settings.engine.disk_bytes
        if limit is not None and (not on_disk.is_whole or catalog.kept_bytes() * _MOST_KEPT > limit):
            raise PinRefused(
                f"the packs would keep more than one byte in {_MOST_KEPT} of the {bytes_text(limit)} that"
                " blocks may take on disk; remove one with `kvchat pack rm`, or give more --kv-disk-bytes"
            )
        if not on_disk.is_whole:
            raise StorageError(
                "the blocks of the pack did not reach the disk; `kvchat cache status` says what keeps them"
            )
        with alone(settings.paths):
            shelf = shelf_of(settings)
            replaced = [one for one in shelf.all() if one.name == pack.name]
            shelf.put(pack)
    except BaseException:
        catalog.let_go(pack.id)
        raise
    for one in replaced:
        catalog.let_go(one.id)
    return on_disk


def _awaited(pack: Pack, catalog: BlockCatalog, patience_s: float) -> OnDisk:
    deadline_s = monotonic() + patience_s
    while not (on_disk := _on_disk(pack, catalog)).is_whole and monotonic() < deadline_s:
        sleep(_POLL_S)
    return on_disk


# Looking


def list_packs(options: ListOptions) -> None:
    """List all packs by name."""
    settings = options.settings()
    packs = shelf_of(settings).all()
    found = _all_on_disk(packs, settings)
    if options.json:
        Output().json([_values(pack, found[pack.id]) for pack in packs])
        return
    for pack in packs:
        Output().line(f"{pack.name}  {_words(pack, found[pack.id])}")


def show_pack(options: PackOptions) -> None:
    """Say what is known of a pack, and print its text."""
    settings = options.settings()
    pack = shelf_of(settings).find(options.name)
    on_disk = _all_on_disk([pack], settings)[pack.id]
    output = Output()
    if options.json:
        output.json(_values(pack, on_disk) | {"text": pack.text})
        return
    made = strftime("%Y-%m-%d %H:%M", localtime(pack.created_at))
    output.line(f"{pack.name}  {_words(pack, on_disk)} · made {made}")
    if pack.sources:
        output.line(f"from {', '.join(pack.sources)}")
    output.line()
    output.line(pack.text)


def remove_packs(options: RemovePacksOptions) -> None:
    """Remove packs. Their blocks stay until room is needed, like any others."""
    settings = options.settings()
    shelf = shelf_of(settings)
    packs = [shelf.find(name) for name in dict.fromkeys(options.names)]
    with alone(settings.paths):
        for pack in packs:
            shelf.remove(pack)
    if settings.paths.cache_dir.is_dir():
        with closing(_catalog(settings)) as catalog:
            for pack in packs:
                catalog.let_go(pack.id)
    Status(quiet=options.quiet).note(f"removed {', '.join(pack.name for pack in packs)}")


def _all_on_disk(packs: Sequence[Pack], settings: Settings) -> dict[str, OnDisk]:
    if not settings.paths.cache_dir.is_dir():
        return {pack.id: OnDisk(is_whole=False, num_bytes=0) for pack in packs}
    with closing(_catalog(settings)) as catalog:
        return {pack.id: _on_disk(pack, catalog) for pack in packs}


def _on_disk(pack: Pack, catalog: BlockCatalog) -> OnDisk:
    found = catalog.found(bytes.fromhex(pack.fingerprint), pack.keys)
    return OnDisk(
        is_whole=len(found) == len(pack.keys), num_bytes=sum(block.num_bytes for block in found.values())
    )


def _catalog(settings: Settings) -> BlockCatalog:
    return BlockCatalog(settings.paths.cache_dir, sealer=settings.engine.sealer)


def _words(pack: Pack, on_disk: OnDisk) -> str:
    kept = bytes_text(on_disk.num_bytes) if on_disk.is_whole else "computed again at its next use"
    return f"{count_text(len(pack.token_ids))} tokens · {kept} · {one_line(pack.model)}"


def _values(pack: Pack, on_disk: OnDisk) -> dict[str, object]:
    return {
        "name": pack.name,
        "num_tokens": len(pack.token_ids),
        "num_bytes": on_disk.num_bytes,
        "is_computed": on_disk.is_whole,
        "model": pack.model,
        "adapter": pack.adapter,
        "cache_format": pack.cache_format,
        "fingerprint": pack.fingerprint,
        "sources": list(pack.sources),
        "created_at": pack.created_at,
    }
