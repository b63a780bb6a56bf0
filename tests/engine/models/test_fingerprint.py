"""One fingerprint per thing that KV depends on, and none for anything else."""

import json
import os
import shutil
import stat
import time
from pathlib import Path

import pytest

from kvchat.engine.models.fingerprint import WeightDigests, fingerprint
from kvchat.errors import ModelUnreadable
from tests.engine.models.checkpoints import write_config, write_model, write_sharded_model

pytestmark = pytest.mark.pure


def of(model_dir: Path, **changes: object) -> bytes:
    arguments: dict = {"dtype": "float32", "cache_format": "exact", "block_size": 64} | changes
    return fingerprint(model_dir, **arguments)


def perturb(path: Path) -> None:
    """Change one weight in place and give the file back its old mtime."""
    times = path.stat()
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    with open(path, "r+b") as file:
        file.write(data)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def test_one_perturbed_weight_is_another_model(tmp_path: Path) -> None:
    """Trap 1: same name, same directory, same size, same mtime."""
    model_dir = write_model(tmp_path / "model")
    before = of(model_dir)
    perturb(model_dir / "model.safetensors")
    assert of(model_dir) != before


def test_one_perturbed_weight_is_noticed_behind_the_cache_of_digests(tmp_path: Path) -> None:
    """Trap 1, where it would hurt: the digest of the old weights is cached."""
    model_dir = write_model(tmp_path / "model")
    weights = model_dir / "model.safetensors"
    cached = WeightDigests(tmp_path / "digests.json", clock_ns=_much_later)
    before = cached.digest(weights)
    cached.save()
    time.sleep(0.05)  # so that the kernel's clock, which ticks a hundred times a second, has moved on
    perturb(weights)
    assert WeightDigests(tmp_path / "digests.json").digest(weights) != before


def test_place_and_name_do_not_count(tmp_path: Path) -> None:
    model_dir = write_model(tmp_path / "model")
    before = of(model_dir)
    assert of(Path(shutil.copytree(model_dir, tmp_path / "copy"))) == before
    assert of(model_dir.rename(tmp_path / "renamed")) == before


def test_what_config_says_of_itself_does_not_count(tmp_path: Path) -> None:
    model_dir = write_model(tmp_path / "model")
    before = of(model_dir)
    write_config(model_dir, transformers_version="5.23.0", _name_or_path="there", use_cache=False)
    assert of(model_dir) == before
    config = json.loads((model_dir / "config.json").read_text())
    (model_dir / "config.json").write_text(json.dumps(dict(reversed(config.items())), indent=4))
    assert of(model_dir) == before


@pytest.mark.parametrize(
    "change",
    [
        {"rope_theta": 10001.0},
        {"rope_parameters": {"rope_type": "yarn", "factor": 2.0}},
        {"layer_types": ["full_attention", "sliding_attention"]},
        {"sliding_window": 16},
        {"quantization_config": {"bits": 4}},
    ],
)
def test_what_config_says_of_attention_counts(tmp_path: Path, change: dict[str, object]) -> None:
    """Trap 5."""
    model_dir = write_model(tmp_path / "model")
    before = of(model_dir)
    write_config(model_dir, **change)
    assert of(model_dir) != before


def test_everything_that_shapes_a_block_counts(tmp_path: Path) -> None:
    """Traps 2 and 5."""
    model_dir = write_model(tmp_path / "model")
    all_of_them = [
        of(model_dir),
        of(model_dir, dtype="bfloat16"),
        of(model_dir, cache_format="int8"),
        of(model_dir, block_size=32),
        of(model_dir, rope="yarn"),
        of(model_dir, adapter="yarn"),
    ]
    assert len(set(all_of_them)) == len(all_of_them)
    assert all(len(digest) == 32 for digest in all_of_them)


def test_shards_count_by_their_part_and_not_by_their_names(tmp_path: Path) -> None:
    usual = write_sharded_model(tmp_path / "usual", ("a.safetensors", "b.safetensors"))
    renamed = write_sharded_model(tmp_path / "renamed", ("z.safetensors", "c.safetensors"))
    assert of(usual) == of(renamed)
    swapped = Path(shutil.copytree(usual, tmp_path / "swapped"))
    shutil.copy(usual / "a.safetensors", swapped / "b.safetensors")
    shutil.copy(usual / "b.safetensors", swapped / "a.safetensors")
    assert of(swapped) != of(usual)


def test_a_model_in_the_hub_cache_is_the_same_model(tmp_path: Path) -> None:
    model_dir = write_model(tmp_path / "model")
    digest = WeightDigests(None).digest(model_dir / "model.safetensors")
    blobs, snapshot = tmp_path / "hub" / "blobs", tmp_path / "hub" / "snapshots" / "main"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    shutil.copy(model_dir / "model.safetensors", blobs / digest)
    shutil.copy(model_dir / "config.json", snapshot)
    (snapshot / "model.safetensors").symlink_to(blobs / digest)
    digests = WeightDigests(None)
    assert digests.digest(snapshot / "model.safetensors") == digest
    assert digests.num_read == 0
    assert of(snapshot) == of(model_dir)


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
    model_dir = write_model(tmp_path / "model")
    cache_file = tmp_path / "digests.json"
    cache_file.write_text(content.replace("PATH", str(model_dir / "model.safetensors")))
    assert of(model_dir, cache_file=cache_file) == of(model_dir)


def test_a_cache_of_digests_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    model_dir = write_model(tmp_path / "model")
    (tmp_path / "taken").write_text("a file")
    digests = WeightDigests(tmp_path / "taken" / "digests.json", clock_ns=_much_later)
    digests.digest(model_dir / "model.safetensors")
    digests.save()
    assert of(model_dir, cache_file=tmp_path / "taken" / "digests.json") == of(model_dir)


def test_without_weights_there_is_no_fingerprint(tmp_path: Path) -> None:
    model_dir = write_model(tmp_path / "model")
    (model_dir / "model.safetensors").unlink()
    with pytest.raises(ModelUnreadable, match="has no weights"):
        of(model_dir)


def _much_later() -> int:
    return time.time_ns() + 3600 * 10**9
