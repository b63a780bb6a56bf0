"""The cache of one sequence stores into blocks and returns everything from the first token on."""

import pytest
import torch

from kvchat.engine.formats.attention_metadata import AttentionMetadata
from kvchat.engine.formats.full.spec import FullSpec
from kvchat.engine.formats.full.transformers_cache import TransformersCache
from kvchat.engine.formats.spec import group_layers
from kvchat.engine.kernels.paged_attention.args import SequenceSpan
from kvchat.engine.memory.device_pool import DevicePool

pytestmark = pytest.mark.cpu

SPEC = FullSpec(num_kv_heads=2, head_dim_k=3, head_dim_v=5, dtype="F32")
BLOCK_SIZE = 4


def keys_and_values(num_tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(1, 2, num_tokens, 3), torch.randn(1, 2, num_tokens, 5)


def slots(blocks: list[int], start: int, end: int) -> torch.Tensor:
    positions = range(start, end)
    return torch.tensor([blocks[p // BLOCK_SIZE] * BLOCK_SIZE + p % BLOCK_SIZE for p in positions])


def test_two_sequences_in_steps_get_back_what_each_has_given() -> None:
    groups = group_layers({0: SPEC})
    pool = DevicePool(groups, {groups[0].id: 6}, BLOCK_SIZE, torch.device("cpu"))
    cache = TransformersCache(pool.layers)
    tables = [[4, 1, 3], [0, 5, 2]]
    given = [keys_and_values(10), keys_and_values(7)]
    for cuts in ((0, 5), (0, 3)), ((5, 6), (3, 7)), ((6, 10), (7, 7)):
        row, spans, places = 0, [], []
        for table, (start, end) in zip(tables, cuts, strict=True):
            spans.append(SequenceSpan(row, row + end - start, start, 0, torch.tensor(table)))
            places.append(slots(table, start, end))
            row += end - start
        step = {groups[0].id: AttentionMetadata(torch.cat(places).long(), spans)}
        for number, (start, end) in enumerate(cuts):
            if start == end:
                continue
            cache.begin(step, number)
            assert cache.get_seq_length() == start
            assert cache.get_mask_sizes(end - start, 0) == (end, 0)
            keys, values = given[number]
            found = cache.update(keys[:, :, start:end], values[:, :, start:end], 0)
            assert torch.equal(found[0], keys[:, :, :end])
            assert torch.equal(found[1], values[:, :, :end])
