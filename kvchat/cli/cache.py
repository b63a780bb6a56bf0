"""`kvchat cache`: what the blocks on disk amount to. Loads no model."""

from contextlib import closing
from dataclasses import asdict
from pathlib import Path

from kvchat.cli.options import ListOptions, PlaceOptions
from kvchat.cli.streams import Output
from kvchat.config import Settings
from kvchat.engine.memory.block_catalog import BlockCatalog
from kvchat.engine.memory.block_index import DiskUsage
from kvchat.ui.figures import bytes_text, plural

_SHORT_FINGERPRINT = 12


def cache_status(options: ListOptions) -> None:
    """Say what is kept on disk, by model."""
    settings = options.settings()
    output = Output()
    usages = disk_usages(settings.paths.cache_dir)
    if options.json:
        output.json(_status_values(settings, usages))
        return
    total = sum(usage.num_bytes for usage in usages.values())
    limit = settings.engine.disk_bytes
    of_limit = f" of {bytes_text(limit)}" if limit is not None else ""
    output.line(f"disk  {bytes_text(total)}{of_limit} in {settings.paths.cache_dir}")
    for fingerprint, usage in sorted(usages.items(), key=lambda item: -item[1].num_bytes):
        output.line(f"  {fingerprint.hex()[:_SHORT_FINGERPRINT]}  {_usage_words(usage)}")
    output.line("device and host memory are used only while a model is loaded")


def cache_path(options: PlaceOptions) -> None:
    """Print the directory of the blocks. It may be deleted at any time; conversations are not in it."""
    Output().line(str(options.settings().paths.cache_dir))


def disk_usages(cache_dir: Path) -> dict[bytes, DiskUsage]:
    """Return what each fingerprint has on disk; creates nothing where there is nothing."""
    if not cache_dir.is_dir():
        return {}
    with closing(BlockCatalog(cache_dir)) as catalog:
        return catalog.usages()


def _status_values(settings: Settings, usages: dict[bytes, DiskUsage]) -> dict[str, object]:
    return {
        "cache_dir": str(settings.paths.cache_dir),
        "disk_bytes": sum(usage.num_bytes for usage in usages.values()),
        "disk_limit_bytes": settings.engine.disk_bytes,
        "fingerprints": {fingerprint.hex(): asdict(usage) for fingerprint, usage in usages.items()},
    }


def _usage_words(usage: DiskUsage) -> str:
    blocks = plural(usage.num_blocks - usage.num_tails, "full block")
    return f"{bytes_text(usage.num_bytes)} in {blocks} and {plural(usage.num_tails, 'tail')}"
