"""The digest of a weight file is remembered for as long as it is the same file, and not one change longer."""

import stat
import time
from pathlib import Path

import pytest

from kvchat.engine.models.checkpoints.weight_digests import WeightDigests
from tests.engine.models.checkpoint_files import perturb, write_model

pytestmark = pytest.mark.pure


def test_one_perturbed_weight_is_noticed_behind_the_cache_of_digests(tmp_path: Path) -> None:
    """Trap 1, where it would hurt: the digest of the old weights is cached."""
    model_dir = write_model(tmp_path / "model")
    weights = model_dir / "model.safetensors"
    cached = WeightDigests(tmp_path / "digests.json", clock_ns=_much_later)
    before = cached.digest(weights)
    cached.save()
    _let_the_clock_of_files_move_on(weights)
    perturb(weights)
    assert WeightDigests(tmp_path / "digests.json").digest(weights) != before


def test_a_file_that_is_still_the_same_is_read_once(tmp_path: Path) -> None:
    weights = write_model(tmp_path / "model") / "model.safetensors"
    cache_file = tmp_path / "cache" / "digests.json"
    first = WeightDigests(cache_file, clock_ns=_much_later)
    digest = first.digest(weights)
    first.save()
    second = WeightDigests(cache_file)
    assert second.digest(weights) == digest
    assert (first.num_read, second.num_read) == (1, 0)
    assert stat.S_IMODE(cache_file.stat().st_mode) == 0o600
    assert [path.name for path in cache_file.parent.iterdir()] == ["digests.json"]


def test_a_file_that_was_changed_a_moment_ago_is_not_remembered(tmp_path: Path) -> None:
    weights = write_model(tmp_path / "model") / "model.safetensors"
    digests = WeightDigests(tmp_path / "digests.json", clock_ns=lambda: weights.stat().st_ctime_ns + 1000)
    digests.digest(weights)
    digests.save()
    assert not (tmp_path / "digests.json").exists()


@pytest.mark.parametrize(
    "content", ["", "nonsense", "[]", "null", '{"PATH": 1}', '{"PATH": [1, 2, 3, 4, "short"]}', "[" * 100_000]
)
def test_a_damaged_cache_of_digests_is_ignored(tmp_path: Path, content: str) -> None:
    weights = write_model(tmp_path / "model") / "model.safetensors"
    cache_file = tmp_path / "digests.json"
    cache_file.write_text(content.replace("PATH", str(weights)))
    assert WeightDigests(cache_file).digest(weights) == WeightDigests(None).digest(weights)


def _let_the_clock_of_files_move_on(file: Path) -> None:
    """Return once what is written now has another time than a file has."""
    later = file.with_name("later")
    later.touch()
    while later.stat().st_ctime_ns <= file.stat().st_ctime_ns:
        later.touch()
    later.unlink()


def _much_later() -> int:
    return time.time_ns() + 3600 * 10**9
