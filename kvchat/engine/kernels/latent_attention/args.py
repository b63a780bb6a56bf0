"""Arguments of latent attention besides queries and pool."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from kvchat.engine.kernels.fp8_record import Fp8Record
from kvchat.engine.kernels.paged_attention.args import SequenceSpan, StepTables


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentArgs:
    """Scores and projections of a layer. R latent rank, d_n and d_v sizes of keys (without rope) and values.

    Args:
        spans: the sequences of the batch; queries see all tokens up to their own.
        softmax_scale: factor of the query-key products, the model's own: it does not follow from any shape.
        k_up: from a latent to the keys of all heads [H, d_n, R].
        v_up: from a latent to the values of all heads [H, d_v, R].
        record: how the pool's bytes are read; None: its rows are numbers.
        prepared: the same sequences as tensors, where a step has made that for all its layers; alone where a
            step is recorded: there are no spans.
    """

    spans: Sequence[SequenceSpan]
    softmax_scale: float
    k_up: Tensor
    v_up: Tensor
    record: Fp8Record | None = None
    prepared: StepTables | None = None
