"""The courses of sequences: from what layers keep, whose the sequence is, and where prompts ended."""

import secrets
from collections.abc import Iterable, Sequence
from dataclasses import replace

from kvchat.engine.api.ids import KEY_BYTES, GroupId
from kvchat.engine.api.namespace import Namespace, parse_namespace
from kvchat.engine.api.view import NUM_OBSERVED, REACH, SNAPKV, View
from kvchat.engine.formats.pruned.view_schedule import EXACT, PrunePoint, ViewSchedule
from kvchat.engine.formats.shadow.settings import LEAST_WIDTH, QUERY_BLOCK, least_prompt
from kvchat.engine.formats.spec import FullSpec, Group
from kvchat.engine.formats.view_spec import NUM_SINK_BLOCKS, PrunedSpec, ShadowSpec, WindowSpec
from kvchat.engine.formats.views import viewed_groups


class ViewSchedules:
    """The courses of sequences whose layers are these."""

    def __init__(self, groups: Sequence[Group], block_size: int) -> None:
        self._windows = [group.spec for group in groups if isinstance(group.spec, WindowSpec)]
        self._pruned = [group.spec for group in groups if isinstance(group.spec, PrunedSpec)]
        self._shadowed = [group.spec for group in groups if isinstance(group.spec, ShadowSpec)]
        self._block_size = block_size

    @property
    def are_exact(self) -> bool:
        """Whether every query sees all before it."""
        return not self._windows and not self._pruned and not self._shadowed

    def parse(self, namespace: str) -> Namespace:
        """Return what a namespace says. Pure."""
        return parse_namespace(namespace)

    def of(self, owner: str, namespace: str, num_tokens: int = 0) -> ViewSchedule:
        """Return the course of a new sequence.

        Args:
            owner: whose sequence it is, where the namespace does not say it; nobody's blocks are never found
                again.
            num_tokens: of the prompt, which ends there unless the namespace says where prompts end.
        """
        if self.are_exact:
            return EXACT
        name = self.parse(namespace).owner or owner
        nonce = b"owner" + name.encode() if name else secrets.token_bytes(KEY_BYTES)
        if self._windows:
            window = self._windows[0]
            salt = f"window {window.num_recent} of {window.block_size}".encode() + nonce
            return ViewSchedule(salt=salt, block_size=self._block_size, first_tainted=window.first_tainted)
        if self._shadowed:
            course = ViewSchedule(
                salt=str(self._shadowed[0].view).encode() + nonce,
                block_size=self._block_size,
                query_block=QUERY_BLOCK,
            )
            return self.going_on(course, namespace, num_tokens)
        is_observed = self._pruned[0].rule == SNAPKV
        rule = f"{self._pruned[0].text} reach {REACH}" if is_observed else self._pruned[0].text
        course = ViewSchedule(
            salt=rule.encode() + nonce,
            block_size=self._block_size,
            num_observed=NUM_OBSERVED if is_observed else 0,
        )
        return self.going_on(course, namespace, num_tokens)

    def going_on(self, course: ViewSchedule, namespace: str, num_tokens: int) -> ViewSchedule:
        """Return the course of a sequence that goes on with a longer prompt: what is pruned stays so.

        Args:
            num_tokens: as for `of`.
        """
        if not self._pruned and not self._shadowed:
            return course
        said = self.parse(namespace)
        ends = said.answer_starts if said.owner else (*(stage.at for stage in course.stages), num_tokens)
        if self._shadowed:
            return replace(course, stages=shadow_stages(ends, self._shadowed[0].view))
        return replace(course, stages=stages_at(ends, self._pruned[0].num_kept, self._block_size))


def course_over(view: View, block_size: int, namespace: str) -> ViewSchedule:
    """Return the course that sequences of a namespace have over a view, whatever the model. Pure where the
    namespace says whose it is.
    """
    # Wide enough for every view: no course depends on it.
    layer = FullSpec(num_kv_heads=1, head_dim_k=LEAST_WIDTH + 1, head_dim_v=1, dtype="F32")
    groups = viewed_groups((Group(id=GroupId(0), spec=layer, layers=(0,)),), view, block_size)
    return ViewSchedules(groups, block_size).of("", namespace)


def stages_at(prompt_ends: Iterable[int], num_kept: int, block_size: int) -> tuple[PrunePoint, ...]:
    """Return where a sequence is pruned. Pure, and what comes later changes nothing of what is before.

    A stretch begins where the last one ended, so that nothing is pruned twice, and ends before the last
    tokens of the prompt. It is pruned if it has more blocks than are kept of it.
    """
    stages: list[PrunePoint] = []
    start = NUM_SINK_BLOCKS
    for at in prompt_ends:
        end = (at - NUM_OBSERVED) // block_size
        if end - start > num_kept:
            stages.append(PrunePoint(at=at, start=start, end=end))
            start = end
    return tuple(stages)


def shadow_stages(prompt_ends: Iterable[int], view: View) -> tuple[PrunePoint, ...]:
    """Return where a sequence gets a shadow: behind the first prompt that is long enough, and anew behind
    each by whose end it has grown to twice what it was. Pure.
    """
    stages: list[PrunePoint] = []
    least = least_prompt(view)
    for at in prompt_ends:
        if at >= least:
            stages.append(PrunePoint(at=at, start=0, end=0))
            least = 2 * at
    return tuple(stages)
