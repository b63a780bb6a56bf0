"""One model on one cache format, outside of any engine: a text is computed, taken back and computed on.

Every block has one place for good, so there is nothing to allocate, name or evict; a layer that sees a window
goes around in a ring. Over a view that prunes, what is kept of a stretch takes its first places. There are
three states: where a computation began, which may be gone back to, where it is, and where it will be.
Dimensions: N rows, V vocabulary, P block size.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil

import torch
from torch import Tensor

from kvchat.engine.api.ids import BlockId, GroupId, RequestId, SequenceId
from kvchat.engine.api.namespace import Namespace
from kvchat.engine.cache.block_operations import Prune, TableChange
from kvchat.engine.formats.format_table import Resources, codec_of, metadata_builders
from kvchat.engine.formats.pool_sizing import window_blocks
from kvchat.engine.formats.shadow.shadows import Shadows
from kvchat.engine.formats.spec import Group, Selection
from kvchat.engine.formats.view_schedule import HiddenRange, ViewSchedules
from kvchat.engine.forward.runner import ForwardPass, Runner
from kvchat.engine.memory.device_pool import DevicePool
from kvchat.engine.sequences.batch_plan import Batch, Chunk, ShadowedPrompt

_BRANCH = SequenceId(0)
_STATES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySize:
    """What a replay holds.

    Args:
        max_len: tokens of the longest text.
        chunk_len: most tokens computed at once.
        back_len: most tokens that are taken back, to compute others in their place or to be converted.
        block_size: tokens of a block.
    """

    max_len: int
    chunk_len: int
    back_len: int
    block_size: int


class Replay:
    """Computes one text at a time, from any of its positions on.

    Args:
        make_pass: makes the model's forward pass on a pool.
        groups: what is stored of its layers.
        device: of the model.
        shadows: through which long contexts are looked at, where groups have any.
    """

    def __init__(
        self,
        make_pass: Callable[[DevicePool], ForwardPass],
        groups: Sequence[Group],
        size: ReplaySize,
        device: torch.device,
        shadows: Shadows | None = None,
    ) -> None:
        self._shadows = shadows
        self.groups = tuple(groups)
        self.size = size
        self._make_pass = make_pass
        self._rings = {group.id: _ring(group, size) for group in groups}
        self.pool = DevicePool(groups, self._rings, size.block_size, device)
        self._runner: Runner | None = None
        self._pruned = [group for group in groups if group.spec.selection is Selection.PRUNED]
        self._schedules = ViewSchedules(self.groups, size.block_size)
        self._schedule = self._schedules.of("replay", "")
        self._stateful = [group for group in groups if group.is_state]
        self._slots: dict[int, int] = {}
        """Of the states behind so many tokens."""
        self._kept_at = 0
        self._kept: dict[int, Tensor] = {}
        self._num_plans = 0
        """That were made: what is computed after another one may be another text."""

    @property
    def is_pruned(self) -> bool:
        """Whether what is seen depends on where prompts end."""
        return bool(self._pruned)

    @property
    def is_shadowed(self) -> bool:
        """Whether long contexts are looked at through shadows, which are made where prompts end."""
        return any(group.spec.selection is Selection.EACH_STEP for group in self.groups)

    @property
    def follows_prompts(self) -> bool:
        """Whether what is computed depends on where prompts end; see `plan`."""
        return self.is_pruned or self.is_shadowed

    @property
    def is_view(self) -> bool:
        """Whether blocks are those of the exact format, and only some of them are seen."""
        return any(group.spec.selection is not Selection.ALL for group in self.groups)

    def plan(self, prompt_ends: Sequence[int]) -> None:
        """Say where prompts end in the text to come, computed from its beginning: long ones are pruned there,
        or get a shadow.
        """
        self._num_plans += 1
        namespace = Namespace(owner="replay", answer_starts=tuple(prompt_ends))
        self._schedule = self._schedules.of("", str(namespace))

    def begin(self) -> None:
        """Let this replay compute from now on, and no other on the same model."""
        resources = Resources(layers=self.pool.layers, shadows=self._shadows)
        builders = metadata_builders(self.groups, self.size.block_size, resources)
        self._runner = Runner(self._make_pass(self.pool), builders)
        self._num_plans += 1
        if self._shadows is not None:
            self._shadows.clear()
        self._changes = tuple(self._tables())

    def compute(self, token_ids: Sequence[int], start: int, num_rows: int = 0) -> Tensor:
        """Compute tokens at positions from `start` on.

        Returns:
            The logits [N, V], float32, behind the last `num_rows` tokens.
        """
        found = [rows for _, rows in self.steps(token_ids, start, num_rows)]
        return torch.cat(found) if found else torch.zeros(0, 0)

    def steps(self, token_ids: Sequence[int], start: int, num_rows: int = 0) -> Iterator[tuple[int, Tensor]]:
        """Compute the same step by step, for whom not all logits are of use.

        Yields:
            The position of a token, and the logits [N, V] behind it and those after it, of one step.
        """
        assert self._runner is not None, "begin comes first"
        assert start + len(token_ids) <= self.size.max_len
        num_silent = len(token_ids) - num_rows
        end = 0
        while end < len(token_ids):
            most = min(self.size.chunk_len, len(token_ids) - end)
            first, end = end, end + self._schedule.step_len(start + end, most)
            assert first < end, "what pruning looks at is computed in one piece"
            samples = end > num_silent
            self._changes += self._state_tables(start + first)
            chunk = Chunk(
                request=RequestId(0),
                sequence=_BRANCH,
                start=start + first,
                token_ids=tuple(token_ids[first:end]),
                samples=samples,
                num_drafted=end - max(first, num_silent) - 1 if samples else 0,
                hidden_ranges=self._hidden_ranges(start + first),
                prunes=self._prunes(start + end),
                shadowed=self._shadowed(start + first),
            )
            logits = self._runner.run(Batch((chunk,), (), self._changes, ()))
            self._changes = ()
            self._advance(start, start + end)
            if samples:
                yield start + max(first, num_silent), logits

    def keep_state(self, num_tokens: int) -> None:
        """Keep the states behind so many tokens for a replay that takes over those; a step must end there."""
        self._kept_at, self._kept = num_tokens, {}

    def _state_tables(self, start: int) -> tuple[TableChange, ...]:
        """Say where the states are behind `start` tokens, and where those behind the next step go."""
        if not self._stateful:
            return ()
        blocks = (self._slots[start], self._free_slot()) if start else (self._free_slot(),)
        return tuple(
            TableChange(_BRANCH, group.id, 0, tuple(map(BlockId, blocks))) for group in self._stateful
        )

    def _free_slot(self) -> int:
        return min(set(range(_STATES)) - set(self._slots.values()))

    def _advance(self, begun: int, end: int) -> None:
        """Note that the tokens from `begun` to `end` are computed; the states before those stay beside."""
        if not self._stateful:
            return
        slots = {at: slot for at, slot in self._slots.items() if at == begun}
        self._slots = slots | {end: self._free_slot()}
        if end == self._kept_at:
            slot = self._slots[end]
            self._kept = {layer: pool.keys[slot].clone() for layer, pool in self.pool.states.items()}

    def _shadowed(self, num_computed: int) -> ShadowedPrompt | None:
        num_tokens = self._schedule.shadow_start(num_computed)
        if num_tokens is None:
            return None
        return ShadowedPrompt(name=f"{self._num_plans} {num_tokens}".encode(), num_tokens=num_tokens)

    def convert(self, exact: "Replay", num_tokens: int) -> None:
        """Take over the first `num_tokens` tokens of a replay in the exact format, quantized where this one
        quantizes: what would have been quantized by now is, and the rest is copied. States are those that
        the other one has kept.
        """
        if self._stateful and num_tokens:
            self._slots = {num_tokens: 0}
            for layer, state in exact._kept.items():
                self.pool.states[layer].keys[0] = state
        for layer, pool in self.pool.layers.items():
            source = exact.pool.layers[layer]
            group = next(one for one in self.groups if one.id == pool.group)
            first = group.spec.first_visible(num_tokens) // self.size.block_size
            recent = self._numbers(first, ceil(num_tokens / self.size.block_size))
            codec_of(pool.spec).copy_blocks(
                pool, source, exact.places(source.group, recent), self.places(pool.group, recent)
            )
            if pool.derived is not None:
                derived = next(one for one in self.groups if one.id == pool.derived.group)
                old = self._numbers(0, derived.num_blocks(num_tokens, self.size.block_size))
                codec_of(derived.spec).copy_blocks(
                    pool.derived, source, exact.places(source.group, old), self.places(derived.id, old)
                )

    def places(self, group: GroupId, numbers: Tensor) -> Tensor:
        """Return where logical blocks lie in the pool of a group."""
        return numbers % self._rings[group]

    def num_bytes(self, num_tokens: int) -> int:
        """Return what a conversation of so many tokens holds, all groups together."""
        size = self.size.block_size
        held = (self._schedule.numbers(group, num_tokens, size) for group in self.groups)
        return sum(
            (len(numbers) + group.is_state) * group.block_bytes(size) + group.beside_bytes(num_tokens)
            for group, numbers in zip(self.groups, held, strict=True)
        )

    def token_bytes(self, num_tokens: int) -> float:
        """Return the bytes of one token in the layers that keep all, not counting recent exact blocks;
        over a view what so many tokens hold, divided by them.
        """
        size = self.size.block_size
        kept = [
            group
            for group in self.groups
            if not group.is_state
            and (group.spec.max_visible is None or group.spec.selection.has_hidden_blocks)
        ]
        whole = sum(group.block_bytes(size) for group in kept) / size
        if not self.is_view:
            return whole
        held = (
            len(self._schedule.numbers(group, num_tokens, size)) * group.block_bytes(size) for group in kept
        )
        return min(whole, sum(held) / num_tokens)

    def _hidden_ranges(self, num_tokens: int) -> tuple[tuple[GroupId, tuple[HiddenRange, ...]], ...]:
        size = self.size.block_size
        return tuple(
            (group.id, self._schedule.hidden_ranges(group, num_tokens, size)) for group in self._pruned
        )

    def _prunes(self, end: int) -> tuple[Prune, ...]:
        """Return what is pruned behind the first `end` tokens."""
        prune_point = next((point for point in self._schedule.prune_points if point.at == end), None)
        if prune_point is None:
            return ()
        blocks = tuple(map(BlockId, range(prune_point.start, prune_point.end)))
        return tuple(
            Prune(group.id, prune_point.start, blocks, blocks[: prune_point.num_kept(group)])
            for group in self._pruned
        )

    def _numbers(self, first: int, end: int) -> Tensor:
        return torch.arange(first, max(first, end), device=self.pool.device)

    def _tables(self) -> list[TableChange]:
        whole = ceil(self.size.max_len / self.size.block_size)
        return [
            TableChange(
                _BRANCH,
                group.id,
                0,
                tuple(BlockId(number % self._rings[group.id]) for number in range(whole)),
            )
            for group in self.groups
            if not group.is_state
        ]


def _ring(group: Group, size: ReplaySize) -> int:
    if group.is_state:
        return _STATES
    whole = ceil(size.max_len / size.block_size)
    if group.spec.max_visible is None or group.spec.selection.has_hidden_blocks:
        return whole
    reach = window_blocks(group.spec.max_visible, size.block_size)
    return min(whole, reach + ceil((size.chunk_len + size.back_len) / size.block_size) + 1)
