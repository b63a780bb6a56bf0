"""A session's blocks are converted whole or not at all, each once, and what is told is what is there."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from kvchat.engine.api.config import EngineConfig
from kvchat.engine.api.ids import BlockKey, GroupId, root_key
from kvchat.engine.memory.disk.cache_admin import CacheAdmin, IsReferenced
from kvchat.engine.memory.disk.offline_block_store import OfflineBlockStore
from kvchat.engine.memory.disk.store import DiskStore
from kvchat.engine.quality.convert import RUN_LEN, Conversion, Converter, load_exact
from kvchat.errors import CacheError, StorageError
from kvchat.session.kv.block_references import blocks_on
from tests.engine.conftest import OpenEngine, TinyModels
from tests.engine.tiny_models import answer, token_ids

pytestmark = pytest.mark.cpu

LENGTH = 200
NAMESPACE = "int4<-exact"


class CountingStore(OfflineBlockStore):
    """Counts what is read and written, and says when more than one run has been read."""

    num_calls = 0

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.is_ahead = Event()

    def read(self, group: GroupId, parent: BlockKey, token_ids: bytes) -> bytes | None:
        self.num_calls += 1
        if self.num_calls > RUN_LEN:
            self.is_ahead.set()
        return super().read(group, parent, token_ids)


@dataclass(frozen=True)
class Stored:
    """A conversation that was computed exactly, and what converts it."""

    converter: Converter
    cache_dir: Path
    path: tuple[int, ...]

    @property
    def roots(self) -> tuple[BlockKey, BlockKey]:
        return (
            root_key(self.converter.exact.fingerprint),
            root_key(self.converter.target.fingerprint, NAMESPACE),
        )

    def source(self) -> CountingStore:
        return CountingStore(self._disk_store(self.converter.exact))

    def target(
        self,
        limit_bytes: int | None = None,
        daily_bytes: int | None = None,
        kind: type[OfflineBlockStore] = OfflineBlockStore,
    ) -> OfflineBlockStore:
        return kind(self._disk_store(self.converter.target, limit_bytes, daily_bytes))

    def _disk_store(
        self, side: Any, limit_bytes: int | None = None, daily_bytes: int | None = None
    ) -> DiskStore:
        return DiskStore(
            self.cache_dir,
            fingerprint=side.fingerprint,
            layouts=side.pool.layouts(),
            block_size=16,
            limit_bytes=limit_bytes,
            daily_bytes=daily_bytes,
        )

    def files(self, fingerprint: bytes) -> dict[Path, bytes]:
        directory = self.cache_dir / "blocks" / fingerprint.hex()
        return {path: path.read_bytes() for path in directory.rglob("*.safetensors")}

    def exact_files(self) -> dict[Path, bytes]:
        return self.files(self.converter.exact.fingerprint)

    def num_bytes(self) -> int:
        return sum(path.stat().st_size for path in (self.cache_dir / "blocks").rglob("*.*"))

    def num_converted(self) -> int:
        return len(self.files(self.converter.target.fingerprint))


Store = Callable[..., Stored]


@pytest.fixture
def store(tiny: TinyModels, open_engine: OpenEngine, tmp_path: Path) -> Store:
    def one(kind: str = "llama", length: int = LENGTH) -> Stored:
        ids, cache_dir = token_ids(length), tmp_path / "cache"
        engine = open_engine(tiny(kind), cache_dir=cache_dir)
        told = answer(engine, ids, 8).token_ids
        engine.close()
        config = EngineConfig(device="cpu", block_size=16, cache_dir=cache_dir)
        converter = Converter(load_exact(tiny(kind), config), config, "int4")
        return Stored(converter, cache_dir, (*ids, *told)[:-1])

    return one


@pytest.mark.parametrize("more_bytes", [0, 10_000])
def test_what_the_disk_has_no_room_for_is_refused_and_nothing_of_it_is_left(
    more_bytes: int, store: Store
) -> None:
    """Exact blocks that a pack keeps make no room: they are not even read, and nothing is written."""
    stored = store()
    before = stored.exact_files()
    with closing(stored.source()) as source, closing(CacheAdmin(stored.cache_dir)) as admin:
        keys = [block.key for block in blocks_on(source, stored.path, stored.roots[0], stored.roots[0])]
        admin.keep("pack", stored.converter.exact.fingerprint, keys)
        with closing(stored.target(sum(map(len, before.values())) + more_bytes)) as target:
            conversion = Conversion(stored.converter, source, target, stored.roots, [stored.path])
            with pytest.raises(StorageError, match="KVCHAT_KV_DISK_BYTES"):
                conversion.run()
    assert source.num_calls == 0
    assert stored.num_converted() == 0
    assert stored.exact_files() == before


def test_what_has_no_room_beside_the_exact_blocks_is_refused_before_any_is_read(store: Store) -> None:
    """Two kilobytes are too few for what is converted, and would push out what is still to be read."""
    stored = store(length=400)
    before = stored.exact_files()
    with (
        closing(stored.source()) as source,
        closing(stored.target(sum(map(len, before.values())) + 2000)) as target,
    ):
        conversion = Conversion(stored.converter, source, target, stored.roots, [stored.path])
        with pytest.raises(StorageError, match="nothing was changed"):
            conversion.run()
    assert source.num_calls == 0
    assert (stored.num_converted(), stored.exact_files()) == (0, before)


def collect(cache_dir: Path, is_referenced: IsReferenced) -> None:
    with closing(CacheAdmin(cache_dir)) as admin:
        admin.collect(is_referenced)


def test_converting_takes_no_room_from_what_it_still_reads_nor_others_from_it(
    store: Store, tiny: TinyModels, open_engine: OpenEngine
) -> None:
    """Beside it another engine answers, under a limit that has just enough for exact and converted blocks."""
    stored = store(length=400)
    with closing(stored.source()) as source, closing(stored.target()) as target:
        conversion = Conversion(stored.converter, source, target, stored.roots, [stored.path])
        conversion.run()
        needed = stored.num_bytes()
        conversion.undo()
    engine = open_engine(tiny("llama"), cache_dir=stored.cache_dir, disk_bytes=needed)
    seeds = iter(range(5, 100))

    def answer_beside(_: str) -> None:
        answer(engine, token_ids(LENGTH, seed=next(seeds)), 8)

    with closing(stored.source()) as source, closing(stored.target(needed)) as target:
        conversion = Conversion(stored.converter, source, target, stored.roots, [stored.path])
        done = conversion.run(answer_beside)
    engine.close()
    assert done.num_tokens == len(stored.path)
    assert next(seeds) > 6, "it answered more than once"
    assert stored.num_bytes() <= needed


def test_what_is_counted_is_there_recent_blocks_included(store: Store) -> None:
    stored = store()
    with closing(stored.source()) as source, closing(stored.target()) as target:
        conversion = Conversion(stored.converter, source, target, stored.roots, [stored.path])
        done = conversion.run()
        blocks = list(blocks_on(target, stored.path, stored.roots[1], stored.roots[1]))
        assert sum(len(block.token_ids) for block in blocks) == done.num_tokens == len(stored.path)
        recent = {group.id for group in stored.converter.target.groups if group.source is None}
        assert recent <= set(blocks[-1].groups)
        sizes = {group: sum(r.nbytes for r in layout) for group, layout in target.layouts.items()}
        assert done.num_bytes == sum(sizes[group] for block in blocks for group in block.groups)
        assert done.num_bytes < done.exact_bytes


def test_blocks_that_paths_share_are_read_and_counted_once(store: Store) -> None:
    stored = store()
    paths = [stored.path, (*stored.path[:190], 1, 2, 3), (*stored.path[:100], 4)]
    with closing(stored.source()) as source, closing(stored.target()) as target:
        conversion = Conversion(stored.converter, source, target, stored.roots, paths)
        done = conversion.run()
    assert done.num_tokens == len(stored.path)
    assert source.num_calls == -(-len(stored.path) // 16)


def test_a_damaged_block_is_no_reason_to_lose_the_others(store: Store) -> None:
    """It is refused first; then what is before it is converted, and told as no more than that."""
    stored = store()
    with closing(stored.source()) as source, closing(stored.target()) as target:
        doomed = list(blocks_on(source, stored.path, stored.roots[0], stored.roots[0]))[5]
        (file,) = (path for path in stored.exact_files() if doomed.key.hex() in path.name)
        file.write_bytes(file.read_bytes()[:-1] + b"\xff")
        with pytest.raises(CacheError, match="nothing was changed"):
            Conversion(stored.converter, source, target, stored.roots, [stored.path]).run()
        assert stored.num_converted() == 0
        done = Conversion(stored.converter, source, target, stored.roots, [stored.path]).run()
        assert done.num_tokens == 5 * 16


def test_a_conversation_is_converted_up_to_where_its_windows_are_whole(store: Store) -> None:
    stored = store("gemma3")
    (window,) = (group.id for group in stored.converter.exact.groups if group.spec.max_visible is not None)
    with closing(stored.source()) as source, closing(stored.target()) as target:
        tail = list(blocks_on(source, stored.path, stored.roots[0], stored.roots[0]))[-1]
        assert len(tail.token_ids) < 16
        whole = Conversion(stored.converter, source, target, stored.roots, [stored.path]).planned
        assert whole.num_tokens == len(stored.path)
        source.set_aside(window, tail.key)
        less = Conversion(stored.converter, source, target, stored.roots, [stored.path]).planned
    assert less.num_tokens == len(stored.path) - len(tail.token_ids)
