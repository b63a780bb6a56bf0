"""Latent attention over block tables: the definition, one query at a time, with keys and values expanded.

Source: DeepSeek-V2, arXiv 2405.04434. Dimensions: T tokens in the batch, S visible tokens, H query heads, R
latent rank, d_n size of keys without rope, d_r of the rope key, d_v of values, N blocks, P block size.
"""

import torch
from torch import Tensor

from kvchat.engine.kernels.latent_attention.args import LatentArgs
from kvchat.engine.kernels.latent_record.reference import unpack


def latent_attention(query: Tensor, pool: Tensor, args: LatentArgs) -> Tensor:
    """Return attention of each query over its sequence, itself included.

    Args:
        query: [T, H, d_n + d_r], the rope part behind.
        pool: latents and rope keys, one row for all heads [N, 1, P, R + d_r], or as records [N, 1, P, bytes].
        args: spans, scale and projections.

    Returns:
        [T, H, d_v] in the dtype of `query`; computed in float32, or float64 for float64 inputs.
    """
    dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
    k_up, v_up = args.k_up.to(dtype), args.v_up.to(dtype)
    out = query.new_empty(query.shape[0], query.shape[1], v_up.shape[1])
    block_size, rank = pool.shape[2], k_up.shape[2]
    for span in args.spans:
        for row in range(span.q_start, span.q_end):
            positions = torch.arange(span.position + row - span.q_start + 1)
            blocks = span.blocks[positions // block_size - span.first_block]
            rows = pool[blocks, 0, positions % block_size]
            if args.record is not None:
                rows = unpack(rows, args.record)
            latents, rope_keys = rows.to(dtype).tensor_split([rank], dim=1)
            keys = torch.cat(
                [
                    torch.einsum("sr,hdr->shd", latents, k_up),
                    rope_keys[:, None].expand(-1, query.shape[1], -1),
                ],
                dim=2,
            )
            values = torch.einsum("sr,hdr->shd", latents, v_up)
            scores = torch.einsum("hd,shd->hs", query[row].to(dtype), keys) * args.softmax_scale
            out[row] = torch.einsum("hs,shd->hd", scores.softmax(dim=1), values).to(query.dtype)
    return out
