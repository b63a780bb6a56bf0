"""Converting a stored session, files included: 4,096 tokens of 32 layers with 5 heads of 64, bfloat16.

Exact blocks are read from a disk, quantised, and written durably under other names, a run of them while the
next one is read and quantised. Beside it in the same round stand the same conversion with one block after the
other waiting for the medium, and plain files of the same bytes: written one by one, each with an fsync of
itself and of its directory, and one file with one fsync. What is waited for is counted as well. Blocks hold
normal numbers; no model is loaded.
"""

import os
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory

import torch

from benchmarks.table import Row, seconds
from kvchat.engine.api.ids import BlockId, GroupId, root_key
from kvchat.engine.formats.full.spec import FullSpec
from kvchat.engine.formats.groups_in_format import stored_groups
from kvchat.engine.formats.spec import Group, group_layers
from kvchat.engine.memory.device_pool import DevicePool
from kvchat.engine.memory.disk.io import SYSTEM, Buffer, SystemFiles
from kvchat.engine.memory.disk.store import BlockHeader, DiskStore
from kvchat.engine.quality.convert import RUN_LEN, Conversion, ConversionSide, Converter

BLOCK_SIZE = 64
NUM_TOKENS = 4096
NUM_LAYERS = 32
FORMATS = ("int8", "int4")
ROOTS = tuple(root_key(bytes([number]) * 32, "") for number in (1, 2))


class Made(Converter):
    """Converts between two formats of no model."""

    def __init__(self, exact: ConversionSide, target: ConversionSide) -> None:
        self._size = BLOCK_SIZE
        self.exact = exact
        self.target = target


class InTurn(DiskStore):
    """Waits for the medium with each block by itself."""

    def write(self, blocks: Iterable[tuple[BlockHeader, Buffer]], *, is_wanted: bool = False) -> int:
        write = super().write
        return sum(write([block], is_wanted=is_wanted) for block in blocks)


class CountedFiles(SystemFiles):
    """Notes what is waited for. Threads append at one time; a list takes that."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def sync(self, descriptor: int) -> None:
        self.told.append("fsyncs of files")
        super().sync(descriptor)

    def sync_dir(self, path: Path) -> None:
        self.told.append("fsyncs of directories")
        super().sync_dir(path)

    def commit(self, connection: sqlite3.Connection) -> None:
        self.told.append("commits of the index")
        super().commit(connection)


def measure(*, quick: bool = False) -> list[Row]:
    torch.set_num_threads(2)
    rounds = 3 if quick else 7
    with TemporaryDirectory() as directory:
        rows = list(_files_alone(Path(directory), 3 * rounds))
    for cache_format in FORMATS:
        with TemporaryDirectory() as directory:
            rows += _converted(Path(directory), cache_format, rounds)
    return rows


def _files_alone(directory: Path, rounds: int) -> Iterator[Row]:
    """Write as many blocks as are converted at one time, in three ways in turn."""
    converter = Made(*_sides(FORMATS[0]))
    group = next(group.id for group in converter.target.groups if group.source is not None)
    payload = os.urandom(sum(region.nbytes for region in converter.target.pool.layouts()[group]))
    told: dict[str, list[float]] = {"together": [], "one after the other": [], "plain files": []}
    for _ in range(rounds):
        for name, kind in (("together", DiskStore), ("one after the other", InTurn)):
            with closing(_block_store(directory / "cache", converter.target, kind)) as block_store:
                told[name].append(seconds(partial(block_store.write, _chain(group, payload))))
            rmtree(directory / "cache")
        told["plain files"].append(seconds(partial(_plain, directory / "plain", [len(payload)] * RUN_LEN)))
    what = f"{RUN_LEN} blocks, {RUN_LEN * len(payload) / 2**20:.0f} MiB"
    for name, values in told.items():
        yield Row.of(f"{what}, {name}", "s", values, "wall")
    ratios = [one / other for one, other in zip(told["one after the other"], told["together"], strict=True)]
    yield Row.of("  together against one after the other", "x", ratios, "more is faster")


def _chain(group: GroupId, payload: bytes) -> list[tuple[BlockHeader, Buffer]]:
    blocks: list[tuple[BlockHeader, Buffer]] = []
    for start in range(RUN_LEN):
        parent = blocks[-1][0].key if blocks else ROOTS[0]
        blocks.append((BlockHeader.of(group, parent, range(start, start + BLOCK_SIZE)), payload))
    return blocks


def _converted(directory: Path, cache_format: str, rounds: int) -> Iterator[Row]:
    converter = Made(*_sides(cache_format))
    path = [number % 50_000 for number in range(NUM_TOKENS)]
    source = _stored(directory, converter, path)
    told: dict[str, list[float]] = {}
    with closing(source):
        for _ in range(rounds):
            for name, kind in (("together", DiskStore), ("one after the other", InTurn)):
                told.setdefault(name, []).append(_round(directory, converter, source, path, kind))
            sizes = [len(data) for data in _written(directory, converter, source, path)]
            for name, cut in (("plain files", sizes), ("one plain file", [sum(sizes)])):
                told.setdefault(name, []).append(seconds(partial(_plain, directory / "plain", cut)))
    what = f"{NUM_TOKENS} tokens to {cache_format}"
    yield Row.of(f"{what}, written together", "s", told["together"], "wall; goal: 2 s on two cores")
    yield Row.of(f"{what}, one after the other", "s", told["one after the other"])
    note = f"{len(sizes)} files of the same {sum(sizes) / 2**20:.0f} MiB, fsync of each and its directory"
    yield Row.of("  plain files", "s", told["plain files"], note)
    yield Row.of("  one plain file", "s", told["one plain file"], "the same bytes, one fsync")
    ratios = [one / other for one, other in zip(told["one after the other"], told["together"], strict=True)]
    yield Row.of("  together against one after the other", "x", ratios, "more is faster")
    for name, number in _counted(directory, converter, path).items():
        yield Row.of(f"  {name}", "in all", [number])


def _sides(cache_format: str) -> tuple[ConversionSide, ConversionSide]:
    spec = FullSpec(num_kv_heads=5, head_dim_k=64, head_dim_v=64, dtype="BF16")
    exact: tuple[Group, ...] = group_layers(dict.fromkeys(range(NUM_LAYERS), spec))
    found = []
    for number, groups in enumerate((exact, stored_groups(exact, cache_format, BLOCK_SIZE))):
        places = {group.id: RUN_LEN for group in groups}
        pool = DevicePool(groups, places, BLOCK_SIZE, torch.device("cpu"))
        found.append(ConversionSide(groups, pool, bytes([number + 1]) * 32))
    return found[0], found[1]


def _stored(directory: Path, converter: Converter, path: list[int]) -> DiskStore:
    block_store = _block_store(directory / "cache", converter.exact, DiskStore)
    pool = converter.exact.pool
    for layer in pool.layers.values():
        layer.keys.normal_()
        layer.values.normal_()
    parent = ROOTS[0]
    for start in range(0, NUM_TOKENS, BLOCK_SIZE):
        ids = tuple(path[start : start + BLOCK_SIZE])
        place = BlockId(start // BLOCK_SIZE % RUN_LEN)
        block = [
            (BlockHeader.of(group.id, parent, ids), pool.read_block(group.id, place, BLOCK_SIZE))
            for group in converter.exact.groups
        ]
        block_store.write(block)
        parent = block[0][0].key
    return block_store


def _block_store(
    cache_dir: Path, side: ConversionSide, kind: type[DiskStore], files: SystemFiles = SYSTEM
) -> DiskStore:
    return kind(
        cache_dir,
        fingerprint=side.fingerprint,
        layouts=side.pool.layouts(),
        block_size=BLOCK_SIZE,
        limit_bytes=None,
        files=files,
    )


def _round(
    directory: Path, converter: Converter, source: DiskStore, path: list[int], kind: type[DiskStore]
) -> float:
    """Return how long it takes to read, quantise and write everything; what was written goes again."""
    with ExitStack() as stack:
        target = stack.enter_context(closing(_block_store(directory / "cache", converter.target, kind)))
        stack.callback(rmtree, directory / "cache" / "blocks" / converter.target.fingerprint.hex())
        conversion = Conversion(converter, source, target, (ROOTS[0], ROOTS[1]), [path])
        assert conversion.planned.num_tokens == NUM_TOKENS
        return seconds(conversion.run)


def _written(directory: Path, converter: Converter, source: DiskStore, path: list[int]) -> Iterator[bytes]:
    """Yield the files that a conversion writes."""
    target = _block_store(directory / "cache", converter.target, DiskStore)
    Conversion(converter, source, target, (ROOTS[0], ROOTS[1]), [path]).run()
    files = directory / "cache" / "blocks" / converter.target.fingerprint.hex()
    target.close()
    for file in sorted(files.rglob("*.safetensors")):
        yield file.read_bytes()
    rmtree(files)


def _counted(directory: Path, converter: Converter, path: list[int]) -> dict[str, int]:
    """Return how often a conversion waits for what, from opening the store to closing it."""
    files = CountedFiles()
    with (
        closing(_block_store(directory / "cache", converter.exact, DiskStore)) as source,
        closing(_block_store(directory / "cache", converter.target, DiskStore, files)) as target,
    ):
        Conversion(converter, source, target, (ROOTS[0], ROOTS[1]), [path]).run()
    rmtree(directory / "cache" / "blocks" / converter.target.fingerprint.hex())
    return dict(Counter(files.told))


def _plain(directory: Path, sizes: list[int]) -> None:
    directory.mkdir(exist_ok=True)
    for number, size in enumerate(sizes):
        with (directory / str(number)).open("wb") as file:
            file.write(bytes(size))
            file.flush()
            os.fsync(file.fileno())
        descriptor = os.open(directory, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
    rmtree(directory)
