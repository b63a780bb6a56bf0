"""Attention of single queries over quantized and exact blocks, where the device alone knows their sequences.

No shape follows from the value of a tensor, so such a step can be recorded once and repeated with other
sequences. All blocks of all tables are turned back into numbers. Dimensions: B sequences with one query each,
n quantized blocks of a table, S slots of all blocks of a row, H query heads, H_kv key-value heads, D head
size, N blocks, P block size.
"""

import torch
from torch import Tensor

from kvchat.engine.kernels.paged_attention.args import AttentionArgs, KVPair, StepTables
from kvchat.engine.kernels.paged_attention.torch_capturable import attend, gather, hidden_slots
from kvchat.engine.kernels.quantized_attention.args import QuantizedPool
from kvchat.engine.kernels.quantized_kv.reference import dequantize
from kvchat.engine.kernels.quantized_record import QuantizedRecord


def quantized_attention(
    query: Tensor, pools: KVPair, quantized: QuantizedPool, args: AttentionArgs, old: Tensor
) -> Tensor:
    """Return what the reference returns, for rows that stand in their sequence's order.

    Args:
        query: [B, H, D_k].
        args: with the exact blocks of each sequence as tables.
        old: its quantized blocks [B, n].

    Returns:
        [B, H, D_v]; zeros for rows without a query.
    """
    recent = args.prepared
    assert isinstance(recent, StepTables)
    block_size = pools.keys.shape[2]
    number = torch.arange(old.shape[1], device=old.device)
    num_old = recent.positions // block_size - 1  # as `num_quantized`
    no_block = (number >= num_old[:, None]) | (recent.q_lens[:, None] == 0)  # [B, n]
    hidden = [no_block.repeat_interleave(block_size, dim=1), hidden_slots(recent, block_size, args)]
    keys = [_numbers(quantized.keys, old, quantized.key_record), gather(pools.keys, recent.tables)]
    values = [_numbers(quantized.values, old, quantized.value_record), gather(pools.values, recent.tables)]
    listed = KVPair(torch.cat(keys, dim=2), torch.cat(values, dim=2))
    return attend(query, listed, torch.cat(hidden, dim=1), args)


def _numbers(records: Tensor, tables: Tensor, record: QuantizedRecord) -> Tensor:
    """Return all slots of the tables' blocks in order [B, H_kv, n P, D], float32."""
    numbers = dequantize(records.index_select(0, tables.flatten())[:, :, 0], record)  # [B n, H_kv, P, D]
    return numbers.unflatten(0, tables.shape).transpose(1, 2).flatten(2, 3)
