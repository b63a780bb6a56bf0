"""Arguments of one attention call of a model."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionCall:
    """Arguments of one attention layer besides queries, keys and values.

    Args:
        scaling: factor of the query-key products; None: D_k ** -0.5.
        window: tokens a query sees, itself included; None: all.
        softcap: bound of the scores, or None.
        sinks: one extra logit per query head [H], or None.
        unsupported: names of arguments with a value that no backend honours.
        is_causal: whether the layer attends to the past only.
        mask: the model's own mask, where one was asked for.
    """

    scaling: float | None
    window: int | None
    softcap: float | None
    sinks: Tensor | None
    unsupported: tuple[str, ...] = ()
    is_causal: bool = True
    mask: Tensor | None = None
