"""Encrypted blocks keep what plain ones promise, and tell nobody which tokens they hold."""

import shutil
from contextlib import closing
from pathlib import Path

import pytest

from kvchat.engine.api.ids import u32le
from kvchat.engine.memory.disk.block_encryption import EncryptedBlocks
from kvchat.engine.memory.disk.cache_admin import CacheAdmin
from kvchat.engine.memory.disk.store import DiskStore
from kvchat.errors import BlockDamaged, BlockMissing
from kvchat.platform.encryptor import DecryptionFailed, Encryptor
from tests.damage import flipped
from tests.engine.memory.chains import (
    BLOCK_SIZE,
    FINGERPRINT,
    FULL,
    OTHER_FINGERPRINT,
    SLIDING,
    Block,
    block_behind,
    chain,
    open_store,
    read,
    write_all,
)

pytestmark = pytest.mark.pure

ENCRYPTOR, OTHER = Encryptor(bytes(range(32))), Encryptor(bytes(range(1, 33)))


def open_encrypted(cache_dir: Path, encryptor: Encryptor | None = ENCRYPTOR, **settings: bytes) -> DiskStore:
    return open_store(cache_dir, encryptor=encryptor, **settings)


@pytest.fixture
def store(tmp_path: Path) -> DiskStore:
    return open_encrypted(tmp_path)


def files(cache_dir: Path) -> list[Path]:
    return sorted(cache_dir.rglob("*.safetensors"))


def tokens(number: int, length: int = 4 * BLOCK_SIZE) -> list[int]:
    return [90_000 + number * 100 + at for at in range(length)]


def test_blocks_and_tails_come_back_bit_for_bit(tmp_path: Path, store: DiskStore) -> None:
    blocks = [*chain(tokens(1)), *chain(tokens(1), SLIDING), *chain([5, 6, 7, 8, 9])]
    write_all(store, blocks)
    assert store.usage().num_bytes == sum(path.stat().st_size for path in files(tmp_path))
    store.close()
    with closing(open_encrypted(tmp_path)) as again:
        for block in blocks:
            assert again.has(block.key, block.header.group)
            assert read(again, block) == block.payload
        (child,) = again.children(blocks[0].key)
        assert (child.token_ids, child.groups) == (blocks[1].header.token_ids, {FULL, SLIDING})


def test_neither_names_nor_bytes_tell_keys_tokens_or_contents(tmp_path: Path, store: DiskStore) -> None:
    blocks = chain(tokens(2))
    write_all(store, blocks)
    for _ in range(2):  # with its log, and without
        names = " ".join(str(path) for path in tmp_path.rglob("*"))
        data = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
        for block in blocks:
            assert block.key.hex() not in names
            ids = u32le(block.header.token_ids)
            contents = (block.payload[:16], block.payload[-16:])
            for secret in (block.key, ids, ids[:8], ids.hex().encode(), *contents):
                assert secret not in data
            assert block.key.hex().encode() not in data
        store.close()


def test_every_flipped_byte_of_an_encrypted_file_is_noticed(tmp_path: Path, store: DiskStore) -> None:
    """Traps 6 and 24: nothing is believed of a file that is not what was written."""
    (block,) = chain([1, 2, 3, 4])
    write_all(store, [block])
    (path,) = files(tmp_path)
    whole = path.read_bytes()
    encryption = EncryptedBlocks(ENCRYPTOR)
    num_head_bytes = len(whole) - len(block.payload) - EncryptedBlocks.file_overhead
    parts = [memoryview(bytearray(num_head_bytes)), memoryview(bytearray(len(block.payload)))]
    for position in range(len(whole)):
        changed = flipped(whole, position, 1)
        with pytest.raises(DecryptionFailed):
            encryption.open(path, [memoryview(changed)], parts)
    encryption.open(path, [memoryview(whole)], parts)
    assert parts[1] == block.payload
    for damaged in (b"", whole[:56], whole[:-1], whole + b"\0", whole[:-1] + b"\0"):
        path.write_bytes(damaged)
        with pytest.raises(BlockDamaged):
            read(store, block)
    path.write_bytes(whole)
    assert read(store, block) == block.payload


def test_an_encrypted_file_serves_under_no_other_name(tmp_path: Path, store: DiskStore) -> None:
    """Trap 4: neither in the place of another block, nor of another group or model."""
    one, two = chain(tokens(3))[:2]
    write_all(store, [one, two])
    first, second = files(tmp_path)
    saved = first.read_bytes()
    shutil.copyfile(second, first)
    second.write_bytes(saved)
    for block in (one, two):
        with pytest.raises(BlockDamaged):
            read(store, block)
    other = open_encrypted(tmp_path, fingerprint=OTHER_FINGERPRINT)
    moved = Path(str(first).replace(FINGERPRINT.hex(), OTHER_FINGERPRINT.hex()))
    moved.parent.mkdir(parents=True)
    moved.write_bytes(saved)
    with pytest.raises((BlockDamaged, BlockMissing)):
        read(other, one)


def test_a_lost_index_is_built_from_the_encrypted_files_again_without_those_of_a_killed_writer(
    tmp_path: Path, store: DiskStore
) -> None:
    blocks = [*chain(tokens(4)), *chain(tokens(5))]
    write_all(store, blocks)
    store.close()
    damaged = files(tmp_path)[0]
    damaged.write_bytes(damaged.read_bytes()[:40] + bytes(8) + damaged.read_bytes()[48:])
    left = damaged.with_name(f".{damaged.name}.0123456789abcdef.tmp")
    left.write_bytes(b"half a block")
    for index in tmp_path.rglob("index.db*"):
        index.unlink()
    with closing(open_encrypted(tmp_path)) as again:
        assert sorted(again.has(block.key, FULL) for block in blocks) == [False] + [True] * 7
    assert len(list(tmp_path.rglob("quarantine/*"))) == 1
    assert not left.exists()


def test_those_that_begin_most_alike_are_found_without_their_order_on_disk(
    tmp_path: Path, store: DiskStore
) -> None:
    parent = chain(tokens(7)[:BLOCK_SIZE])[0]
    siblings = [block_behind(parent.key, [1000 + number, 1, 2, 3]) for number in range(40)]
    write_all(store, [parent, *siblings])
    plain = open_encrypted(tmp_path / "plain", encryptor=None)
    write_all(plain, [parent, *siblings])
    for wanted in ([1017, 1, 9, 9], [1000, 0, 0, 0], [5], [9999, 1, 2, 3], [1020, 1, 2, 3]):
        found = store.nearest(parent.key, wanted, 3)
        assert {block.key for block in found} == {block.key for block in plain.nearest(parent.key, wanted, 3)}


def test_stores_of_several_keys_and_a_plain_one_share_a_directory_in_peace(tmp_path: Path) -> None:
    stores = [open_encrypted(tmp_path, encryptor) for encryptor in (ENCRYPTOR, OTHER, None)]
    blocks = chain(tokens(9))
    for number, store in enumerate(stores):
        write_all(store, blocks[: number + 1])
    for number, encryptor in enumerate((ENCRYPTOR, OTHER, None)):
        admin = CacheAdmin(tmp_path, encryptor=encryptor)
        assert {block.key for block in admin.blocks()} == {block.key for block in blocks[: number + 1]}
        admin.close()


def test_collecting_and_removing_know_encrypted_blocks_by_their_keys(
    tmp_path: Path, store: DiskStore
) -> None:
    kept, doomed = chain(tokens(10)), chain(tokens(11))
    write_all(store, [*kept, *doomed])
    admin = CacheAdmin(tmp_path, encryptor=ENCRYPTOR)
    wanted = {block.key for block in kept}
    freed = admin.collect(lambda block: block.key in wanted)
    assert freed.num_blocks == len(doomed)
    assert admin.remove(FINGERPRINT, [kept[-1].key]).num_blocks == 1
    admin.close()
    assert len(files(tmp_path)) == len(kept) - 1


def test_one_payload_is_written_differently_each_time(tmp_path: Path) -> None:
    """Each file has a key of its own, so equal blocks look unlike."""
    block: Block = chain(tokens(13))[0]
    written = []
    for place in ("one", "two"):
        with closing(open_encrypted(tmp_path / place)) as store:
            write_all(store, [block])
        (path,) = files(tmp_path / place)
        written.append(path)
    assert written[0].name == written[1].name
    assert written[0].read_bytes()[56:] != written[1].read_bytes()[56:]
