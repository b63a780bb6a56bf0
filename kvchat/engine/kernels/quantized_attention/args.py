"""Arguments of attention over quantized blocks, beside those over exact ones."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from kvchat.engine.kernels.paged_attention.args import StepTables
from kvchat.engine.kernels.paged_attention.step_tables import padded_tables
from kvchat.engine.kernels.quantized_record import QuantizedRecord, num_quantized


@dataclass(frozen=True, slots=True)
class QuantizedPool:
    """One layer's quantized blocks.

    Args:
        keys: records of keys [N, H_kv, 1, b], uint8.
        values: records of values, in the same form.
        key_record: how a head's keys of a block are packed.
        value_record: the same of its values.
    """

    keys: Tensor
    values: Tensor
    key_record: QuantizedRecord
    value_record: QuantizedRecord


@dataclass(frozen=True, slots=True)
class QuantizedStep:
    """One step's part in quantized blocks, for all layers of a group.

    Args:
        blocks: for each sequence of the batch its quantized blocks from the first one on, as many as its last
            query sees [n], int64.
        sources: exact blocks that become old in this step [m], int64.
        targets: where they go, quantized [m], int64.
        tables: where a step is recorded, instead of all that: the blocks of each sequence [B, n], int32;
            nothing becomes old in it.
        counts: how many of the sources each sequence of the batch has, where a step may be divided.
    """

    blocks: Sequence[Tensor]
    sources: Tensor
    targets: Tensor
    tables: Tensor | None = None
    counts: Sequence[int] = ()
    _padded: list[Tensor] = field(default_factory=list)

    def padded(self) -> Tensor:
        """Return the blocks of each sequence as tables [B, n], int32, made once for all layers; what stands
        behind a sequence's own blocks means nothing.
        """
        if self.tables is not None:
            return self.tables
        if not self._padded:
            self._padded.append(padded_tables(self.blocks))
        return self._padded[0]


def check_old_blocks(old: Tensor, tables: StepTables, num_blocks: int, block_size: int) -> None:
    """Raise AssertionError unless the quantized blocks [B, n] that sequences read lie in such a pool."""
    rows = zip(tables.q_lens.tolist(), tables.positions.tolist(), old.tolist(), strict=True)
    for number, (length, position, blocks) in enumerate(rows):
        num_old = num_quantized(position + length - 1, block_size) if length else 0
        if num_old > len(blocks):
            raise AssertionError(
                f"sequence {number} reads {num_old} quantized blocks, and its table has {len(blocks)}"
            )
        wrong = [block for block in blocks[:num_old] if not 0 <= block < num_blocks]
        if wrong:
            raise AssertionError(
                f"sequence {number} has quantized block {wrong[0]}; the pool has {num_blocks}"
            )
