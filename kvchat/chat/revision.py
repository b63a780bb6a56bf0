"""Revisions of a conversation: undo, drop and edit, planned and priced before they are made.

A plan changes nothing. It holds every turn of the new path, with the ids the model will see, so that its cost
is known in advance; the old path stays as it was, on its branch.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from kvchat.chat.events import EditCost, Revision
from kvchat.engine.api.events import Loaded, Timings, Usage
from kvchat.errors import UsageError
from kvchat.session.store import new_turn_id
from kvchat.session.template import prompts
from kvchat.session.template.chat_template import ChatTemplate
from kvchat.session.template.message_files import split_files, with_files
from kvchat.session.tree import (
    BranchName,
    Role,
    Session,
    Turn,
    TurnId,
    nth_last_question,
    num_common,
    path_token_ids,
)

_LEAST_KEPT = 64
"""Fewer tokens are computed again as fast as a state is read."""


def to_last_question(path: tuple[Turn, ...]) -> tuple[Turn, ...]:
    """Return a path as far as its last question.

    Raises:
        UsageError: there is none.
    """
    for end in range(len(path), 0, -1):
        if path[end - 1].role is Role.USER:
            return path[:end]
    raise UsageError("there is no question to answer yet; send a message first")


def split_at(path: tuple[Turn, ...], question_id: TurnId) -> tuple[tuple[Turn, ...], tuple[Turn, ...]]:
    """Return what comes before a question, and the rest of its path.

    Raises:
        UsageError: it is no question of this path.
    """
    for at, turn in enumerate(path):
        if turn.id == question_id and turn.role is Role.USER:
            return path[:at], path[at:]
    raise UsageError("only a message of yours on this branch can be edited")


def plan_undo(turns: tuple[Turn, ...], num: int, stays_on: BranchName) -> Revision:
    """Return the revision that ends before the last `num` questions.

    Raises:
        UsageError: there are fewer.
    """
    first = nth_last_question(turns, num)
    if first is None:
        have = sum(turn.role is Role.USER for turn in turns)
        raise UsageError(f"there are {have} messages of yours here; {num} cannot be taken back")
    start = turns.index(first)
    return Revision(kept=turns[:start], anew=(), left=turns[start:], stays_on=stays_on)


def plan_drop(
    turns: tuple[Turn, ...],
    question_id: TurnId,
    branch: BranchName,
    behind: Callable[[Sequence[Turn], Turn], Turn],
) -> Revision:
    """Return the revision without a question and its answer. What followed follows there too.

    Args:
        branch: the one that ends with these turns.
        behind: returns a copy of a turn that stands behind another path.

    Raises:
        UsageError: `question_id` is no question of these turns, or a later turn is damaged.
    """
    start = next((at for at, turn in enumerate(turns) if turn.id == question_id), None)
    if start is None or turns[start].role is not Role.USER:
        raise UsageError("only a message of yours on this branch can be left out, with its answer")
    after = range(start + 1, len(turns))
    end = next((at for at in after if turns[at].role is Role.USER), len(turns))
    if any(turn.damaged for turn in turns[end:]):
        raise UsageError(
            "a later message is damaged and cannot be said again; take back from there with undo"
        )
    path = list(turns[:start])
    for turn in turns[end:]:
        path.append(behind(path, turn))
    return Revision(kept=turns[:start], anew=tuple(path[start:]), left=turns[start:], stays_on=branch)


def context_ids(template: ChatTemplate, session: Session, path: Sequence[Turn]) -> tuple[int, ...]:
    """Return what the model will see of a path, whatever is asked behind it."""
    ids = path_token_ids(path) if prompts.has_usable_ids(template, path) else None
    if ids is not None:
        return ids
    # The next question renders everything anew; what two of them have in common is the path.
    one, other = (prompts.question_ids(template, session, path, text, starts_over=True) for text in "ab")
    return tuple(one[: num_common(one, other)])


def common_ids(
    template: ChatTemplate, session: Session, path: Sequence[Turn], beginning: str
) -> tuple[int, ...]:
    """Return what the model will see of a path and a question that begins with some text, however it ends."""
    before = path_token_ids(path) if prompts.has_usable_ids(template, path) else None
    ends = (f"{beginning}a", f"{beginning}\n\nb", f"{beginning} 1")
    first, *others = (
        prompts.question_ids(template, session, path, text, starts_over=before is None) for text in ends
    )
    return (*(before or ()), *first[: min(num_common(first, one) for one in others)])


def checkpoints(template: ChatTemplate, session: Session, path: Sequence[Turn], text: str) -> tuple[int, ...]:
    """Return behind how many tokens of a question's prompt other conversations may go on: behind the system
    prompt, and behind files ahead of the question's words.
    """
    files, _ = split_files(text)
    beginnings = [""] * (not path) + [with_files(files)] * bool(files)
    ends = (len(common_ids(template, session, path, one)) for one in beginnings)
    return tuple(end for end in ends if end >= _LEAST_KEPT)


def copy_behind(template: ChatTemplate, session: Session, path: Sequence[Turn], turn: Turn) -> Turn:
    """Return a copy of a turn that stands behind another path.

    The ids of a question are those that the template gives it there; an answer keeps those that were sampled.
    """
    if turn.role is Role.USER:
        asked = prompts.question(template, session, path, turn.text)
        return replace(asked, created_at=turn.created_at)
    # What it cost belongs to where it was written.
    return replace(
        turn,
        id=new_turn_id(),
        parent_id=path[-1].id if path else None,
        usage=Usage(),
        loaded=Loaded(),
        timings=Timings(),
    )


def path_cost(num_tokens: int, reused: int, left: Sequence[Turn]) -> EditCost:
    """Return the cost of a path of so many tokens, in place of the turns `left`."""
    return EditCost(
        reused_tokens=reused,
        computed_tokens=num_tokens - reused,
        left_turns=len(left),
        left_tokens=sum(len(turn.token_ids or ()) for turn in left),
    )
