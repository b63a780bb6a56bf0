"""Overlapped decode: launches the next step before the host has read the last one's tokens.

While a device computes a step, the host waits for its tokens, tells them, and plans the next step; meanwhile
the device waits for the host. So the step that most probably follows, one more token of each answer, is
handed in first, with tokens that only the device knows. The host then reads one step behind. What it finds
may make a part of the next step useless: an answer has ended, its blocks have moved, or somebody else
joins. Only what the next step asks for is taken from what was computed ahead, so an answer that ends costs
one surplus token and nothing else: its slot lies behind what counts as computed. Dimensions: R rows, V
vocabulary.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kvchat.engine.api.ids import SequenceId
from kvchat.engine.cache.block_operations import Move
from kvchat.engine.cache.manager import CacheManager
from kvchat.engine.forward.runner import Runner
from kvchat.engine.kernels.triton_support import upload
from kvchat.engine.scheduling.scheduler import Scheduler
from kvchat.engine.sequences.batch_plan import Batch, Chunk
from kvchat.engine.sequences.completion_sequence import Completion


@dataclass(frozen=True, slots=True)
class _Launched:
    """A step that was handed in: whose rows its logits [R, V] are, and the tokens that it began with [R]."""

    completions: Sequence[Completion]
    chunks: Sequence[Chunk]
    logits: Tensor

    def rows_for(self, batch: Batch) -> dict[SequenceId, int]:
        """Return the rows that a batch needs, as it would compute them now: of the same request, whose token
        was told since, at the same place in the same blocks.
        """
        moved = {change.sequence for change in batch.changes} | set(batch.dropped)
        places = [(chunk.request, chunk.sequence, chunk.start) for chunk in self.chunks]
        rows = {place: number for number, place in enumerate(places)}
        found: dict[SequenceId, int] = {}
        for chunk in batch.chunks:
            number = rows.get((chunk.request, chunk.sequence, chunk.start))
            is_one = len(chunk.token_ids) == 1 and chunk.samples
            if is_one and number is not None and chunk.sequence not in moved:
                found[chunk.sequence] = number
        return found


class OverlappedDecode:
    """Hands in steps ahead of one engine's, and gives them back as their turn comes."""

    def __init__(
        self,
        manager: CacheManager,
        scheduler: Scheduler,
        runner: Runner,
        carry_out: Callable[[Sequence[Move]], None],
    ) -> None:
        self._manager = manager
        self._scheduler = scheduler
        self._runner = runner
        self._carry_out = carry_out
        self._launched: _Launched | None = None
        self.num_steps = 0
        """Steps that were handed in."""

    @torch.inference_mode()
    def logits(self, batch: Batch) -> Tensor:
        """Return what `Runner.run` returns, as far as it has been computed ahead without computing."""
        launched = self._take()
        rows = launched.rows_for(batch) if launched is not None else {}
        if launched is None or not rows:
            return self._runner.run(batch)
        others = tuple(chunk for chunk in batch.chunks if chunk.sequence not in rows)
        if not others:
            self._runner.note(batch)
            return _picked(launched.logits, [rows[chunk.sequence] for chunk in batch.chunks])
        computed = iter(self._runner.run(replace(batch, chunks=others)).split([c.num_rows for c in others]))
        return torch.cat(
            [
                launched.logits[rows[chunk.sequence]][None] if chunk.sequence in rows else next(computed)
                for chunk in batch.chunks
            ]
        )

    def launch(self, due: Sequence[Completion], tokens: Tensor) -> None:
        """Hand in one more token of each answer, unless the next step will be another one.

        Args:
            due: answers whose next token has just been drawn; all before it is computed.
            tokens: these tokens [R], int64, where they were drawn.
        """
        if not self._may_follow(due):
            return
        moves: list[Move] = []
        numbers: list[int] = []
        for number, completion in enumerate(due):
            if completion.num_generated + 1 < completion.max_tokens:  # else it ends whatever its token is
                added = self._manager.extend(completion.sequence, 1)
                if added is not None:
                    moves += added
                    numbers.append(number)
        self._carry_out(moves)
        if not numbers:
            return
        completions = [due[number] for number in numbers]
        # The tokens are not known yet, and called 0.
        chunks = tuple(
            Chunk(one.id, one.sequence.id, one.sequence.computed_len, (0,), samples=True)
            for one in completions
        )
        changes, dropped = self._manager.log.take()
        batch = Batch(chunks, (), changes, dropped)
        logits = self._runner.run_ahead(batch, _picked(tokens, numbers))
        if logits is None:
            for completion in completions:
                self._manager.retract(completion.sequence)
        else:
            self._launched = _Launched(completions, chunks, logits)
            self.num_steps += 1
            for completion in completions:
                completion.is_ahead = True
                completion.sequence.num_ahead = 1

    def drop(self) -> None:
        """Forget what has been computed ahead."""
        self._take()

    def _may_follow(self, due: Sequence[Completion]) -> bool:
        """Whether the next step probably computes one token of each of these answers, and nothing else."""
        scheduler = self._scheduler
        if scheduler.waiting or len(due) != len(scheduler.running):
            return False
        if any(completion.is_cancelled or not completion.may_draft for completion in due):
            return False
        return not any(scheduler.drafter.foresees(completion) for completion in due)

    def _take(self) -> _Launched | None:
        launched, self._launched = self._launched, None
        for completion in launched.completions if launched is not None else ():
            completion.is_ahead = False
        return launched


def _picked(rows: Tensor, numbers: Sequence[int]) -> Tensor:
    if list(numbers) == list(range(len(rows))):
        return rows
    return rows.index_select(0, upload(numbers, rows.device))
