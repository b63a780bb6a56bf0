"""`kvchat pack make`: a beginning of conversations is computed, and kept."""

from collections.abc import Sequence
from contextlib import closing
from time import monotonic, sleep, time
from typing import Annotated

from kvchat.app.composition import borrowed_or_started, opened, start_worker
from kvchat.app.config import Settings
from kvchat.app.ipc.client import EngineClientProxy
from kvchat.app.open_store import open_cache
from kvchat.app.retention.session_pins import MOST_KEPT
from kvchat.app.unlock import alone
from kvchat.chat.service import Chat
from kvchat.cli.commands.ask.prompt import piped_stdin, read_prompt
from kvchat.cli.commands.pack.pack import PackOnDisk, on_disk_of, pack_store, summary_of, values_of
from kvchat.cli.output.engine_wait import wait_until_loaded
from kvchat.cli.output.logs import start_log
from kvchat.cli.output.signals import StopRequested, StopSignals
from kvchat.cli.output.streams import Status, tell
from kvchat.cli.parser.options import EngineOptions, Files, Json, Ndjson, NoAttach
from kvchat.cli.parser.typer_parameters import Argument, Option, option_class
from kvchat.engine.memory.disk.cache_admin import CacheAdmin
from kvchat.engine.models.checkpoints.prepared import blocks_limit
from kvchat.errors import PinRefused, StorageError, UsageError
from kvchat.session.packs import Pack, new_pack_id
from kvchat.text.figures import bytes_text, plural
from kvchat.text.fit_text import one_line


@option_class
class MakeOptions(EngineOptions):
    name: Annotated[str, Argument(help="Name of the pack.", metavar="NAME")]
    file: Files = None
    json: Json = False
    ndjson: Ndjson = False
    force: Annotated[bool, Option("--force", help="Replace it if it exists.")] = False
    no_attach: NoAttach = False


_SAVE_S = 60.0
_POLL_S = 0.05


def make_pack(options: MakeOptions) -> int:
    """Compute a beginning and keep it under a name."""
    if options.temp:
        raise UsageError("--temp keeps nothing, and a pack is there to be kept; leave it out")
    settings = options.settings()
    text = _text_of(options, settings)
    name = _accepted(options.name)
    if not options.force:
        pack_store(settings).refuse_taken(name)
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
                patience_s = _SAVE_S if isinstance(kvchat.engine, EngineClientProxy) else 0.0
        except StopRequested:
            return signals.exit_code or 0
    with closing(open_cache(settings)) as admin:
        on_disk = _finish(pack, settings, admin, patience_s)
    tell(options, values_of(pack, on_disk), f"{pack.name}: {summary_of(pack, on_disk)}")
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
        raise StorageError("blocks are not stored on disk here, so no pack can be made; see `kvchat doctor`")
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
    with closing(open_cache(settings)) as admin:
        admin.keep(pack.id, bytes.fromhex(pack.fingerprint), pack.keys)
        status.show(f"computing {plural(len(pack.token_ids), 'token')} …")
        reading = chat.variants.read(pack.token_ids)
        try:
            reading.run()
        except BaseException:
            admin.let_go(pack.id)
            raise
        finally:
            reading.stop()
    status.clear()


def _finish(pack: Pack, settings: Settings, admin: CacheAdmin, patience_s: float) -> PackOnDisk:
    """Write a pack whose blocks are on their way to the disk, once they are there.

    Args:
        patience_s: how long they may take; an engine of this process has written all when it is closed.

    Raises:
        StorageError: they do not get there.
        PinRefused: they take too much of the disk's limit.
    """
    try:
        on_disk = _awaited(pack, admin, patience_s)
        limit = blocks_limit(settings.engine.disk_bytes, settings.paths.cache_dir)
        if limit is not None and (not on_disk.is_whole or admin.kept_bytes() * MOST_KEPT > limit):
            raise PinRefused(
                f"the packs would keep more than one byte in {MOST_KEPT} of the {bytes_text(limit)} that"
                " blocks may take on disk, pinned sessions counted; remove one with `kvchat pack rm`, unpin a"
                " session, or give more --kv-disk-bytes"
            )
        if not on_disk.is_whole:
            raise StorageError(
                "the blocks of the pack did not reach the disk; `kvchat cache status` says what keeps them"
            )
        with alone(settings.paths):
            store = pack_store(settings)
            replaced = [one for one in store.all() if one.name == pack.name]
            store.put(pack)
    except BaseException:
        admin.let_go(pack.id)
        raise
    for one in replaced:
        admin.let_go(one.id)
    return on_disk


def _awaited(pack: Pack, admin: CacheAdmin, patience_s: float) -> PackOnDisk:
    deadline_s = monotonic() + patience_s
    while not (on_disk := on_disk_of(pack, admin)).is_whole and monotonic() < deadline_s:
        sleep(_POLL_S)
    return on_disk
