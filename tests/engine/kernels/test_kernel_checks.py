"""Kernels are tried in the sizes of the model that they are to compute, and for each format it keeps."""

from collections.abc import Sequence

import pytest
import torch

from benchmarks.gpu.checks import EVERY_TRIAL
from kvchat.engine.kernels.attention_shapes import AttentionSizes, LatentSizes
from kvchat.engine.kernels.health import Health
from kvchat.engine.kernels.kernel_checks import TOLERANCES, largest_error, trials_of, try_kernels
from kvchat.engine.kernels.quantized_attention.args import QuantizedStep, check_old_blocks
from kvchat.engine.kernels.quantized_record import Code
from tests.engine.kernels.attention_cases import tables_of

pytestmark = pytest.mark.cpu

CPU = torch.device("cpu")
LAYERS = (
    AttentionSizes(num_heads=6, num_kv_heads=2, head_dim_k=80, head_dim_v=96, block_size=4),
    AttentionSizes(window=37, block_size=16),
    AttentionSizes(chunk=100, head_dim_k=33),
    AttentionSizes(num_heads=3, num_kv_heads=1, block_size=16, codes=(Code.INT8, Code.INT4)),
    LatentSizes(num_heads=3, rank=40, rope_dim=6, head_dim=20, block_size=16),
    LatentSizes(rank=200, rope_dim=8, is_packed=True),
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_what_is_used_without_a_gpu_passes_every_trial_in_any_size(dtype: torch.dtype) -> None:
    health = Health()
    trials = trials_of(LAYERS)
    assert len(trials) == 5
    for tried in (trials, EVERY_TRIAL):
        try_kernels(CPU, dtype, tried, health)
    assert health.problems == {}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_trials_are_passed_with_other_numbers(dtype: torch.dtype) -> None:
    for name, trial in EVERY_TRIAL.items():
        assert trial(CPU, dtype, 2**39) <= TOLERANCES[dtype], name


def test_a_model_without_quantized_layers_or_latents_has_no_trial_of_them() -> None:
    assert list(trials_of(LAYERS[:2])) == ["storing keys and values", "attention"]
    assert trials_of(()) == {}


def test_what_is_not_a_number_is_never_lost_among_errors() -> None:
    """`max` drops a NaN that does not come first."""
    wanted = torch.zeros(3)
    lost = largest_error(torch.tensor([0.0, float("nan"), 0.0]), wanted)
    assert max(0.1, lost) == max(lost, 0.1) == float("inf")
    health = Health()
    try_kernels(CPU, torch.float32, {"attention": lambda *_: max(0.0, lost)}, health)
    assert not health.is_well("attention")


@pytest.mark.parametrize(
    ("row", "blocks", "words"),
    [
        ((1, 15), (3, 1), None),
        ((1, 15), (3, 1, 99), None),  # nobody reads the third
        ((0, 99), (77,), None),  # no query reads any
        ((1, 15), (3, 4), "sequence 0 has quantized block 4; the pool has 4"),
        ((1, 15), (-2, 1), "quantized block -2"),
        ((1, 15), (3,), "reads 2 quantized blocks, and its table has 1"),
        ((5, 11), (3,), "reads 2 quantized blocks"),
    ],
)
def test_quantized_blocks_are_looked_at_before_a_launch(
    row: tuple[int, int], blocks: Sequence[int], words: str | None
) -> None:
    """Of 4 tokens: a query at 15 reads two."""
    old = torch.tensor([blocks], dtype=torch.int32)
    if words is None:
        check_old_blocks(old, tables_of(*row, 0, [0] * 9), num_blocks=4, block_size=4)
        return
    with pytest.raises(AssertionError, match=words):
        check_old_blocks(old, tables_of(*row, 0, [0] * 9), num_blocks=4, block_size=4)


def test_the_tables_of_a_step_are_made_once() -> None:
    listed = [torch.tensor([5, 6, 7]), torch.tensor([], dtype=torch.long), torch.tensor([8])]
    step = QuantizedStep(listed, listed[1], listed[1])
    assert step.padded().tolist() == [[5, 6, 7], [0, 0, 0], [8, 0, 0]]
    assert step.padded() is step.padded()
    recorded = torch.zeros(2, 4, dtype=torch.int32)
    assert QuantizedStep((), listed[1], listed[1], recorded).padded() is recorded
