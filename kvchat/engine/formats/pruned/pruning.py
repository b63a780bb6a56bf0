"""Pruning a stretch of a branch: private blocks take what is kept of it, exact ones are let go.

Nobody else's table changes, and the exact blocks stay cached under their names as any that nobody holds: who
asks without a view finds them there. Blocks that are to be filled are the branch's from the step on that
reads the end of the prompt, and have their place in its tables once that step has been computed.
"""

from kvchat.engine.cache.block_publisher import BlockPublisher
from kvchat.engine.cache.device_tier import DeviceTier
from kvchat.engine.cache.plan import Prune
from kvchat.engine.cache.table_log import TableLog
from kvchat.engine.formats.pruned.view_schedule import PrunePoint
from kvchat.engine.formats.spec import Group
from kvchat.engine.sequences.sequence import Sequence


class Pruning:
    """Plans and records what is pruned; others move the bytes."""

    def __init__(self, device: DeviceTier, naming: BlockPublisher, log: TableLog) -> None:
        self._device = device
        self._pruned = [group for group in device.groups if group.spec.is_pruned]
        self._naming = naming
        self._log = log

    def num_kept(self, branch: Sequence, group: Group, num_tokens: int) -> int:
        """Return how many blocks a group needs for what is kept at the end of the next `num_tokens` tokens.
        Pure.
        """
        stage = self._due(branch, num_tokens)
        return 0 if stage is None or branch.kept or not group.spec.is_pruned else stage.num_kept(group)

    def prepare(self, branch: Sequence, num_tokens: int) -> None:
        """Allocate these blocks."""
        stage = self._due(branch, num_tokens)
        if stage is None or branch.kept:
            return
        for group in self._pruned:
            branch.kept[group.id] = [
                self._device.holdings.allocate(branch, group.id) for _ in range(stage.num_kept(group))
            ]

    def planned(self, branch: Sequence) -> tuple[Prune, ...]:
        """Return what fills them. Pure."""
        stage = branch.course.next_stage(branch.computed_len) if branch.kept else None
        if stage is None:
            return ()
        return tuple(
            Prune(
                group,
                stage.start,
                tuple(block for block in branch.tables[group][stage.start : stage.end] if block is not None),
                tuple(kept),
            )
            for group, kept in branch.kept.items()
        )

    def carry_out(self, branch: Sequence) -> None:
        """Put what was kept in the place of the stretch. The branch's tokens end where it was pruned."""
        stage = next(stage for stage in branch.course.stages if stage.at == branch.computed_len)
        branch.kept_names |= branch.course.kept_names(stage, branch.keys, branch.token_ids)
        branch.saved_tail = None
        for group in self._pruned:
            table, kept = branch.tables[group.id], branch.kept[group.id]
            for number in reversed(range(stage.start, stage.end)):  # children before their parents
                block = table[number]
                assert block is not None
                self._device.holdings.release(branch, group.id, block)
                table[number] = None
            table[stage.start : stage.start + len(kept)] = kept
            self._log.note_from(branch, group.id, stage.start)
            for number in range(stage.start, stage.start + len(kept)):
                self._naming.publish(branch, group, number)
        branch.kept.clear()

    def give_up(self, branch: Sequence) -> None:
        """Let go of blocks that are not going to be filled."""
        for group, kept in branch.kept.items():
            for block in kept:
                self._device.holdings.release(branch, group, block)
        branch.kept.clear()

    def _due(self, branch: Sequence, num_tokens: int) -> PrunePoint | None:
        """Return the stage that the branch reaches with its next `num_tokens` tokens."""
        stage = branch.course.next_stage(branch.computed_len)
        return stage if stage is not None and stage.at == branch.computed_len + num_tokens else None
