"""Online softmax in torch operations, for attention that walks over its keys piece by piece.

What is gathered at one time stays small enough for the processor's cache, and what a step needs beside its
pools does not grow with the context. Dimensions: Q queries, S keys of a piece, H query heads, H_kv key-value
heads, G = H / H_kv, D head size.
"""

import torch
from torch import Tensor

from kvchat.engine.kernels.paged_attention.args import AttentionArgs


class OnlineSoftmax:
    """What a softmax over some keys has found: the largest score, the sum of weights, and that of values.

    Args:
        query: [Q, H, D_k].
        args: factor of products, soft cap and sinks.
    """

    def __init__(self, query: Tensor, num_kv_heads: int, args: AttentionArgs) -> None:
        num_queries, num_heads, _ = query.shape
        self._args = args
        self._shape = (num_kv_heads, num_heads // num_kv_heads, num_queries)
        packed = (query.float() * args.softmax_scale).unflatten(1, self._shape[:2])
        self._query = packed.permute(1, 2, 0, 3).flatten(1, 2)  # [H_kv, G * Q, D_k]
        size = self._query.shape[:2]
        self._top = self._query.new_full(size, float("-inf"))
        self._total = self._query.new_zeros(size)
        self._sum = self._query.new_zeros(1, 1, 1)
        if args.sinks is not None:
            sinks = args.sinks.float().view(*self._shape[:2], 1).expand(self._shape)
            self._top = sinks.flatten(1).clone()
            self._total += 1

    def add(self, keys: Tensor, values: Tensor, hidden: Tensor | None) -> None:
        """Take in keys [H_kv, S, D_k] and values [H_kv, S, D_v]; `hidden`: which a query does not see [Q, S].

        What is hidden may be anything, NaN too.
        """
        scores = torch.bmm(self._query, keys.transpose(1, 2))  # [H_kv, G * Q, S]
        if self._args.softcap is not None:
            scores = scores.div_(self._args.softcap).tanh_().mul_(self._args.softcap)
        if hidden is not None:
            scores.view(*self._shape, -1).masked_fill_(hidden, float("-inf"))
            values = values.masked_fill(hidden.all(dim=0)[:, None], 0)
        top = torch.maximum(self._top, scores.amax(dim=2))
        base = top.masked_fill(top == float("-inf"), 0)
        decay = (self._top - base).exp_()
        weights = scores.sub_(base[:, :, None]).exp_()
        self._total = self._total * decay + weights.sum(dim=2)
        self._sum = torch.baddbmm(self._sum * decay[:, :, None], weights, values)
        self._top = top

    def result(self) -> Tensor:
        """Return the weighted means of values [Q, H, D_v], float32."""
        out = (self._sum / self._total[:, :, None]).unflatten(1, self._shape[1:])
        return out.permute(2, 0, 1, 3).flatten(1, 2)


def hidden_keys(keys: range, queries: range, args: AttentionArgs, device: torch.device) -> Tensor:
    """Return which keys the queries at these positions do not see [Q, S]."""
    at = torch.arange(queries.start, queries.stop, device=device)[:, None]
    return args.hides(torch.arange(keys.start, keys.stop, device=device), at)
