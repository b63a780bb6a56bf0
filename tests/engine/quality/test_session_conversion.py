"""A session's blocks are converted whole or not at all, each once, and what is told is what is there."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kvchat.engine.api.config import EngineConfig
from kvchat.engine.api.ids import BlockKey, root_key
from kvchat.engine.memory.disk.cache_admin import CacheAdmin
from kvchat.engine.memory.disk.store import BlockHeader, DiskStore
from kvchat.engine.quality.convert import Conversion, Converter, load_exact
from kvchat.errors import CacheError, StorageError
from kvchat.session.kv.block_references import blocks_on
from tests.engine.conftest import OpenEngine, TinyModels
from tests.engine.tiny_models import answer, token_ids

pytestmark = pytest.mark.cpu

LENGTH = 200
NAMESPACE = "int4<-exact"


class CountingStore(DiskStore):
    """Counts what is read."""

    num_calls = 0

    def read_if_sound(self, header: BlockHeader) -> bytes | None:
        self.num_calls += 1
        return super().read_if_sound(header)


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
        return self._store_of(self.converter.exact)

    def target(self, limit_bytes: int | None = None) -> CountingStore:
        return self._store_of(self.converter.target, limit_bytes)

    def _store_of(self, side: Any, limit_bytes: int | None = None) -> CountingStore:
        return CountingStore(
            self.cache_dir,
            fingerprint=side.fingerprint,
            layouts=side.pool.layouts(),
            block_size=16,
            limit_bytes=limit_bytes,
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


@pytest.mark.parametrize(
    ("length", "more_bytes", "is_kept", "says"),
    [
        (LENGTH, 0, True, "KVCHAT_KV_DISK_BYTES"),
        (LENGTH, 10_000, True, "KVCHAT_KV_DISK_BYTES"),
        # Too few for what is converted, which would push out what is still to be read.
        (400, 2000, False, "nothing was changed"),
    ],
)
def test_what_the_disk_has_no_room_for_is_refused_before_any_is_read_and_nothing_of_it_is_left(
    length: int, more_bytes: int, is_kept: bool, says: str, store: Store
) -> None:
    """Exact blocks that a pack keeps make no room."""
    stored = store(length=length)
    before = stored.exact_files()
    with closing(stored.source()) as source, closing(CacheAdmin(stored.cache_dir)) as admin:
        if is_kept:
            keys = [block.key for block in blocks_on(source, stored.path, stored.roots[0], stored.roots[0])]
            admin.keep("pack", stored.converter.exact.fingerprint, keys)
        with closing(stored.target(sum(map(len, before.values())) + more_bytes)) as target:
            conversion = Conversion(stored.converter, source, target, stored.roots, [stored.path])
            with pytest.raises(StorageError, match=says):
                conversion.run()
    assert source.num_calls == 0
    assert stored.num_converted() == 0
    assert stored.exact_files() == before


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
        source.set_aside(tail.key, window)
        less = Conversion(stored.converter, source, target, stored.roots, [stored.path]).planned
    assert less.num_tokens == len(stored.path) - len(tail.token_ids)
