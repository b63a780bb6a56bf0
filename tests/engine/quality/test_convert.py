"""Converting blocks: the bytes that quantizing would have given, and the layers that stay as they are."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from kvchat.engine.api.config import EngineConfig
from kvchat.engine.api.ids import GroupId
from kvchat.engine.formats.attention_metadata import LayerPool
from kvchat.engine.kernels.quantized_kv.reference import quantize
from kvchat.engine.quality.convert import RUN_LEN, Converter, load_exact
from kvchat.errors import ConfigError
from tests.engine.conftest import TinyModels

pytestmark = pytest.mark.cpu

CONFIG = EngineConfig(device="cpu", block_size=16)


def converter(model_dir: Path, cache_format: str) -> Converter:
    return Converter(load_exact(model_dir, CONFIG), CONFIG, cache_format)


def payloads(found: Converter, num_blocks: int) -> list[dict[GroupId, bytes]]:
    """Random blocks of the exact format."""
    generator = torch.Generator().manual_seed(1)
    pool = found.exact.pool
    return [
        {
            group.id: torch.randn(pool.block_bytes(group.id) // 4, generator=generator).numpy().tobytes()
            for group in found.exact.groups
        }
        for _ in range(num_blocks)
    ]


@pytest.mark.parametrize("cache_format", ["int8", "k=fp8,v=int4; layers 1=exact"])
def test_converted_bytes_are_those_of_quantized_blocks_and_exact_layers_keep_theirs(
    cache_format: str, tiny: TinyModels
) -> None:
    found = converter(tiny("llama"), cache_format)
    blocks = payloads(found, RUN_LEN)
    converted = found.convert(blocks, lambda group, place: True)
    for group in found.target.groups:
        for place in (0, RUN_LEN - 1):
            expected = b""
            for layer in group.layers:
                pool = found.exact.pool.layers[layer]
                quantized = found.target.pool.layers[layer].derived
                for numbers, record in zip(
                    (pool.keys, pool.values),
                    (quantized.spec.key_record, quantized.spec.value_record) if quantized else (None, None),
                    strict=True,
                ):
                    part = numbers[place][None]
                    if group.source is not None:
                        assert record is not None
                        part = quantize(part, record)
                    expected += part.numpy().tobytes()
            assert converted[place][group.id] == expected


def test_it_computes_with_one_thread_and_leaves_the_process_as_it_was(tiny: TinyModels) -> None:
    found = converter(tiny("llama"), "int8")
    seen: list[int] = []

    class Watched(dict[int, LayerPool]):
        def items(self) -> Any:
            for layer, pool in super().items():
                seen.append(torch.get_num_threads())
                yield layer, pool

    found.target.pool.layers = Watched(found.target.pool.layers)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        found.convert(payloads(found, 1), lambda group, place: True)
        after = torch.get_num_threads()
    finally:
        torch.set_num_threads(before)
    assert (set(seen), after) == ({1}, 3)


def test_only_what_is_wanted_is_returned(tiny: TinyModels) -> None:
    found = converter(tiny("gemma3"), "int4")
    (converted,) = found.convert(payloads(found, 1), lambda group, place: group == 1)
    assert set(converted) == {1}


def test_the_formats_have_fingerprints_of_their_own(tiny: TinyModels) -> None:
    names = {converter(tiny("llama"), form).target.fingerprint for form in ("int8", "int4", "fp8")}
    exact = converter(tiny("llama"), "int8").exact.fingerprint
    assert len(names | {exact}) == 4


def test_a_model_that_a_format_cannot_take_is_refused(tiny: TinyModels) -> None:
    with pytest.raises(ConfigError, match="layers 9"):
        Converter(
            load_exact(tiny("llama"), CONFIG), replace(CONFIG, max_batch_tokens=64), "int8; layers 9=exact"
        )


def test_there_is_nothing_to_convert_to_a_view(tiny: TinyModels) -> None:
    with pytest.raises(ConfigError, match="nothing to convert; ask with --cache-format window:64"):
        converter(tiny("llama"), "window:64")
