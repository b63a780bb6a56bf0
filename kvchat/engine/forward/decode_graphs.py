"""Steps that compute one token of each sequence, in buffers that stay where they are.

Such steps are most of an answer and short, so on a GPU handing their hundreds of operations in takes longer
than computing them. Recorded once for each of a few sizes of batch, a step is repeated as a whole: everything
that differs between two of them is numbers in one buffer, which reach the device in one copy. A batch takes
the next larger size; rows that only fill it up have no query, store nothing, and change no bit of others. How
a sequence's keys are split follows from its own length, so the split is the same at every size. What records
and repeats is a seam: without it a step simply computes anew. Dimensions: B rows, n blocks of a table, V
vocabulary, P block size.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from time import perf_counter

import numpy as np
import torch
from torch import Tensor

from kvchat.engine.api.ids import GroupId
from kvchat.engine.formats.format_table import metadata_builders
from kvchat.engine.formats.spec import Group
from kvchat.engine.forward.activation_memory import peak_bytes
from kvchat.engine.forward.runner import BlockTables, ForwardPass, InputBatch, update_tables
from kvchat.engine.kernels.paged_attention.args import StepTables
from kvchat.engine.sequences.batch_plan import Batch, Chunk

BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64)
SHORT_LEN = 4096
"""Steps whose sequences are all shorter are recorded apart: with fewer parts of keys to launch."""
MOST_GATHERED = 2**16
"""Steps that turn all quantized blocks of all tables into numbers are recorded for so many tokens at most."""
NUM_HOST_BUFFERS = 2
"""A buffer is filled while the step before still reads the other."""

PROBLEM_LEN = 200
TIMED_ROUNDS, TIMED_STEPS = 4, 5

log = logging.getLogger(__name__)


Record = Callable[[Callable[[], None]], Callable[[], None]]
"""Takes a step that computes once, and returns what repeats it on the same buffers.

Raises RuntimeError: the step does something that cannot be repeated.
"""


def compute_anew(step: Callable[[], None]) -> Callable[[], None]:
    """Repeat a step by computing it."""
    return step


@dataclass(frozen=True, slots=True, order=True)
class Size:
    """A recorded size of steps: rows, and the longest sequence."""

    num_rows: int
    context_len: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Args:
    block_size: tokens of a block.
    context_len: longest sequence.
    num_slots: slots of each group's pool; the one behind the last stands for rows without a token.
    reads_codes: whether quantized blocks are read where they are, not turned into numbers before.
    """

    block_size: int
    context_len: int
    num_slots: Mapping[GroupId, int]
    reads_codes: bool = False


class DecodeGraphRunner:
    """Computes batches in which every sequence has one token."""

    def __init__(
        self,
        forward: ForwardPass,
        groups: Sequence[Group],
        limits: Limits,
        record: Record,
        batch_sizes: Sequence[int] = BATCH_SIZES,
    ) -> None:
        self._forward = forward
        self._groups = groups
        self._limits = limits
        self._record = record
        lens = sorted({min(SHORT_LEN, limits.context_len), limits.context_len})
        sizes = [Size(num_rows, length) for num_rows in batch_sizes for length in lens]
        is_gathered = not limits.reads_codes and any(group.source is not None for group in groups)
        self._sizes = [
            size for size in sizes if not is_gathered or size.num_rows * size.context_len <= MOST_GATHERED
        ]
        self._steps: dict[Size, _Step] = {}
        self._tables: BlockTables = {}
        self.problem: str | None = None
        """Why no size is recorded, once it was tried; None: some are."""

    @torch.inference_mode()
    def recorded_bytes(self) -> int:
        """Return what all sizes hold beside the pools once they are recorded: they share the memory in which
        they compute, and each has numbers and logits of its own.

        Effect: computes a step of the most rows, and one of the most tokens.
        """
        if not self._sizes:
            return 0
        own, peaks = 0, [0]
        for size in {max(self._sizes), max(self._sizes, key=lambda size: size.num_rows * size.context_len)}:
            try:
                step = _Step(self._forward, self._groups, self._limits, size)
                peaks.append(peak_bytes(step.compute_once))
            except torch.OutOfMemoryError:  # nor is it recorded then
                continue
            row_bytes = step.own_bytes / size.num_rows
            own = max(own, int(row_bytes * sum(each.num_rows for each in self._sizes)))
        return max(peaks) + own

    @torch.inference_mode()
    def prepare(
        self, report: Callable[[str], None] = lambda _: None, leaves_enough: Callable[[], bool] = lambda: True
    ) -> float:
        """Record every size, the largest first, since smaller ones use its memory again.

        Args:
            report: is told in words how far it is.
            leaves_enough: asked behind each size whether the memory that others need is left; else the size
                is not recorded.

        Returns:
            The seconds it took.

        Raises:
            torch.AcceleratorError: the device failed while it computed; nothing on it can be trusted.
        """
        start_s = perf_counter()
        without: list[Size] = []
        for number, size in enumerate(sorted(self._sizes, reverse=True), 1):
            report(f"recording decode steps, {number} of {len(self._sizes)}")
            try:
                self._steps[size] = _Step(self._forward, self._groups, self._limits, size)
                self._steps[size].record(self._record)
                if not leaves_enough():
                    raise torch.OutOfMemoryError("what other steps need is not left")
            except torch.AcceleratorError:
                raise
            except torch.OutOfMemoryError:
                self._steps.pop(size, None)
                without.append(size)
            except (RuntimeError, NotImplementedError) as error:
                self._steps.clear()
                self.problem = " ".join(str(error).split())[:PROBLEM_LEN]
                log.warning("decode steps are not recorded, which makes answers slower: %s", error)
                break
        if without and not self._steps and self.problem is None:
            self.problem = "no memory is left for them; a smaller --kv-device-bytes leaves more"
        if without:
            rows = ", ".join(str(number) for number in sorted({size.num_rows for size in without}))
            log.warning(
                "no memory to record decode steps of %s rows, which makes such answers slower; a smaller"
                " --kv-device-bytes leaves more",
                rows,
            )
        seconds = perf_counter() - start_s
        log.info("%d sizes of decode steps are recorded, in %.1f s", len(self._steps), seconds)
        return seconds

    @torch.inference_mode()
    def time_smallest(self) -> tuple[float, Tensor]:
        """Record the smallest size anew; return the seconds that it takes, and logits without a query.

        Raises:
            RuntimeError: it cannot be recorded.
        """
        step = _Step(self._forward, self._groups, self._limits, min(self._sizes))
        step.record(self._record)
        return min(step.seconds() for _ in range(TIMED_ROUNDS)), step.run().float().clone()

    def note(self, batch: Batch) -> None:
        """See `ShortSteps`, here and below."""
        update_tables(self._tables, batch, [group.id for group in self._groups], torch.device("cpu"))

    def takes(self, batch: Batch) -> bool:
        fits = all(len(chunk.token_ids) == 1 and chunk.samples for chunk in batch.chunks)
        return fits and self._size_of(batch) is not None and not any(map(self._derives, batch.chunks))

    def _derives(self, chunk: Chunk) -> bool:
        """Whether a token makes a block of another one, as a quantized one is: that is not recorded."""
        size = self._limits.block_size
        derived = (group for group in self._groups if group.source is not None)
        return any(
            group.num_blocks(chunk.end, size) > group.num_blocks(chunk.start, size) for group in derived
        )

    @torch.inference_mode()
    def logits(self, batch: Batch, token_ids: Tensor | None = None) -> Tensor:
        size = self._size_of(batch)
        assert size is not None
        step = self._steps[size]
        step.fill(batch.chunks, self._tables)
        return step.run(token_ids)[: len(batch.chunks)].to(torch.float32, copy=True)

    def _size_of(self, batch: Batch) -> Size | None:
        num_rows, longest = len(batch.chunks), max((chunk.end for chunk in batch.chunks), default=0)
        fitting = (size for size in self._steps if size.num_rows >= num_rows and size.context_len >= longest)
        return min(fitting, default=None)


class _Step:
    """One size: where its numbers lie, and what repeats it.

    Everything a step needs lies in one run of int32: token ids, positions and numbers of queries [B] each,
    then for each group slots and first blocks [B] and tables [B, n].
    """

    def __init__(self, forward: ForwardPass, groups: Sequence[Group], limits: Limits, size: Size) -> None:
        self._forward = forward
        self._groups = groups
        self._limits = limits
        self._size = size
        self._widths = {group.id: _width(group, limits, size) for group in groups}
        counts = [3 * size.num_rows, *(size.num_rows * (2 + self._widths[group.id]) for group in groups)]
        on_gpu = forward.device.type == "cuda"
        self._device = torch.zeros(sum(counts), dtype=torch.int32, device=forward.device)
        self._hosts = [
            torch.zeros(sum(counts), dtype=torch.int32, pin_memory=on_gpu) for _ in range(NUM_HOST_BUFFERS)
        ]
        self._read: list[torch.cuda.Event | None] = [None] * NUM_HOST_BUFFERS
        self._turn = 0
        self._ends = np.cumsum(counts).tolist()
        self._row = self._make_row()
        self._logits: Tensor | None = None
        self._repeat: Callable[[], None] = self._compute

    @property
    def own_bytes(self) -> int:
        """Bytes of its numbers on the device, and of its logits once it has computed."""
        return self._device.nbytes + (0 if self._logits is None else self._logits.nbytes)

    def compute_once(self) -> None:
        """Compute the step on rows without a query."""
        self.fill((), {})
        self._send()
        self._compute()

    def record(self, record: Record) -> None:
        """Make the step repeatable, and see that it is. Computes it, on rows without a query.

        Raises:
            RuntimeError: it cannot be recorded, or computes other numbers then.
        """
        self.fill((), {})
        self._send()
        self._repeat = record(self._compute)
        self._compute()
        assert self._logits is not None
        wanted = self._logits.clone()
        self._logits.zero_()
        self._repeat()
        if not torch.allclose(self._logits, wanted, rtol=1e-2, atol=1e-2 * float(wanted.abs().max())):
            raise RuntimeError("a step that is repeated computes other numbers than it did")

    def fill(self, chunks: Sequence[Chunk], tables: BlockTables) -> None:
        """Write what is to be computed into the host's buffer."""
        self._turn = (self._turn + 1) % NUM_HOST_BUFFERS
        read = self._read[self._turn]
        if read is not None:
            read.synchronize()  # of the step before the last
        num_rows, block_size = self._size.num_rows, self._limits.block_size
        whole = self._hosts[self._turn].numpy()
        whole.fill(0)
        head = whole[: 3 * num_rows].reshape(3, num_rows)
        num = len(chunks)
        head[0, :num] = [chunk.token_ids[0] for chunk in chunks]
        head[1, :num] = [chunk.start for chunk in chunks]
        head[2, :num] = 1
        for group, (start, end) in zip(self._groups, pairwise(self._ends), strict=True):
            slots, firsts = whole[start : start + 2 * num_rows].reshape(2, num_rows)
            rows = whole[start + 2 * num_rows : end].reshape(num_rows, -1)
            slots[:] = self._limits.num_slots.get(group.id, 0)
            for number, chunk in enumerate(chunks):
                if group.source is None:
                    table = tables[chunk.sequence, group.id].numpy()
                    first = group.spec.first_visible(chunk.start) // block_size
                    last = chunk.start // block_size
                    slots[number] = table[last] * block_size + chunk.start % block_size
                    firsts[number] = first
                    rows[number, : last + 1 - first] = table[first : last + 1]
                elif num_old := group.num_blocks(chunk.start, block_size):
                    rows[number, :num_old] = tables[chunk.sequence, group.id][:num_old].numpy()

    def run(self, token_ids: Tensor | None = None) -> Tensor:
        """Compute what was filled in and return all rows' logits [B, V]; the next run overwrites them.

        Args:
            token_ids: of the first rows, instead of those that were filled in.
        """
        self._send()
        if token_ids is not None:
            self._device[: len(token_ids)].copy_(token_ids)
        self._repeat()
        assert self._logits is not None
        return self._logits

    def seconds(self) -> float:
        """Return how long the step takes when it is repeated at once."""
        wait = torch.cuda.synchronize if self._device.is_cuda else lambda: None
        wait()
        start_s = perf_counter()
        for _ in range(TIMED_STEPS):
            self._repeat()
        wait()
        return (perf_counter() - start_s) / TIMED_STEPS

    def _send(self) -> None:
        self._device.copy_(self._hosts[self._turn], non_blocking=True)
        if self._device.is_cuda:
            event = self._read[self._turn] = self._read[self._turn] or torch.cuda.Event()
            event.record()

    def _compute(self) -> None:
        """Compute the step; while it is recorded, the result's place is too."""
        row = InputBatch(
            token_ids=self._row.token_ids.long(),
            positions=self._row.positions.long(),
            groups=self._row.groups,
            sampling=self._row.sampling,
        )
        logits = self._forward.logits(row)
        if self._logits is None:
            self._logits = torch.empty_like(logits)
        self._logits.copy_(logits)

    def _make_row(self) -> InputBatch:
        """Return the step's tokens and tables as parts of the buffer on the device."""
        num_rows = self._size.num_rows
        token_ids, positions, q_lens = self._device[: 3 * num_rows].view(3, num_rows)
        at = torch.arange(num_rows, dtype=torch.int32, device=self._device.device)
        groups = {}
        builders = metadata_builders(self._groups, self._limits.block_size)
        for builder, (start, end) in zip(builders, pairwise(self._ends), strict=True):
            group, part = builder.group, self._device[start:end]
            listed = part[2 * num_rows :].view(num_rows, self._widths[group.id])
            tables = StepTables(
                q_starts=at,
                q_lens=q_lens,
                positions=positions,
                first_blocks=part[num_rows : 2 * num_rows],
                tables=listed,
                singles=tuple(range(num_rows)),
                others=(),
                most_visible=_most_visible(group, self._size.context_len),
            )
            tables.single_tiles()  # made here: a recorded step copies nothing from the host
            groups[group.id] = builder.recorded(part[:num_rows], tables)
        return InputBatch(token_ids=token_ids, positions=positions, groups=groups, sampling=at.long())


def _most_visible(group: Group, context_len: int) -> int:
    """Return the most keys that a query sees."""
    most = group.spec.max_visible
    return context_len if most is None else min(most, context_len)


def _width(group: Group, limits: Limits, size: Size) -> int:
    """Return the most blocks that a table lists."""
    if group.source is not None:
        return max(1, group.num_blocks(size.context_len, limits.block_size))
    most = _most_visible(group, size.context_len)
    return min(-(-size.context_len // limits.block_size), -(-most // limits.block_size) + 1)
