"""Latent attention of single queries whose sequences the device alone knows, in plain torch operations.

In the latent space all query heads share one key, the row, whose beginning is the value too: attention over
block tables does the rest. Dimensions: B sequences with one query each, n blocks of a table, S = n P slots of
them, H query heads, R latent rank, d_r size of the rope key, N blocks, P block size.
"""

from torch import Tensor

from kvchat.engine.kernels.latent_attention.args import LatentArgs
from kvchat.engine.kernels.latent_record.torch_fallback import unpack
from kvchat.engine.kernels.paged_attention.args import AttentionArgs, KVPair, StepTables
from kvchat.engine.kernels.paged_attention.torch_capturable import attend, hidden_slots


def mean_latents(query: Tensor, pool: Tensor, args: LatentArgs, tables: StepTables) -> Tensor:
    """Return what queries of the latent space attend to, for rows that stand in their sequence's order.

    Args:
        query: [B, H, R + d_r].

    Returns:
        Mean latents [B, H, R]; zeros for rows without a query.
    """
    rows = pool.index_select(0, tables.tables.flatten()).flatten(0, 2)  # [B S, R + d_r] or records
    numbers = rows.float() if args.record is None else unpack(rows, args.record)
    keys = numbers.view(len(query), 1, -1, numbers.shape[1])
    scores = AttentionArgs(spans=(), softmax_scale=args.softmax_scale)
    hidden = hidden_slots(tables, pool.shape[2], scores)
    return attend(query, KVPair(keys, keys[..., : args.k_up.shape[2]]), hidden, scores)
