"""The wrapped data key: opened by its secret alone, kept twice, changed without losing it."""

from dataclasses import replace
from pathlib import Path

import pytest

from kvchat.errors import EncryptionError, StorageError
from kvchat.platform.key_file import (
    KeyFile,
    KeyKind,
    KeyState,
    backup_path,
    forget_key,
    key_path,
    new_data_key,
    read_key,
    secret_of,
    wrap,
    write_key,
)

pytestmark = pytest.mark.pure

CHEAP = 4
"""Cost of scrypt in tests."""


def wrapped(data_key: bytes, passphrase: str = "open sesame") -> KeyFile:
    return wrap(data_key, secret_of(passphrase), KeyKind.PASSPHRASE, CHEAP)


def test_the_passphrase_opens_it_and_another_does_not() -> None:
    data_key = new_data_key()
    key = wrapped(data_key)
    assert key.unwrapped(secret_of("open sesame")) == data_key
    for other in ("open sesame ", "Open sesame", ""):
        with pytest.raises(EncryptionError):
            key.unwrapped(secret_of(other))
    assert data_key.hex() not in repr(key)


def test_a_key_of_the_keyring_opens_with_what_the_keyring_keeps() -> None:
    data_key, secret = new_data_key(), new_data_key()
    key = wrap(data_key, secret, KeyKind.KEYRING)
    assert key.unwrapped(secret) == data_key
    with pytest.raises(EncryptionError):
        key.unwrapped(new_data_key())


def test_how_a_keyboard_composes_letters_does_not_count() -> None:
    data_key = new_data_key()
    assert wrapped(data_key, "cafe\u0301").unwrapped(secret_of("caf\u00e9")) == data_key


def test_cheaper_parameters_that_somebody_wrote_into_the_file_open_nothing() -> None:
    key = wrapped(new_data_key())
    with pytest.raises(EncryptionError):
        replace(key, log_n=CHEAP - 1).unwrapped(secret_of("open sesame"))
    with pytest.raises(EncryptionError):
        replace(key, name="0" * 16).unwrapped(secret_of("open sesame"))


def test_it_is_read_back_as_it_was_written_and_is_its_owners_alone(tmp_path: Path) -> None:
    key, place = wrapped(new_data_key()), key_path(tmp_path)
    assert read_key(place) is None
    write_key(place, key)
    assert read_key(place) == key
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}
    forget_key(place)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("damaged", [0, 1])
def test_a_copy_with_any_byte_changed_is_written_again_from_the_other(tmp_path: Path, damaged: int) -> None:
    key, place = wrapped(new_data_key()), key_path(tmp_path)
    write_key(place, key)
    copy = (place, backup_path(place))[damaged]
    whole = copy.read_bytes()
    for position in range(0, len(whole), 7):
        copy.write_bytes(whole[:position] + bytes([whole[position] ^ 0x41]) + whole[position + 1 :])
        assert read_key(place) == key
        assert copy.read_bytes() == whole
    copy.unlink()
    assert read_key(place) == key
    assert copy.read_bytes() == whole


def test_two_damaged_copies_are_told_and_left_alone(tmp_path: Path) -> None:
    place = key_path(tmp_path)
    write_key(place, wrapped(new_data_key()))
    for copy in (place, backup_path(place)):
        copy.write_bytes(copy.read_bytes()[:-5])
    with pytest.raises(StorageError, match="from a backup"):
        read_key(place)
    assert len(list(tmp_path.iterdir())) == 2


def test_after_a_change_that_was_cut_short_the_newer_passphrase_counts(tmp_path: Path) -> None:
    data_key, place = new_data_key(), key_path(tmp_path)
    write_key(place, wrapped(data_key, "old"))
    old = backup_path(place).read_bytes()
    write_key(place, replace(wrapped(data_key, "new"), state=KeyState.ON))
    backup_path(place).write_bytes(old)
    key = read_key(place)
    assert key is not None
    assert key.unwrapped(secret_of("new")) == data_key
    assert backup_path(place).read_bytes() == place.read_bytes()


def test_a_price_that_nobody_can_pay_is_damage(tmp_path: Path) -> None:
    """A file from elsewhere must not take all memory."""
    place = key_path(tmp_path)
    write_key(place, replace(wrapped(new_data_key()), log_n=40))
    with pytest.raises(StorageError):
        read_key(place)
