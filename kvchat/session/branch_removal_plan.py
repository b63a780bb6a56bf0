"""Branch removal: the turns that go with a branch, and those that other branches still have."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kvchat.errors import UsageError
from kvchat.session.tree import Branch, BranchName, Turn, TurnId


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchRemoval:
    """What removing a branch means.

    Args:
        path: its messages, root first.
        doomed: messages that go: those of its path that no other branch has, and what is behind them.
        left: messages of the session that stay, a parent before its children.
        successor: the branch that is opened next.
    """

    branch: Branch
    path: tuple[Turn, ...]
    doomed: tuple[Turn, ...]
    left: tuple[Turn, ...]
    successor: Branch

    @property
    def touched(self) -> tuple[Turn, ...]:
        """Messages of its path, and those behind them that go, a parent before its children."""
        on_path = {turn.id for turn in self.path}
        return (*self.path, *(turn for turn in self.doomed if turn.id not in on_path))

    @property
    def num_shared(self) -> int:
        """Messages of the branch that stay."""
        gone = {turn.id for turn in self.doomed}
        return sum(turn.id not in gone for turn in self.path)


def plan_removal(
    branch: Branch, branches: Sequence[Branch], turns: Sequence[Turn], active: BranchName
) -> BranchRemoval:
    """Return what removing a branch would mean.

    Args:
        branches, turns: all of its session, a parent before its children.
        active: the branch that was used last.

    Raises:
        UsageError: the session has no other branch.
    """
    others = [one for one in branches if one.name != branch.name]
    if not others:
        raise UsageError(f"{branch.name!r} is the only branch of its session; remove the session instead")
    parents = {turn.id: turn.parent_id for turn in turns}
    shared = {turn_id for one in others for turn_id in _path(parents, one.leaf_id)}
    path = set(_path(parents, branch.leaf_id))
    doomed = path - shared
    for turn in turns:
        if turn.parent_id in doomed:
            doomed.add(turn.id)
    return BranchRemoval(
        branch=branch,
        path=tuple(turn for turn in turns if turn.id in path),
        doomed=tuple(turn for turn in turns if turn.id in doomed),
        left=tuple(turn for turn in turns if turn.id not in doomed),
        successor=next((one for one in others if one.name == active), others[0]),
    )


def _path(parents: dict[TurnId, TurnId | None], leaf_id: TurnId | None) -> Iterable[TurnId]:
    while leaf_id is not None:
        yield leaf_id
        leaf_id = parents.get(leaf_id)
