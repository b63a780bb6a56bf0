"""Capacity by measurement: what steps allocate, what fits beside it, and what is said of it."""

from pathlib import Path

import pytest
import torch

from kvchat.engine.activation import peak_bytes
from kvchat.engine.capacity import Lengths, activation_bytes
from kvchat.engine.models.load import load_model
from kvchat.engine.route import choose_route
from kvchat.errors import OutOfMemory, UnsupportedModel
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


def test_no_step_allocates_more_than_was_measured(model_dir: Path) -> None:
    engine = open_engine(model_dir, max_batch_tokens=128, max_context=600)
    assert engine.info.capacity is not None
    handle = engine.generate
    peak = peak_bytes(lambda: handle([token_ids(599)]))
    assert 0 < peak <= engine.info.capacity.activation_bytes


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
    device = torch.device("cpu")
    loaded = load_model(save_model(make_config("gpt2"), tmp_path), "float32", device)
    served = choose_route(loaded)
    lengths = Lengths(context_len=2 * loaded.max_context, chunk_len=64, block_size=16)
    with pytest.raises(UnsupportedModel, match="no position"):
        activation_bytes(served.make_pass, served.groups, device, lengths)
