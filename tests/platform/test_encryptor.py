"""What is encrypted opens in its place, with its key, unchanged; and nowhere else."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvchat.errors import EncryptionError
from kvchat.platform.encryptor import RECORD_OVERHEAD, DecryptionFailed, Encryptor, new_salt

pytestmark = pytest.mark.pure

ENCRYPTOR = Encryptor(bytes(range(32)))
OTHER = Encryptor(bytes(range(1, 33)))

WITHOUT = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {absent!r}:
            raise ImportError(name + " is not installed")

sys.meta_path.insert(0, Absent())
"""


@given(place=st.binary(max_size=40), data=st.binary(max_size=200))
def test_what_is_encrypted_opens_in_its_place(place: bytes, data: bytes) -> None:
    encrypted = ENCRYPTOR.encrypt(place, data)
    assert ENCRYPTOR.decrypt(place, encrypted) == data
    assert len(encrypted) == len(data) + RECORD_OVERHEAD


def test_every_changed_byte_every_other_place_and_every_other_key_is_refused() -> None:
    encrypted = ENCRYPTOR.encrypt(b"turns.text\0one", b"a secret")
    for position in range(len(encrypted)):
        changed = encrypted[:position] + bytes([encrypted[position] ^ 1]) + encrypted[position + 1 :]
        with pytest.raises(DecryptionFailed):
            ENCRYPTOR.decrypt(b"turns.text\0one", changed)
    for length in range(len(encrypted)):
        with pytest.raises(DecryptionFailed):
            ENCRYPTOR.decrypt(b"turns.text\0one", encrypted[:length])
    with pytest.raises(DecryptionFailed):
        ENCRYPTOR.decrypt(b"turns.text\0two", encrypted)
    with pytest.raises(DecryptionFailed):
        OTHER.decrypt(b"turns.text\0one", encrypted)


def test_no_nonce_serves_two_contents_or_two_places() -> None:
    """A nonce that is used twice with one key gives both contents away."""
    encrypted = [ENCRYPTOR.encrypt(f"{n % 7}".encode(), f"{n // 7}".encode()) for n in range(7000)]
    assert len({record[:12] for record in encrypted}) == len(encrypted)
    # Where a place ends and the content begins makes a difference too.
    assert ENCRYPTOR.encrypt(b"ab", b"c")[:12] != ENCRYPTOR.encrypt(b"a", b"bc")[:12]


def test_two_files_of_one_name_are_encrypted_under_different_keys() -> None:
    first, second = ENCRYPTOR.of_file(b"name", new_salt()), ENCRYPTOR.of_file(b"name", new_salt())
    assert first.encrypt(bytes(12), b"same", b"") != second.encrypt(bytes(12), b"same", b"")


def test_a_pseudonym_depends_on_the_key_and_on_nothing_else() -> None:
    assert ENCRYPTOR.pseudonym(b"name") == Encryptor(bytes(range(32))).pseudonym(b"name")
    assert ENCRYPTOR.pseudonym(b"name") != OTHER.pseudonym(b"name")
    assert ENCRYPTOR.name != OTHER.name


def test_a_missing_package_is_told_with_what_to_install() -> None:
    program = WITHOUT.format(absent=("cryptography",)) + (
        "from kvchat.errors import EncryptionError\n"
        "from kvchat.platform.encryptor import Encryptor\n"
        "try:\n    Encryptor(bytes(32))\n"
        "except EncryptionError as error:\n    print(error, error.exit_code)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("pip install 'kvchat[encryption]' 3\n")
    assert EncryptionError.exit_code == 3
