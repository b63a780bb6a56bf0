"""What attention over quantised blocks needs beside what attention over exact ones needs."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from kvchat.engine.kernels.sealed_record import SealedRecord


@dataclass(frozen=True, slots=True)
class SealedPool:
    """One layer's quantised blocks.

    Args:
        keys: records of keys [N, H_kv, 1, b], uint8.
        values: records of values, in the same form.
        key_record: how a head's keys of a block are packed.
        value_record: the same of its values.
    """

    keys: Tensor
    values: Tensor
    key_record: SealedRecord
    value_record: SealedRecord


@dataclass(frozen=True, slots=True)
class SealedStep:
    """One step's part in quantised blocks, for all layers of a group.

    Args:
        blocks: for each sequence of the batch its quantised blocks from the first one on, as many as its last
            query sees [n], int64.
        sources: exact blocks that become old in this step [m], int64.
        targets: where they go, quantised [m], int64.
        tables: where a step is recorded, instead of all that: the blocks of each sequence [B, n], int32;
            nothing becomes old in it.
        counts: how many of the sources each sequence of the batch has, where a step may be divided.
    """

    blocks: Sequence[Tensor]
    sources: Tensor
    targets: Tensor
    tables: Tensor | None = None
    counts: Sequence[int] = ()
