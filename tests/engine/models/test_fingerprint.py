"""One fingerprint per thing that KV depends on, and none for anything else."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from kvchat.engine.api.ids import GroupId
from kvchat.engine.memory.disk.block_file import Region
from kvchat.engine.models.checkpoints.weight_digests import WeightDigests
from kvchat.engine.models.fingerprint import Storage, digest_of, fields_of, read_checkpoint
from kvchat.errors import ModelUnreadable
from tests.engine.models.checkpoint_files import (
    perturb,
    write_adapter,
    write_config,
    write_model,
    write_sharded_model,
)

pytestmark = pytest.mark.pure


LAYOUT = (Region(name="layers.0.k", dtype="F32", shape=(2, 64, 16)),)


def of(model_dir: Path, adapter_dir: Path | None = None, **changes: object) -> bytes:
    storage: dict = {
        "route": "attention",
        "dtype": "float32",
        "cache_format": "exact",
        "block_size": 64,
        "layouts": {GroupId(0): LAYOUT},
    }
    checkpoint = read_checkpoint(model_dir, adapter_dir, WeightDigests(None))
    return digest_of(fields_of(checkpoint, Storage(**storage | changes)))


def test_one_perturbed_weight_is_another_model(tmp_path: Path) -> None:
    """Trap 1: same name, same directory, same size, same mtime."""
    model_dir = write_model(tmp_path / "model")
    before = of(model_dir)
    perturb(model_dir / "model.safetensors")
    assert of(model_dir) != before


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
        of(model_dir, route="cache"),
        of(model_dir, layouts={GroupId(0): LAYOUT, GroupId(1): LAYOUT}),
        of(model_dir, layouts={GroupId(0): (replace(LAYOUT[0], dtype="BF16"),)}),
        of(model_dir, layouts={GroupId(0): (replace(LAYOUT[0], shape=(1, 64, 32)),)}),
        of(model_dir, rope_layouts={GroupId(0): "interleaved"}),
        of(model_dir, rope_layouts={GroupId(0): "halves"}),
        of(model_dir, write_adapter(tmp_path / "adapter")),
        of(model_dir, write_adapter(tmp_path / "other weights", seed=1)),
        of(model_dir, write_adapter(tmp_path / "other config", lora_alpha=1)),
    ]
    assert len(set(all_of_them)) == len(all_of_them)
    assert all(len(digest) == 32 for digest in all_of_them)


def test_where_an_adapter_lies_and_by_what_it_was_saved_does_not_count(tmp_path: Path) -> None:
    """Trap 2: an adapter is what it holds, not what it is called."""
    model_dir = write_model(tmp_path / "model")
    before = of(model_dir, write_adapter(tmp_path / "adapter"))
    assert of(model_dir, (tmp_path / "adapter").rename(tmp_path / "renamed")) == before
    moved = write_adapter(tmp_path / "moved", base_model_name_or_path="elsewhere", peft_version="0.1")
    assert of(model_dir, moved) == before


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


def test_without_weights_there_is_no_fingerprint(tmp_path: Path) -> None:
    model_dir = write_model(tmp_path / "model")
    (model_dir / "model.safetensors").unlink()
    with pytest.raises(ModelUnreadable, match="has no weights"):
        of(model_dir)
