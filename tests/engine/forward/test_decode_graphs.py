"""Steps in buffers of a fixed size compute what steps of exactly their size do, whoever else is in them."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from kvchat.engine.api.ids import BlockId, RequestId, SequenceId
from kvchat.engine.cache.block_operations import TableChange
from kvchat.engine.formats.format_table import metadata_builders
from kvchat.engine.forward.activation_memory import peak_bytes
from kvchat.engine.forward.decode_graphs import DecodeGraphRunner, Limits, compute_anew
from kvchat.engine.forward.model_route import ModelPlan, choose_route
from kvchat.engine.forward.runner import Runner
from kvchat.engine.memory.device_pool import DevicePool
from kvchat.engine.models.load import load_model
from kvchat.engine.sequences.batch_plan import Batch, Chunk
from tests.engine.tiny_models import token_ids

pytestmark = pytest.mark.cpu

BLOCK_SIZE, NUM_BLOCKS, CONTEXT_LEN = 8, 40, 128
LENGTHS = (1, 7, 8, 9, 63, 90)
KINDS = ("llama", "qwen3", "gpt2")
CPU = torch.device("cpu")


class Sequences:
    """Prompts of a model in blocks of a shuffled pool, and the last token of each still to be computed."""

    def __init__(self, served: ModelPlan) -> None:
        self.served = served
        sizes = {group.id: NUM_BLOCKS for group in served.groups}
        self.pool = DevicePool(served.groups, sizes, BLOCK_SIZE, CPU)
        for layer in self.pool.layers.values():  # nobody may read what was not written
            layer.keys.fill_(float("nan"))
            layer.values.fill_(float("nan"))
        self.forward = served.make_pass(self.pool)
        self.runner = Runner(self.forward, metadata_builders(served.groups, BLOCK_SIZE))
        order = torch.randperm(NUM_BLOCKS, generator=torch.Generator().manual_seed(3)).tolist()
        self.prompts = [token_ids(length + 1, seed=length) for length in LENGTHS]
        self.changes: list[TableChange] = []
        for number, prompt in enumerate(self.prompts):
            blocks = tuple(BlockId(order.pop()) for _ in range(-(-len(prompt) // BLOCK_SIZE)))
            self.changes += [TableChange(SequenceId(number), group.id, 0, blocks) for group in served.groups]
        chunks = [self.chunk(number, 0, prompt[:-1]) for number, prompt in enumerate(self.prompts)]
        self.runner.run(Batch(tuple(chunks), (), tuple(self.changes), ()))

    def chunk(self, number: int, start: int, tokens: Sequence[int]) -> Chunk:
        return Chunk(RequestId(number), SequenceId(number), start, tuple(tokens), True)

    def last(self, numbers: Sequence[int]) -> Batch:
        """Return the batch of the last tokens of some sequences."""
        chunks = [self.chunk(number, LENGTHS[number], self.prompts[number][-1:]) for number in numbers]
        return Batch(tuple(chunks), (), (), ())

    def steps(self, batch_sizes: Sequence[int]) -> DecodeGraphRunner:
        """Return prepared steps on the same pool, which know all tables."""
        num_slots = {group.id: NUM_BLOCKS * BLOCK_SIZE for group in self.served.groups}
        limits = Limits(block_size=BLOCK_SIZE, context_len=CONTEXT_LEN, num_slots=num_slots)
        made = DecodeGraphRunner(self.forward, self.served.groups, limits, compute_anew, batch_sizes)
        made.prepare()
        made.note(Batch((), (), tuple(self.changes), ()))
        return made


@pytest.fixture(params=KINDS)
def sequences(request: Any, tiny: Any) -> Sequences:
    return open_sequences(tiny(request.param))


def open_sequences(model_dir: Path) -> Sequences:
    return Sequences(choose_route(load_model(model_dir, "float32", CPU)))


def test_a_step_that_is_filled_up_computes_what_the_sequences_alone_do(sequences: Sequences) -> None:
    every = range(len(LENGTHS))
    steps = sequences.steps((8,))
    batch = sequences.last(every)
    assert steps.takes(batch)
    found = steps.logits(batch)
    wanted = sequences.runner.run(batch)
    assert torch.allclose(found, wanted, atol=1e-4)
    assert torch.equal(found.argmax(1), wanted.argmax(1))


def test_neighbours_and_empty_rows_change_no_bit(sequences: Sequences) -> None:
    steps = sequences.steps((8,))
    every = list(range(len(LENGTHS)))
    together = steps.logits(sequences.last(every))
    for number in every:
        assert torch.equal(steps.logits(sequences.last([number]))[0], together[number])
    backwards = steps.logits(sequences.last(every[::-1]))
    assert torch.equal(backwards.flip(0), together)


def test_empty_rows_store_nothing(sequences: Sequences) -> None:
    """Nor do those in which another sequence stood before, in either of the host's buffers."""
    steps = sequences.steps((8,))
    for _ in range(2):
        steps.logits(sequences.last(range(len(LENGTHS))))
    for layer in sequences.pool.layers.values():
        layer.keys.fill_(7)
        layer.values.fill_(7)
    for number in (2, 5):
        steps.logits(sequences.last([number]))
    for layer in sequences.pool.layers.values():
        for part in (layer.keys, layer.values):
            assert int((part != 7).any(dim=3).any(dim=1).sum()) == 2, "two tokens were stored"


def test_a_batch_takes_the_smallest_size_that_it_fits_into(sequences: Sequences) -> None:
    steps = sequences.steps((2, 4))
    one, three = sequences.last([0]), sequences.last([0, 1, 2])
    assert steps._size_of(one) == min(steps._steps)
    assert steps._size_of(three) == max(steps._steps)
    assert not steps.takes(sequences.last(range(5)))
    prompt = Batch((sequences.chunk(0, 0, (1, 2)),), (), (), ())
    assert not steps.takes(prompt)
    too_long = Batch((sequences.chunk(0, CONTEXT_LEN, (1,)),), (), (), ())
    assert not steps.takes(too_long)


def test_a_step_that_cannot_be_recorded_is_not_used(tiny: Any, caplog: pytest.LogCaptureFixture) -> None:
    def fails(step: Any) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing")

    sequences = open_sequences(tiny("llama"))
    steps = sequences.steps((2,))
    steps._record = fails
    steps.prepare()
    assert not steps.takes(sequences.last([0]))
    assert "not permitted" in caplog.text


def test_a_step_that_computes_other_numbers_when_it_is_repeated_is_not_used(
    tiny: Any, caplog: pytest.LogCaptureFixture
) -> None:
    sequences = open_sequences(tiny("llama"))
    steps = sequences.steps((2,))
    steps._record = lambda step: lambda: None
    steps.prepare()
    assert not steps.takes(sequences.last([0]))
    assert "other numbers" in caplog.text


def test_a_recorded_step_reads_its_buffers_anew(tiny: Any) -> None:
    """What a recorder keeps is the step's first run: nothing of a batch may have gone into it but buffers."""
    sequences = open_sequences(tiny("llama"))
    steps = sequences.steps((4,))
    (step,) = steps._steps.values()
    first = steps.logits(sequences.last([0, 1]))
    device, hosts = step._device.data_ptr(), [host.data_ptr() for host in step._hosts]
    second = steps.logits(sequences.last([4, 5]))
    assert (step._device.data_ptr(), [host.data_ptr() for host in step._hosts]) == (device, hosts)
    assert not torch.equal(first, second)
    assert torch.equal(steps.logits(sequences.last([0, 1])), first)


class Card:
    """A device's memory, of which recorded steps take; smaller ones compute in that of larger ones.

    Args:
        comes_back: whether what a step took is free again when it is given up.
    """

    ROW_BYTES = 100

    def __init__(self, num_bytes: int, reserve_bytes: int, *, comes_back: bool) -> None:
        self._num_bytes = num_bytes
        self._reserve_bytes = reserve_bytes
        self._comes_back = comes_back
        self._taken = 0

    def record(self, step: Callable[[], None]) -> Callable[[], None]:
        if self._comes_back and self.left() < self._reserve_bytes:
            self._taken = 0
        num_rows = step.__self__._size.num_rows  # type: ignore[attr-defined]
        self._taken = max(self._taken, num_rows * self.ROW_BYTES)
        return step

    def left(self) -> int:
        return self._num_bytes - self._taken


@pytest.mark.parametrize("comes_back", [False, True])
@pytest.mark.parametrize(
    ("reserve_bytes", "fitting"),
    [(0, {1, 2, 8}), (400, {1, 2, 8}), (401, {1, 2}), (1001, {1}), (1200, set())],
)
def test_recorded_steps_leave_what_other_steps_need(
    reserve_bytes: int, fitting: set[int], comes_back: bool, tiny: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Of 1,200 bytes the largest takes 800; if they do not come back, nothing else has room either."""
    sequences = open_sequences(tiny("llama"))
    card = Card(1200, reserve_bytes, comes_back=comes_back)
    limits = Limits(block_size=BLOCK_SIZE, context_len=CONTEXT_LEN, num_slots={})
    steps = DecodeGraphRunner(sequences.forward, sequences.served.groups, limits, card.record, (1, 2, 8))
    steps.prepare(leaves_enough=lambda: card.left() >= reserve_bytes)
    kept = {size.num_rows for size in steps._steps}
    assert kept == (fitting if comes_back or 8 in fitting else set())
    assert not kept or card.left() >= reserve_bytes
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    missing = ", ".join(str(number) for number in sorted({1, 2, 8} - kept))
    assert len(warnings) == (1 if missing else 0)
    assert all(f"no memory to record decode steps of {missing} rows" in warning for warning in warnings)


def test_what_recorded_steps_hold_is_known_before_there_are_any(tiny: Any) -> None:
    """Numbers and logits of each size, and the memory in which the largest computes."""
    sequences = open_sequences(tiny("llama"))
    limits = Limits(block_size=BLOCK_SIZE, context_len=CONTEXT_LEN, num_slots={})

    def foreseen(batch_sizes: Sequence[int]) -> int:
        groups = sequences.served.groups
        return DecodeGraphRunner(
            sequences.forward, groups, limits, compute_anew, batch_sizes
        ).recorded_bytes()

    one, large, both = foreseen((1,)), foreseen((8,)), foreseen((1, 8))
    steps = sequences.steps((1, 8))
    held = {size.num_rows: step.own_bytes for size, step in steps._steps.items()}
    with torch.inference_mode():
        peaks = {size.num_rows: peak_bytes(step._compute) for size, step in steps._steps.items()}
    assert held[8] == 8 * held[1]
    for found, rows in ((one, (1,)), (large, (8,)), (both, (1, 8))):
        assert found >= sum(held[number] for number in rows) + peaks[max(rows)]
    assert both == large + held[1]
    assert DecodeGraphRunner(sequences.forward, (), limits, compute_anew, ()).recorded_bytes() == 0
