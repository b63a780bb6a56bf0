"""Visibility of cached tokens under a view, and its effect on block keys.

In the exact format every block descends from the one before. Over a view, what is computed once something is
out of sight is another text's KV, so from there on names descend from a taint too: the view, and whose
sequence it is. No other session's prompt is ever matched with them, and the same session finds them again.
"""

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b

from kvchat.engine.api.ids import KEY_BYTES, BlockKey, GroupId, block_key, u32le
from kvchat.engine.api.namespace import parse_namespace
from kvchat.engine.api.view import NUM_OBSERVED, REACH, SNAPKV, View
from kvchat.engine.formats.apply_view import viewed_spec
from kvchat.engine.formats.full.spec import FullSpec
from kvchat.engine.formats.pruned.spec import PrunedSpec
from kvchat.engine.formats.shadow.settings import QUERY_BLOCK, least_prompt
from kvchat.engine.formats.shadow.spec import ShadowSpec
from kvchat.engine.formats.spec import Group, Selection
from kvchat.engine.formats.window.spec import NUM_SINK_BLOCKS, WindowSpec

_TAINT_PERSON = b"kvchat.taint1"
HiddenRange = tuple[int, int]
"""Blocks [start, end) that are out of sight."""
Name = tuple[BlockKey, BlockKey]
"""A block's key and its parent."""


def taint_key(parent: BlockKey, salt: bytes) -> BlockKey:
    """Return the parent of what is computed behind `parent` over a view."""
    return BlockKey(blake2b(parent + salt, digest_size=KEY_BYTES, person=_TAINT_PERSON).digest())


@dataclass(frozen=True, slots=True, kw_only=True)
class PrunePoint:
    """A long prompt has been read, and a stretch of it is pruned, once; or it gets a shadow.

    Args:
        at: tokens of the sequence when that happens: the end of the prompt.
        start: first block of the stretch.
        end: the block behind its last one; nothing is pruned where it is the first one, too.
    """

    at: int
    start: int
    end: int

    def num_kept(self, group: Group) -> int:
        """Return how many blocks of the stretch a group keeps; they stand at its beginning. Pure."""
        assert isinstance(group.spec, PrunedSpec)
        return group.spec.kept_blocks(self.end - self.start)


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewSchedule:
    """Args:
    salt: what the taint consists of: view and owner.
    block_size: tokens of a block.
    first_tainted: of a window: the first block whose queries miss something; None: there is none.
    prune_points: where something is pruned, or will be, in the order of the tokens.
    num_observed: the last tokens of a prompt that are computed in one step, since pruning looks at them.
    query_block: of a shadow: positions are divided by so many where what is looked at is chosen together;
        the prune points say where it begins, and prune nothing. 0: there is no shadow.
    """

    salt: bytes = b""
    block_size: int = 1
    first_tainted: int | None = None
    prune_points: tuple[PrunePoint, ...] = ()
    num_observed: int = 0
    query_block: int = 0

    # Prune points

    def up_to(self, num_prune_points: int) -> "ViewSchedule":
        """Return the view schedule as it is before its later prune points. Pure."""
        return replace(self, prune_points=self.prune_points[:num_prune_points])

    def next_prune_point(self, num_tokens: int) -> PrunePoint | None:
        """Return the first prune point behind `num_tokens` computed tokens. Pure."""
        return next((point for point in self.prune_points if point.at > num_tokens), None)

    def step_len(self, num_computed: int, num_tokens: int) -> int:
        """Return how many of the next `num_tokens` tokens one step may compute: no further than where
        something is pruned, and what pruning looks at in one piece; behind a shadow's beginning up to where
        queries choose anew, if that is within reach. Pure.
        """
        prune_point = self.next_prune_point(num_computed)
        num_left = num_tokens if prune_point is None else prune_point.at - num_computed
        if num_tokens >= num_left:
            return self._whole_blocks(num_computed, num_left)
        return self._whole_blocks(num_computed, max(0, min(num_tokens, num_left - self.num_observed)))

    def most_found(self, prune_point: PrunePoint) -> int:
        """Return how many tokens before a prune point may be found instead of computed: what decides about it
        must be computed. Pure.
        """
        return prune_point.at - max(1, self.num_observed)

    def shadow_start(self, num_tokens: int) -> int | None:
        """Return how many tokens had been computed when the shadow was made through which the one behind
        `num_tokens` is computed; None: it is computed exactly. Pure.
        """
        if not self.query_block:
            return None
        return max((point.at for point in self.prune_points if point.at <= num_tokens), default=None)

    def _whole_blocks(self, num_computed: int, num_tokens: int) -> int:
        if not self.query_block or self.shadow_start(num_computed) is None:
            return num_tokens
        end = (num_computed + num_tokens) // self.query_block * self.query_block
        return end - num_computed if end > num_computed else num_tokens

    # Names

    def parent(self, number: int, previous: BlockKey, num_tokens: int) -> BlockKey:
        """Return the parent of block `number` of a sequence with `num_tokens` tokens. Pure.

        Args:
            previous: name of the block before as it was computed, or the root.
        """
        if number == self.first_tainted:
            previous = taint_key(previous, self.salt)
        for prune_point in self.prune_points:
            if prune_point.at <= num_tokens and prune_point.at // self.block_size == number:
                previous = taint_key(previous, self.salt + u32le((prune_point.at,)))
        return previous

    def kept_names(
        self, prune_point: PrunePoint, spine: Sequence[BlockKey], token_ids: Sequence[int]
    ) -> dict[int, Name]:
        """Return the names of what is kept of a stretch, by number. They follow from all tokens that were
        read when it was pruned. Pure.

        Args:
            spine: names of all full blocks before the prune point, as they were computed.
        """
        if prune_point.start == prune_point.end:
            return {}
        size = self.block_size
        tail = prune_point.at // size
        read = self.salt + b"kept" + u32le(token_ids[tail * size : prune_point.at])
        parent = taint_key(self.parent(tail, spine[tail - 1], prune_point.at - 1), read)
        names: dict[int, Name] = {}
        for number in range(prune_point.start, prune_point.end):
            key = block_key(parent, token_ids[number * size : (number + 1) * size])
            names[number] = (key, parent)
            parent = key
        return names

    # Sight

    def hidden_ranges(self, group: Group, num_tokens: int, block_size: int) -> tuple[HiddenRange, ...]:
        """Return what is out of sight behind `num_tokens` tokens, ascending. Pure."""
        if self.prune_points and isinstance(group.spec, PrunedSpec):
            passed = [point for point in self.prune_points if point.at <= num_tokens]
            ranges = [(point.start + point.num_kept(group), point.end) for point in passed]
            return tuple((first, end) for first, end in ranges if first < end)
        return group.spec.hidden_blocks(num_tokens, block_size)

    def numbers(self, group: Group, num_tokens: int, block_size: int) -> list[int]:
        """Return the numbers of the blocks among those of `num_tokens` tokens that are in sight; of a state
        none, which stands for all tokens. Pure.
        """
        if group.is_state:
            return []
        return in_sight(
            self.hidden_ranges(group, num_tokens, block_size), group.num_blocks(num_tokens, block_size)
        )


EXACT = ViewSchedule()


def kept_name(group: Group, number: int, kept_names: Mapping[int, Name]) -> Name | None:
    """Return the name of what is kept in the place of a block, if the group is pruned. Pure."""
    return kept_names.get(number) if group.spec.selection is Selection.PRUNED else None


def in_sight(hidden_ranges: Sequence[HiddenRange], end: int) -> list[int]:
    """Return the numbers below `end` that are in no hidden range. Pure."""
    numbers: list[int] = []
    start = 0
    for first, last in hidden_ranges:
        numbers += range(start, min(first, end))
        start = last
    return numbers + list(range(start, end))


class ViewSchedules:
    """View schedules of sequences whose layers are these."""

    def __init__(self, groups: Sequence[Group], block_size: int) -> None:
        specs = (group.spec for group in groups)
        self._spec = next(
            (one for one in specs if isinstance(one, WindowSpec | PrunedSpec | ShadowSpec)), None
        )
        self._block_size = block_size

    def of(self, owner: str, namespace: str, num_tokens: int = 0) -> ViewSchedule:
        """Return the view schedule of a new sequence.

        Args:
            owner: whose sequence it is, where the namespace does not say it; nobody's blocks are never found
                again.
            num_tokens: of the prompt, which ends there unless the namespace says where prompts end.
        """
        spec = self._spec
        if spec is None:
            return EXACT
        name = parse_namespace(namespace).owner or owner
        nonce = b"owner" + name.encode() if name else secrets.token_bytes(KEY_BYTES)
        begun = ViewSchedule(block_size=self._block_size)
        if isinstance(spec, WindowSpec):
            rule = f"window {spec.num_recent} of {spec.block_size}"
            begun = replace(begun, first_tainted=spec.first_tainted)
        elif isinstance(spec, ShadowSpec):
            rule, begun = str(spec.view), replace(begun, query_block=QUERY_BLOCK)
        elif spec.rule == SNAPKV:
            rule, begun = f"{spec.text} reach {REACH}", replace(begun, num_observed=NUM_OBSERVED)
        else:
            rule = spec.text
        return self.going_on(replace(begun, salt=rule.encode() + nonce), namespace, num_tokens)

    def going_on(self, view_schedule: ViewSchedule, namespace: str, num_tokens: int) -> ViewSchedule:
        """Return the view schedule of a sequence that goes on with a longer prompt: what is pruned stays so.

        Args:
            num_tokens: as for `of`.
        """
        if not isinstance(self._spec, PrunedSpec | ShadowSpec):
            return view_schedule
        said = parse_namespace(namespace)
        passed = (point.at for point in view_schedule.prune_points)
        ends = said.answer_starts if said.owner else (*passed, num_tokens)
        if isinstance(self._spec, ShadowSpec):
            prune_points = shadow_points(ends, self._spec.view)
        else:
            prune_points = points_at(ends, self._spec.num_kept, self._block_size)
        return replace(view_schedule, prune_points=prune_points)


def schedule_over(view: View, block_size: int, namespace: str) -> ViewSchedule:
    """Return the view schedule of a namespace's sequences over a view, whatever the model. Pure where the
    namespace says whose it is.
    """
    layer = FullSpec(num_kv_heads=1, head_dim_k=1, head_dim_v=1, dtype="F32")
    spec = viewed_spec(layer, view, block_size, (0, 1) if view.is_pyramid else None)
    return ViewSchedules([Group(id=GroupId(0), spec=spec, layers=(0,))], block_size).of("", namespace)


def points_at(prompt_ends: Iterable[int], num_kept: int, block_size: int) -> tuple[PrunePoint, ...]:
    """Return where a sequence is pruned. Pure, and what comes later changes nothing of what is before.

    A stretch begins where the last one ended, so that nothing is pruned twice, and ends before the last
    tokens of the prompt. It is pruned if it has more blocks than are kept of it.
    """
    prune_points: list[PrunePoint] = []
    start = NUM_SINK_BLOCKS
    for at in prompt_ends:
        end = (at - NUM_OBSERVED) // block_size
        if end - start > num_kept:
            prune_points.append(PrunePoint(at=at, start=start, end=end))
            start = end
    return tuple(prune_points)


def shadow_points(prompt_ends: Iterable[int], view: View) -> tuple[PrunePoint, ...]:
    """Return where a sequence gets a shadow: behind the first prompt that is long enough, and anew behind
    each by whose end it has grown to twice what it was. Pure.
    """
    prune_points: list[PrunePoint] = []
    least = least_prompt(view)
    for at in prompt_ends:
        if at >= least:
            prune_points.append(PrunePoint(at=at, start=0, end=0))
            least = 2 * at
    return tuple(prune_points)
