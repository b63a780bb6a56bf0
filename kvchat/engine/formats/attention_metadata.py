"""Terms of attention over blocks, the same for every format: where layers keep them, and what a step does.

Dimensions: T tokens of the step, N blocks, P block size, H query heads, H_kv key-value heads, D head size.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kvchat.engine.api.ids import GroupId, SequenceId
from kvchat.engine.formats.spec import CacheSpec, Group
from kvchat.engine.kernels.paged_attention.args import KVPair, Prepared, SequenceSpan
from kvchat.engine.kernels.paged_attention.native import span_table
from kvchat.engine.sequences.batch_plan import Chunk

TORCH_DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16, "U8": torch.uint8}
"""By their names in safetensors."""


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


@dataclass(frozen=True, slots=True)
class AttentionMetadata:
    """Where one step's tokens go and what they see, in one group.

    Args:
        slots: slot of every new token [T], int64; none where tokens have no place of their own.
        spans: the sequences of the batch; none where no query looks here by itself.
        prepared: the same in the form that is computed with.
    """

    slots: Tensor
    spans: Sequence[SequenceSpan]
    prepared: Prepared | None = None

    def part(self, numbers: Sequence[int], index: Tensor) -> "AttentionMetadata":
        """Return the same for some of the step's sequences alone, whose rows are `index`."""
        moved: list[SequenceSpan] = []
        start = 0
        for number in numbers:
            moved.append(self.spans[number].moved(start))
            start = moved[-1].q_end
        return AttentionMetadata(slots=self.slots[index], spans=moved, prepared=span_table(moved))


@dataclass(frozen=True, slots=True)
class LayerStep:
    """One layer's part in a step.

    Args:
        layer: which layer asks: the pool's own, or one that borrows from it.
        query: [T, H, D_k].
        new: keys [T, H_kv, D_k] and values [T, H_kv, D_v]; of layers that keep latents, these [T, 1, R] and
            rope keys [T, 1, d_r].
        groups: the metadata of each group.
        stores: whether the new keys and values are to be stored.
    """

    layer: int
    query: Tensor
    new: KVPair
    call: AttentionCall
    groups: Mapping[GroupId, AttentionMetadata]
    stores: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step's sequences, of which each group's metadata are built.

    Args:
        chunks: a part of each sequence, one after the other.
        positions: of each token in its sequence [T], int64.
        tables: block ids of each sequence and group by logical number, int64, on the device.
        device: of the model.
    """

    chunks: Sequence[Chunk]
    positions: np.ndarray
    tables: Mapping[tuple[SequenceId, GroupId], Tensor]
    device: torch.device


@dataclass(frozen=True, slots=True)
class LayerPool:
    """One layer's part of its group's pool.

    Args:
        keys, values: [N, H_kv, P, D_k] and [N, H_kv, P, D_v].
        derived: the same layer in the group whose blocks are made of this one's; None: there is none.
        in_host_memory: see `Group`.
    """

    group: GroupId
    spec: CacheSpec
    keys: Tensor
    values: Tensor
    derived: "LayerPool | None" = None
    in_host_memory: bool = False


def layer_pools(
    groups: Sequence[Group], parts: Mapping[GroupId, tuple[Tensor, Tensor]]
) -> dict[int, LayerPool]:
    """Return each layer's part of the pool that its tokens are written to; none of layers' states.

    Args:
        parts: keys [L, N, H_kv, P, D_k] and values [L, N, H_kv, P, D_v] of each group.
    """
    found: dict[int, LayerPool] = {}
    of_tokens = [group for group in groups if not group.is_state]
    for group in sorted(of_tokens, key=lambda group: group.source is None):  # derived ones first
        for layer, keys, values in zip(group.layers, *parts[group.id], strict=True):
            found[layer] = LayerPool(
                group.id, group.spec, keys, values, found.get(layer), in_host_memory=group.in_host_memory
            )
    return found
