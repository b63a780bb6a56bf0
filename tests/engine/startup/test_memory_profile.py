"""Capacity by measurement: what steps allocate, what fits beside it, and what is said of it."""

from pathlib import Path

import pytest
import torch
import transformers
from torch import Tensor, nn

from kvchat.engine.formats.pool_sizing import Lengths
from kvchat.engine.forward.activation_memory import peak_bytes
from kvchat.engine.forward.model_route import choose_route
from kvchat.engine.models.load import LoadedModel, load_model
from kvchat.engine.models.probing.first_layers import layers_of
from kvchat.engine.startup.memory_profile import activation_bytes
from kvchat.errors import OutOfMemory, UnsupportedModel
from tests.engine.latent_models import model_of
from tests.engine.tiny_models import make_config, open_engine, save_model, token_ids

pytestmark = pytest.mark.cpu

MEBIBYTE = 2**20


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(make_config("qwen3"), tmp_path_factory.mktemp("qwen3"))


def test_the_peak_counts_what_lives_at_the_same_time() -> None:
    def one_after_the_other() -> None:
        for _ in range(5):
            torch.ones(MEBIBYTE, dtype=torch.uint8).add_(1)

    def side_by_side() -> None:
        kept = [torch.ones(MEBIBYTE, dtype=torch.uint8) for _ in range(5)]
        del kept

    assert peak_bytes(one_after_the_other) == MEBIBYTE
    assert peak_bytes(side_by_side) == 5 * MEBIBYTE


def test_views_and_operations_in_place_allocate_nothing() -> None:
    def run() -> None:
        whole = torch.zeros(MEBIBYTE, dtype=torch.uint8)
        whole.view(1024, 1024)[3:].t().add_(1)

    assert peak_bytes(run) == MEBIBYTE


def model_of_kind(kind: str, tmp_path: Path) -> Path:
    if kind == "latent":
        return model_of("V3, YaRN", tmp_path, max_position_embeddings=1024, num_hidden_layers=5)
    if kind == "experts":
        experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
        return save_model(transformers.Qwen3MoeConfig(**COMMON | experts), tmp_path)
    if kind == "own attention":
        sizes = {"hidden_size": 64, "n_layer": 4, "n_head": 4, "vocab_size": 512, "eos_token_id": None}
        return save_model(transformers.BloomConfig(**sizes), tmp_path)
    return save_model(make_config(kind), tmp_path)


COMMON = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 1024,
    "bos_token_id": None,
    "eos_token_id": None,
}
KINDS = ("llama", "qwen3", "gemma3", "gpt2", "latent", "experts", "own attention")


@pytest.mark.parametrize("kind", KINDS)
def test_no_step_allocates_more_than_was_measured(kind: str, tmp_path: Path) -> None:
    engine = open_engine(model_of_kind(kind, tmp_path), max_batch_tokens=128, max_context=600)
    assert engine.info.capacity is not None
    handle = engine.generate
    peak = peak_bytes(lambda: handle([token_ids(599)]))
    assert 0 < peak <= engine.info.capacity.activation_bytes


LENGTHS = Lengths(context_len=600, chunk_len=128, block_size=16)


def deep_llama(tmp_path: Path) -> LoadedModel:
    config = make_config("llama", num_hidden_layers=6)
    return load_model(save_model(config, tmp_path), "float32", torch.device("cpu"))


def measure(loaded: LoadedModel) -> int:
    served = choose_route(loaded)
    return activation_bytes(loaded.module, served.make_pass, served.groups, LENGTHS)


def test_only_the_first_layers_of_each_sort_run_at_the_end_of_a_context(tmp_path: Path) -> None:
    loaded = deep_llama(tmp_path)
    served = choose_route(loaded)
    layers, runs = layers_of(loaded.module), [0] * 6
    for number, layer in enumerate(layers):
        layer.register_forward_pre_hook(lambda *_, number=number: runs.__setitem__(number, runs[number] + 1))
    activation_bytes(loaded.module, served.make_pass, served.groups, LENGTHS)
    assert runs == [6, 6, 1, 1, 1, 1]
    assert layers_of(loaded.module) == layers


def test_a_later_layer_that_takes_more_than_its_settings_tell_is_measured(tmp_path: Path) -> None:
    loaded = deep_llama(tmp_path)
    before = measure(loaded)

    def take(layer: nn.Module, args: tuple[Tensor, ...]) -> None:
        args[0].new_zeros(args[0].shape[1], 10_000)  # gone at once

    layers_of(loaded.module)[4].register_forward_pre_hook(take)
    assert measure(loaded) > before + 128 * 10_000


def test_what_is_reported_is_what_the_pools_have(model_dir: Path) -> None:
    engine = open_engine(model_dir, device_bytes=2 * MEBIBYTE, host_bytes=MEBIBYTE, max_context=256)
    capacity, snapshot = engine.info.capacity, engine.snapshot()
    assert capacity is not None
    assert snapshot.capacity == capacity
    assert capacity.device_bytes == sum(layer.total_bytes for layer in snapshot.layers) <= 2 * MEBIBYTE
    assert capacity.num_blocks == sum(group.total_blocks for group in snapshot.groups)
    assert capacity.num_tokens == snapshot.room_tokens
    assert 0 < capacity.host_bytes <= MEBIBYTE
    full = next(group for group in snapshot.groups if group.kind == "full")
    assert capacity.max_concurrency <= full.total_blocks / (256 / 16)


def test_more_than_there_is_is_refused_with_the_most_that_fits(model_dir: Path) -> None:
    with pytest.raises(OutOfMemory, match=r"give at most \d+ with --kv-device-bytes"):
        open_engine(model_dir, device_bytes=1 << 60)


def test_a_model_without_the_positions_it_promises_is_refused(tmp_path: Path) -> None:
    loaded = load_model(save_model(make_config("gpt2"), tmp_path), "float32", torch.device("cpu"))
    served = choose_route(loaded)
    lengths = Lengths(context_len=2 * loaded.max_context, chunk_len=64, block_size=16)
    with pytest.raises(UnsupportedModel, match="no position"):
        activation_bytes(loaded.module, served.make_pass, served.groups, lengths)
