"""The key of an endpoint: made once, for its owner alone, and refused where others could know it."""

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from kvchat.errors import ConfigError
from kvchat.platform.api_key import OWN_LEN, own_key, read_key

pytestmark = pytest.mark.pure


def test_a_key_is_made_once_and_is_private(tmp_path: Path) -> None:
    file = tmp_path / "run" / "api-key"
    key = own_key(file)
    assert own_key(file) == read_key(file) == key
    assert len(key) > 30
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert own_key(tmp_path / "other") != key


def test_those_that_make_it_at_once_have_one_key(tmp_path: Path) -> None:
    """Nobody reads a file that is there and still empty."""
    for number in range(20):
        file = tmp_path / str(number) / "api-key"
        barrier = Barrier(8)

        def make(file: Path = file, barrier: Barrier = barrier) -> str:
            barrier.wait()
            return own_key(file)

        with ThreadPoolExecutor(8) as pool:
            keys = [made.result() for made in [pool.submit(make) for _ in range(8)]]
        assert set(keys) == {read_key(file)}
        assert [one.name for one in file.parent.iterdir()] == ["api-key"]


@pytest.mark.parametrize("text", ["", "short", "two lines\nthat are long enough", "näher-als-gedacht-1234"])
def test_what_is_no_key_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(text)
    file.chmod(0o600)
    with pytest.raises(ConfigError, match=r"must be|it is one line"):
        read_key(file, OWN_LEN)


def test_a_key_with_a_blank_inside_can_be_sent_and_is_taken(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("two words that are long enough\n")
    file.chmod(0o600)
    assert read_key(file, OWN_LEN) == "two words that are long enough"


def test_a_key_that_others_can_read_or_that_is_not_there_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "key"
    with pytest.raises(ConfigError, match="cannot read"):
        read_key(file)
    file.write_text("long-enough-for-a-key")
    file.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        read_key(file)
    file.chmod(0o600)
    assert read_key(file) == "long-enough-for-a-key"
