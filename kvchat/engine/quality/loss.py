"""Loss of one set of predictions against another of the same tokens.

Dimensions: N tokens, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from kvchat.engine.api.loss import Loss

PIECE_NUMBERS = 2**24
"""About as many numbers of a distribution exist in double precision at one time."""


@dataclass(frozen=True, slots=True)
class TokenLosses:
    """Of each predicted token [N]: whether both put the same one first, the divergence in nats, the text's
    token's log-probability on the exact cache and in the format, and whether each puts it first.
    """

    agree: Tensor
    divergence: Tensor
    exact: Tensor
    approximate: Tensor
    exact_hits: Tensor
    approximate_hits: Tensor

    def loss(self) -> Loss:
        """Return what all tokens together say."""
        recalled = self.approximate_hits[self.exact_hits]
        return Loss(
            num_tokens=len(self.agree),
            agreement=float(self.agree.double().mean()),
            divergence=float(self.divergence.mean()),
            worst_divergence=float(self.divergence.max()),
            perplexity_ratio=float((self.exact - self.approximate).mean().exp()),
            recall=float(recalled.double().mean()) if len(recalled) else None,
        )


def token_losses(exact: Tensor, approximate: Tensor, token_ids: Tensor) -> TokenLosses:
    """Compare logits [N, V] of two caches before the text's tokens [N].

    Returns:
        Tensors on the processor; numbers in double precision.
    """
    size = max(1, PIECE_NUMBERS // exact.shape[1])
    pieces = [
        _compare(*(part[start : start + size] for part in (exact, approximate, token_ids)))
        for start in range(0, len(exact), size)
    ]
    return joined(pieces)


def joined(parts: Sequence[TokenLosses]) -> TokenLosses:
    """Return the losses of all tokens together."""
    names = [field.name for field in fields(TokenLosses)]
    return TokenLosses(**{name: torch.cat([getattr(part, name) for part in parts]) for name in names})


def _compare(exact: Tensor, approximate: Tensor, token_ids: Tensor) -> TokenLosses:
    likely, found = (logits.double().log_softmax(dim=1) for logits in (exact, approximate))
    shares = likely.exp()
    terms = torch.where(shares > 0, shares * (likely - found), 0.0)
    divergence = terms.sum(dim=1).clamp_min(0).nan_to_num(nan=torch.inf, posinf=torch.inf)
    chosen, other = exact.argmax(dim=1), approximate.argmax(dim=1)
    texts = [part.gather(1, token_ids[:, None])[:, 0] for part in (likely, found)]
    results = (chosen == other, divergence, *texts, chosen == token_ids, other == token_ids)
    return TokenLosses(*(result.cpu() for result in results))
