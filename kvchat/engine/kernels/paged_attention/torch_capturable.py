"""Attention of single queries whose sequences are known to the device alone, in plain torch operations.

Everything follows from tensors, and no shape from their values: such a step can be recorded once and repeated
with other sequences. All blocks of all tables are gathered, so this stands in where a kernel cannot be used.
Dimensions: B sequences with one query each, n blocks of a table, S = n P slots of them, H query heads, H_kv
key-value heads, G = H / H_kv, D head size, N blocks, P block size.
"""

import torch
from torch import Tensor

from kvchat.engine.kernels.paged_attention.args import AttentionArgs, KVPair, StepTables


def paged_attention(
    query: Tensor, k_pool: Tensor, v_pool: Tensor, args: AttentionArgs, tables: StepTables
) -> Tensor:
    """Return what the reference returns, for rows that stand in their sequence's order.

    Args:
        query: [B, H, D_k].

    Returns:
        [B, H, D_v]; zeros for rows without a query.
    """
    listed = KVPair(gather(k_pool, tables.tables), gather(v_pool, tables.tables))
    return attend(query, listed, hidden_slots(tables, k_pool.shape[2], args), args)


def attend(query: Tensor, listed: KVPair, hidden: Tensor, args: AttentionArgs) -> Tensor:
    """Do the same over what has been read already.

    Args:
        listed: keys [B, H_kv, S, D_k] and values [B, H_kv, S, D_v], float32.
        hidden: of which of them a row sees nothing, whatever they are [B, S].
    """
    num_rows, num_heads, dim = query.shape
    keys, num_kv_heads = listed.keys, listed.keys.shape[1]
    values = listed.values.masked_fill(hidden[:, None, :, None], 0)
    packed = query.float().view(num_rows, num_kv_heads, num_heads // num_kv_heads, dim)
    scores = torch.matmul(packed, keys.transpose(2, 3)) * args.softmax_scale  # [B, H_kv, G, S]
    if args.softcap is not None:
        scores = torch.tanh(scores / args.softcap) * args.softcap
    scores = scores.masked_fill(hidden[:, None, None], float("-inf"))
    top = scores.amax(dim=3, keepdim=True)
    if args.sinks is not None:
        sinks = args.sinks.float().view(1, num_kv_heads, -1, 1)
        top = torch.maximum(top, sinks)
    top = top.masked_fill(top == float("-inf"), 0)
    weights = torch.exp(scores - top)
    total = weights.sum(dim=3, keepdim=True)
    if args.sinks is not None:
        total = total + torch.exp(sinks - top)
    out = torch.matmul(weights, values) / total.masked_fill(total == 0, 1)
    return out.view(num_rows, num_heads, -1).to(query.dtype)


def hidden_slots(tables: StepTables, block_size: int, args: AttentionArgs) -> Tensor:
    """Return which slots of its table no row sees [B, S]."""
    width = tables.tables.shape[1] * block_size
    at = torch.arange(width, device=tables.tables.device)[None] + tables.first_blocks[:, None] * block_size
    return args.hides(at, tables.positions[:, None]) | (tables.q_lens[:, None] == 0)


def gather(pool: Tensor, tables: Tensor) -> Tensor:
    """Return all slots of the tables' blocks in order [B, H_kv, S, D], float32."""
    gathered = pool.index_select(0, tables.flatten())  # [B n, H_kv, P, D]
    num_rows, num_blocks = tables.shape
    _, num_heads, block_size, dim = gathered.shape
    gathered = gathered.view(num_rows, num_blocks, num_heads, block_size, dim).transpose(1, 2)
    return gathered.reshape(num_rows, num_heads, num_blocks * block_size, dim).float()
