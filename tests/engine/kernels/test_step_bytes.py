"""What a step of many rows allocates in native decoder layers is what is foreseen."""

import ctypes
import gc
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kvchat.engine.kernels.decoder_layers.native import step_bytes
from kvchat.engine.kernels.native.library import Library
from tests.engine.kernels.decoder_cases import Model, Shape, hidden_of, make_step, native_of
from tests.engine.kernels.native_library import all_levels

PROCESS = Path("/proc/self")
pytestmark = [
    pytest.mark.cpu,
    all_levels,
    pytest.mark.skipif(not os.access(PROCESS / "clear_refs", os.W_OK), reason="no kernel tells the peak"),
]

MEBIBYTE = 2**20
BF16 = torch.bfloat16
TEXTS = ((0, 300),) * 7
# What a gate gives is more than 32 MiB, which the C library gives back when it is freed.
SIZES = {"inner": 8192, "hidden": 64, "num_heads": 2, "num_kv_heads": 1, "num_layers": 2}
SHAPES = {
    "numbers": Shape(**SIZES),  # type: ignore[arg-type]
    "int8": Shape(**SIZES, weights="int8"),  # type: ignore[arg-type]
    "int8 bfloat16": Shape(**SIZES, weights="int8", dtype=BF16),  # type: ignore[arg-type]
    "states": Shape(**SIZES, mixers=("delta", "convolution")),  # type: ignore[arg-type]
    "experts": Shape(**SIZES, experts=4, expert_inner=4096, has_mlp=False),  # type: ignore[arg-type]
    "paired bfloat16": Shape(**SIZES, weights="paired", dtype=BF16),  # type: ignore[arg-type]
}


def process_bytes(name: str) -> int:
    lines = (PROCESS / "status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(name + ":"))


@pytest.fixture
def few_threads() -> Iterator[None]:
    """Each has some space of its own, and on each processor the kernel counts some pages late."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(min(2, num_threads))
    yield
    torch.set_num_threads(num_threads)


@pytest.mark.covering(1)
@pytest.mark.usefixtures("few_threads")
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_a_step_of_many_rows_takes_no_more_than_foreseen(shape: Shape, library: Library) -> None:
    model = Model(shape)
    step = replace(make_step(shape, range(len(TEXTS)), TEXTS), sampling=torch.tensor([0]))
    layers = native_of(model, model.pools(TEXTS), library)
    hidden = hidden_of(model, step)
    is_rounded = layers.suits_rounded
    layers.hidden(hidden, step, slice(0, 2), is_rounded=is_rounded)  # threads are started, and code is there
    gc.collect()  # what earlier tests have left would go meanwhile
    ctypes.CDLL(None).malloc_trim(0)  # what the C library keeps of freed memory would be taken again, unseen
    (PROCESS / "clear_refs").write_text("5")  # the peak begins anew
    before = process_bytes("VmRSS")
    layers.hidden(hidden, step, slice(0, 2), is_rounded=is_rounded)
    taken = process_bytes("VmHWM") - before
    foreseen = step_bytes(model.layers, len(hidden), shape.dtype, library)
    assert 0.8 * foreseen < taken < foreseen + 8 * MEBIBYTE
