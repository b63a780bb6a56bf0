"""`kvchat pack`: beginnings of conversations that are computed once, and kept. Loads no model."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from time import localtime, strftime
from typing import Annotated

from kvchat.app.config import Settings
from kvchat.app.open_store import open_cache
from kvchat.app.unlock import alone
from kvchat.cli.output.streams import Output, Status, tell, written_as_json
from kvchat.cli.parser.options import ListOptions
from kvchat.cli.parser.shell_completion import complete_pack
from kvchat.cli.parser.typer_parameters import Argument, option_class
from kvchat.engine.memory.disk.cache_admin import CacheAdmin
from kvchat.session.packs import Pack, PackStore
from kvchat.text.figures import bytes_text, count_text
from kvchat.text.fit_text import one_line


@option_class
class PackOptions(ListOptions):
    name: Annotated[str, Argument(help="Its name.", metavar="NAME", autocompletion=complete_pack)]


@option_class
class RemovePacksOptions(ListOptions):
    names: Annotated[
        list[str], Argument(help="Packs to remove.", metavar="NAME...", autocompletion=complete_pack)
    ]


_INDENT = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class PackOnDisk:
    """What of a pack is on disk. `is_whole`: all of its blocks are."""

    is_whole: bool
    num_bytes: int


def pack_store(settings: Settings) -> PackStore:
    """Return the packs of these settings' conversations."""
    return PackStore(settings.paths.packs_dir, settings.engine.encryptor)


def list_packs(options: ListOptions) -> None:
    """List all packs by name."""
    settings = options.settings()
    packs = pack_store(settings).all()
    found = _all_on_disk(packs, settings)
    output = Output()
    if written_as_json(options, output, (values_of(pack, found[pack.id]) for pack in packs)):
        return
    output.columns([(pack.name, summary_of(pack, found[pack.id])) for pack in packs], indent=_INDENT)


def show_pack(options: PackOptions) -> None:
    """Say what is known of a pack, and print its text."""
    settings = options.settings()
    pack = pack_store(settings).find(options.name)
    on_disk = _all_on_disk([pack], settings)[pack.id]
    made = strftime("%Y-%m-%d %H:%M", localtime(pack.created_at))
    lines = [f"{pack.name}  {summary_of(pack, on_disk)} · made {made}"]
    if pack.sources:
        lines.append(f"from {', '.join(pack.sources)}")
    tell(options, values_of(pack, on_disk) | {"text": pack.text}, *lines, "", pack.text)


def remove_packs(options: RemovePacksOptions) -> None:
    """Remove packs. Their blocks stay until room is needed, like any others."""
    settings = options.settings()
    store = pack_store(settings)
    packs = [store.find(name) for name in dict.fromkeys(options.names)]
    with alone(settings.paths):
        for pack in packs:
            store.remove(pack)
    if settings.paths.cache_dir.is_dir():
        with closing(open_cache(settings)) as admin:
            for pack in packs:
                admin.let_go(pack.id)
    if not written_as_json(options, Output(), ({"name": pack.name} for pack in packs)):
        Status(quiet=options.quiet).note(f"removed {', '.join(pack.name for pack in packs)}")


def _all_on_disk(packs: Sequence[Pack], settings: Settings) -> dict[str, PackOnDisk]:
    if not settings.paths.cache_dir.is_dir():
        return {pack.id: PackOnDisk(is_whole=False, num_bytes=0) for pack in packs}
    with closing(open_cache(settings)) as admin:
        return {pack.id: on_disk_of(pack, admin) for pack in packs}


def on_disk_of(pack: Pack, admin: CacheAdmin) -> PackOnDisk:
    """Return what of a pack is on disk, by the index."""
    found = admin.found(bytes.fromhex(pack.fingerprint), pack.keys)
    return PackOnDisk(
        is_whole=len(found) == len(pack.keys), num_bytes=sum(block.num_bytes for block in found.values())
    )


def summary_of(pack: Pack, on_disk: PackOnDisk) -> str:
    """Return a pack in one line, but for its name."""
    kept = bytes_text(on_disk.num_bytes) if on_disk.is_whole else "computed again at its next use"
    return f"{count_text(len(pack.token_ids))} tokens · {kept} · {one_line(pack.model)}"


def values_of(pack: Pack, on_disk: PackOnDisk) -> dict[str, object]:
    """Return a pack for JSON, but for its text and ids."""
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
