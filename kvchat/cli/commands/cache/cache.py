"""`kvchat cache`: what the blocks on disk, and those of a server, amount to. Loads no model."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from shutil import disk_usage
from typing import Annotated, ClassVar

from kvchat.app.config import RemoteSettings, Settings
from kvchat.app.open_store import open_cache, open_store
from kvchat.app.retention.block_owners import evicted, holders
from kvchat.cli.output.streams import Output, as_json, tell, written_as_json
from kvchat.cli.parser.options import ListOptions, RemoteKeyFile, RemoteUrl, session_argument
from kvchat.cli.parser.typer_parameters import Option, option_class
from kvchat.engine.api.server_cache import ServerCache
from kvchat.engine.memory.disk.index import DiskUsage, WrittenBytes
from kvchat.engine.models.checkpoints.prepared import PREPARED_DIR, prepared_bytes
from kvchat.errors import RemoteError, StorageError, UsageError
from kvchat.platform.parsing import parse_size
from kvchat.text.cache_usage import request_words, reuse_words, share_words
from kvchat.text.figures import bytes_text, plural
from kvchat.text.fit_text import one_line


@option_class
class StatusOptions(ListOptions):
    is_talk: ClassVar[bool] = True
    remote: RemoteUrl = None
    remote_key_file: RemoteKeyFile = None


@option_class
class EvictOptions(ListOptions):
    sessions: Annotated[
        list[str] | None,
        session_argument("Remove what no other session shares.", metavar="[SESSION]...", show_default=False),
    ] = None
    to: Annotated[
        str | None, Option(help="Remove the least recently used, down to this size.", metavar="SIZE")
    ] = None
    all: Annotated[bool, Option("--all", help="Remove all but packs and pinned sessions.")] = False

    @property
    def to_bytes(self) -> int | None:
        """How much is to be left; None where sessions are named."""
        if self.to is None:
            return 0 if self.all else None
        try:
            return parse_size(self.to)
        except ValueError as error:
            raise UsageError(f"--to {error}") from error


_SHORT_FINGERPRINT = 12
_LITTLE_BYTES = 64 * 2**20
"""Less free space than this is told: a block of a large model takes some megabytes."""
_UNTOLD = "its /metrics tell nothing of one; vLLM, SGLang, llama.cpp and `kvchat serve` report theirs"


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskState:
    """What is on disk; None where it cannot be told. `problem` says what keeps blocks from being saved."""

    usages: dict[bytes, DiskUsage] | None
    written: WrittenBytes | None
    problem: str | None

    @property
    def num_bytes(self) -> int | None:
        return None if self.usages is None else sum(usage.num_bytes for usage in self.usages.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class _ServerState:
    """A server. `cache`: None where it reports nothing; `problem`: why not."""

    url: str
    cache: ServerCache | None
    problem: str | None

    def values(self) -> dict[str, object]:
        reported = asdict(self.cache or ServerCache())
        return {"url": self.url, "problem": self.problem} | reported

    def lines(self) -> Iterator[str]:
        yield f"server  {self.url}"
        if self.cache is None:
            yield f"  its cache is unknown: {self.problem}"
            return
        yield f"  device    {share_words(self.cache.usage)}"
        yield f"  host      {share_words(self.cache.host_usage)}"
        yield f"  reused    {reuse_words(self.cache)}"
        yield f"  requests  {request_words(self.cache)}"


def cache_status(options: StatusOptions) -> None:
    """Say what is kept on disk, by model, and what a server reports of its cache where one answers."""
    settings = options.settings()
    output = Output()
    state = disk_state(settings)
    server = _server_state(settings.remote)
    weights = prepared_bytes(settings.paths.cache_dir / PREPARED_DIR)
    if as_json(options):
        output.json(
            {
                "cache_dir": str(settings.paths.cache_dir),
                "disk_bytes": state.num_bytes,
                "weights_bytes": weights,
                "disk_limit_bytes": settings.engine.disk_bytes,
                "written": None if state.written is None else asdict(state.written),
                "daily_limit_bytes": settings.engine.disk_daily_bytes,
                "problem": state.problem,
                "fingerprints": {name.hex(): asdict(usage) for name, usage in (state.usages or {}).items()},
                "server": None if server is None else server.values(),
            }
        )
        return
    total = "unknown" if state.num_bytes is None else bytes_text(state.num_bytes)
    output.line(f"disk  {total}{_of(settings.engine.disk_bytes)} in {settings.paths.cache_dir}")
    for fingerprint, usage in sorted((state.usages or {}).items(), key=lambda item: -item[1].num_bytes):
        output.line(f"  {fingerprint.hex()[:_SHORT_FINGERPRINT]}  {_usage_words(usage)}")
    if weights:
        output.line(f"weights  {bytes_text(weights)} prepared; within the limit of the disk")
    if state.written is not None:
        today, ever = bytes_text(state.written.today), bytes_text(state.written.total)
        output.line(f"written  {today}{_of(settings.engine.disk_daily_bytes)} today, {ever} in all")
    if state.problem is not None:
        output.line(f"problem  {state.problem}")
    output.line("device and host memory are used only while a model is loaded")
    for line in () if server is None else server.lines():
        output.line(line)


def cache_gc(options: ListOptions) -> None:
    """Remove the blocks that no session refers to. Blocks of sessions in another data directory go too."""
    with closing(open_store(options.settings())) as store:
        removed = store.collect()
    _tell_removed(options, removed.freed_blocks, removed.freed_bytes)


def list_blocks(options: ListOptions) -> None:
    """List whose blocks are on disk: of sessions, of packs, and of nobody any more."""
    settings, output = options.settings(), Output()
    with closing(open_store(settings)) as store:
        rows = holders(store, settings)
    if written_as_json(options, output, map(asdict, rows)):
        return
    for row in rows:
        shared = row.num_bytes - row.own_bytes
        of_others = f", {bytes_text(shared)} shared" if shared else ""
        output.line(f"{bytes_text(row.num_bytes):>9}  {row.kind:<7}  {one_line(row.name)}{of_others}")


def evict_blocks(options: EvictOptions) -> None:
    """Remove KV from the disk; conversations stay, and compute it again when they go on."""
    ways = [options.sessions is not None, options.to is not None, options.all]
    if sum(map(bool, ways)) != 1:
        raise UsageError("name sessions whose KV to remove, or give --to SIZE or --all")
    settings = options.settings()
    with closing(open_store(settings)) as store:
        freed = evicted(store, settings, options.sessions or (), options.to_bytes)
    _tell_removed(options, freed.num_blocks, freed.num_bytes)


def _tell_removed(options: ListOptions, num_blocks: int, num_bytes: int) -> None:
    values = {"freed_blocks": num_blocks, "freed_bytes": num_bytes}
    tell(options, values, f"removed {plural(num_blocks, 'block')}, {bytes_text(num_bytes)}")


def cache_path(options: ListOptions) -> None:
    """Print the directory of the blocks. It may be deleted at any time; conversations are not in it."""
    path = str(options.settings(unlock=False).paths.cache_dir)
    tell(options, {"path": path}, path)


def disk_state(settings: Settings) -> DiskState:
    """Look at what is on disk; creates nothing where there is nothing."""
    cache_dir = settings.paths.cache_dir
    if not cache_dir.is_dir():
        return DiskState(usages={}, written=WrittenBytes(today=0, total=0), problem=None)
    try:
        with closing(open_cache(settings)) as admin:
            return DiskState(
                usages=admin.usages(), written=admin.written(), problem=_space_problem(cache_dir)
            )
    except StorageError as error:
        return DiskState(usages=None, written=None, problem=str(error))


def _space_problem(cache_dir: Path) -> str | None:
    free_bytes = disk_usage(cache_dir).free
    if free_bytes >= _LITTLE_BYTES:
        return None
    return f"only {bytes_text(free_bytes)} are free on the disk of {cache_dir}: free some space"


def _server_state(remote: RemoteSettings) -> _ServerState | None:
    """Ask the server, if one answers; it is given up if nobody answers for 10 seconds, or it takes over 5.

    Raises:
        UsageError, ConfigError: the address or the key's file is none.
    """
    if remote.url is None:
        return None
    from kvchat.platform.api_key import read_key
    from kvchat.remote.endpoint import RemoteServer
    from kvchat.remote.metrics import served_cache

    endpoint = RemoteServer(remote.url, None if remote.key_file is None else read_key(remote.key_file))
    try:
        cache = served_cache(endpoint.metrics())
        problem = _UNTOLD if cache is None else None
    except RemoteError as error:
        cache, problem = None, str(error)
    return _ServerState(url=endpoint.url, cache=cache, problem=problem)


def _of(limit: int | None) -> str:
    return "" if limit is None else f" of {bytes_text(limit)}"


def _usage_words(usage: DiskUsage) -> str:
    blocks = plural(usage.num_blocks - usage.num_tails, "full block")
    return f"{bytes_text(usage.num_bytes)} in {blocks} and {plural(usage.num_tails, 'tail')}"
