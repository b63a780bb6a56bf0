"""Pruning a stretch of a sequence: private blocks take what is kept of it, exact ones are let go.

Nobody else's table changes, and the exact blocks stay cached under their names as any that nobody holds: who
asks without a view finds them there. Blocks that are to be filled are the sequence's from the step on that
reads the end of the prompt, and have their place in its tables once that step has been computed.
"""

from kvchat.engine.cache.block_operations import Prune, TableLog
from kvchat.engine.cache.block_publisher import BlockPublisher
from kvchat.engine.cache.device_tier import DeviceTier
from kvchat.engine.formats.spec import Group, Selection
from kvchat.engine.formats.view_schedule import PrunePoint
from kvchat.engine.sequences.sequence import Sequence


class PrunePlanner:
    """Plans and records what is pruned; others move the bytes."""

    def __init__(self, device: DeviceTier, publisher: BlockPublisher, log: TableLog) -> None:
        self._device = device
        self._pruned = [group for group in device.groups if group.spec.selection is Selection.PRUNED]
        self._publisher = publisher
        self._log = log

    def num_kept(self, sequence: Sequence, group: Group, num_tokens: int) -> int:
        """Return how many blocks a group needs for what is kept at the end of the next `num_tokens` tokens.
        Pure.
        """
        prune_point = self._due(sequence, num_tokens)
        if prune_point is None or sequence.kept or group.spec.selection is not Selection.PRUNED:
            return 0
        return prune_point.num_kept(group)

    def prepare(self, sequence: Sequence, num_tokens: int) -> None:
        """Allocate these blocks."""
        prune_point = self._due(sequence, num_tokens)
        if prune_point is None or sequence.kept:
            return
        for group in self._pruned:
            sequence.kept[group.id] = [
                self._device.references.allocate(sequence, group.id)
                for _ in range(prune_point.num_kept(group))
            ]

    def planned(self, sequence: Sequence) -> tuple[Prune, ...]:
        """Return what fills them. Pure."""
        prune_point = sequence.view_schedule.next_prune_point(sequence.computed_len)
        if prune_point is None:
            return ()
        return tuple(
            Prune(
                group,
                prune_point.start,
                tuple(
                    block
                    for block in sequence.tables[group][prune_point.start : prune_point.end]
                    if block is not None
                ),
                tuple(kept),
            )
            for group, kept in sequence.kept.items()
        )

    def carry_out(self, sequence: Sequence) -> None:
        """Put what was kept in the place of the stretch. The sequence's tokens end where it was pruned."""
        prune_points = sequence.view_schedule.prune_points
        prune_point = next(point for point in prune_points if point.at == sequence.computed_len)
        stretch = range(prune_point.start, prune_point.end)
        sequence.kept_names |= sequence.view_schedule.kept_names(
            prune_point, sequence.keys, sequence.token_ids
        )
        sequence.saved_tail = None
        for group in self._pruned:
            table, kept = sequence.tables[group.id], sequence.kept[group.id]
            for number in reversed(stretch):  # children before their parents
                block = table[number]
                assert block is not None
                self._device.references.release(sequence, group.id, block)
                table[number] = None
            table[prune_point.start : prune_point.start + len(kept)] = kept
            self._log.note_from(sequence, group.id, prune_point.start)
            for number in stretch[: len(kept)]:
                self._publisher.publish(sequence, group, number)
        sequence.kept.clear()

    def give_up(self, sequence: Sequence) -> None:
        """Let go of blocks that are not going to be filled."""
        for group, kept in sequence.kept.items():
            for block in kept:
                self._device.references.release(sequence, group, block)
        sequence.kept.clear()

    def _due(self, sequence: Sequence, num_tokens: int) -> PrunePoint | None:
        """Return the prune point that the sequence reaches with its next `num_tokens` tokens."""
        prune_point = sequence.view_schedule.next_prune_point(sequence.computed_len)
        is_due = prune_point is not None and prune_point.at == sequence.computed_len + num_tokens
        return prune_point if is_due else None
