"""What is compiled for aarch64, and the emulated processor on which the kernels' own tests run it."""

import ctypes
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kvchat.engine.kernels.native.build import FLAGS, LEVELS
from kvchat.engine.kernels.native.library import Library, libraries
from kvchat.engine.kernels.paged_attention.native import NativeCall
from kvchat.engine.kernels.quantized_linear import Coding, native
from tests.engine.kernels.native_library import aarch64_program, emulated, why_not_emulated
from tests.engine.kernels.test_native_quantized_linear import CODINGS, NUM_INPUTS, random, random_weight

NOT_HERE = why_not_emulated()
pytestmark = [pytest.mark.cpu, pytest.mark.slow]
if NOT_HERE is not None:
    pytest.skip(NOT_HERE, allow_module_level=True)

from tests.engine.kernels.aarch64_program import MACOS, compile_all, zig  # noqa: E402
from tests.engine.kernels.emulated import NEW, OLD, Broken, Processor  # noqa: E402

DOT_PRODUCTS = 1 << 20
"""Linux says so in AT_HWCAP (arch/arm64/include/uapi/asm/hwcap.h)."""


def test_every_source_compiles_for_macos(tmp_path: Path) -> None:
    made = compile_all(tmp_path, MACOS)
    assert made
    assert all(path.stat().st_size for path in made)


@pytest.mark.parametrize("system", ["arm64-apple-macos11", "aarch64-linux-gnu"])
def test_compilers_of_both_systems_know_the_flags_of_every_level(system: str) -> None:
    """As clang takes them, which both systems have."""
    defined = {
        level: zig("clang", f"--target={system}", *FLAGS, *flags, "-E", "-dM", "-x", "c++", os.devnull)
        for level, flags in LEVELS["aarch64"].items()
    }
    assert all("__ARM_NEON 1" in text for text in defined.values())
    assert "__ARM_FEATURE_DOTPROD 1" in defined["dotprod"]


def test_a_processor_has_the_levels_that_its_system_tells_of() -> None:
    told = []
    for capabilities in (0, DOT_PRODUCTS):
        processor = Processor(aarch64_program(), NEW, capabilities)
        told.append(processor.text(processor.call("kvchat_levels")))
    assert told == ["neon", "neon dotprod"]
    assert told[1].split() == list(LEVELS["aarch64"])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("coding", CODINGS, ids=str)
def test_quantized_products_have_the_same_bits_as_on_the_processor_underneath(
    coding: Coding, dtype: torch.dtype
) -> None:
    weight, x = random_weight(coding, 50), random((3, NUM_INPUTS)).to(dtype)
    levels = [*libraries(), *map(emulated, LEVELS["aarch64"])]
    found = [native.linear(x, weight, None, level) for level in levels]
    assert len(found) > len(LEVELS["aarch64"])
    assert all(torch.equal(one, found[0]) for one in found)


def test_a_processor_without_dot_products_stops_at_one() -> None:
    """So that the level for old processors is seen to need none."""
    old = replace(emulated("dotprod"), _loaded=Processor(aarch64_program(), OLD))  # type: ignore[arg-type]
    weight, x = random_weight(Coding(bits=8), 16), random((1, NUM_INPUTS))
    assert isinstance(old, Library)
    with pytest.raises(Broken, match=r"quantised_linear_dotprod: .*exception"):
        native.linear(x, weight, None, old)


def test_what_would_end_a_process_or_keep_memory_is_noticed() -> None:
    processor = Processor(aarch64_program(), OLD)
    with pytest.raises(Broken, match=r"paged_attention_neon: .*UNMAPPED"):
        processor.paged_attention_neon(ctypes.byref(NativeCall(num_spans=1)))
    with pytest.raises(Broken, match=r"pieces of \[24\] bytes"):
        processor.call("malloc", 24)
    assert processor.paged_attention_neon(ctypes.byref(NativeCall())) == 0
