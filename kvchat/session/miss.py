"""Why an answer computed more than was new to it, found in the stored turns alone.

Every answer that was computed before in the session left blocks of its path. As far as a prompt agrees with
one of these, it could be reused; where it ceases to, or was not reused all the same, is the reason.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from kvchat.errors import UsageError
from kvchat.session.tokenizer import ChatTokenizer
from kvchat.session.tree import Role, Turn, TurnId, path_token_ids


class Culprit(StrEnum):
    NONE = "none"
    """Only what was new was computed."""
    STARTED_OVER = "started over"
    """The conversation was rendered anew: another tokenizer, text that came without ids, damage."""
    DIFFERENT = "different"
    """Something earlier was changed, left out or asked on another branch."""
    MODEL = "model"
    """Another model, or other weights, had answered before."""
    NOT_KEPT = "not kept"
    """It had been computed before; it was not kept, or computing was faster than loading."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Miss:
    """What an answer's prompt reused, and why no more.

    Args:
        new_tokens: of the prompt, could not have been computed before: the question, and the token that was
            sampled last. Where the conversation started over they cannot be told from the rest: 0.
        at: position of the first token that was not reused.
        shared: what stands before `here` and `there` on both sides.
        here: the prompt's tokens from there, or from the first one that differs.
        there: those of the path that agrees longest, where they differ.
        drafted_tokens: tokens of the answer that were guessed while it was written.
        accepted_tokens: those that were right, each of which saved a step.
    """

    culprit: Culprit
    prompt_tokens: int
    cached_tokens: int
    new_tokens: int
    at: int
    shared: tuple[int, ...] = ()
    here: tuple[int, ...] = ()
    there: tuple[int, ...] = ()
    drafted_tokens: int = 0
    accepted_tokens: int = 0

    @property
    def computed_tokens(self) -> int:
        return self.prompt_tokens - self.cached_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """A miss with the text of both sides."""

    miss: Miss
    shared: str
    here: str
    there: str


def explain(turns: Sequence[Turn], answer: Turn, num_shown: int = 8) -> Miss:
    """Return why an answer computed what it did.

    Args:
        turns: all of its session, in the order in which they were stored.
        num_shown: tokens to show of each side.

    Raises:
        UsageError: it was not computed here, or its ids are missing.
    """
    tree = {turn.id: turn for turn in turns}
    path = _path_to(tree, answer)
    prompt, usage = path_token_ids(path), answer.usage
    if answer.role is not Role.ASSISTANT or prompt is None or not usage.prompt_tokens:
        raise UsageError("there is nothing to explain: this was not computed here")
    prompt = prompt[: usage.prompt_tokens]
    question = next((turn for turn in reversed(path) if turn.role is Role.USER), answer)
    has_started_over = question.starts_over and question.parent_id is not None
    num_asked = 0 if has_started_over else len(question.token_ids or ())
    new_tokens = min(num_asked + (len(path) > 2), len(prompt))
    earlier = list(_computed_before(turns, tree, answer))
    agreeing = max((_common(ids, prompt) for by, ids in earlier if by == answer.fingerprint), default=0)
    by_others = max((_common(ids, prompt) for _, ids in earlier), default=0)
    other = max((ids for _, ids in earlier), key=lambda ids: _common(ids, prompt), default=())

    at = usage.cached_tokens
    culprit = Culprit.DIFFERENT
    if usage.computed_tokens <= new_tokens:
        culprit = Culprit.NONE
    elif at < min(agreeing, len(prompt) - 1):
        culprit = Culprit.NOT_KEPT
    elif by_others > max(agreeing, at):
        culprit = Culprit.MODEL
    elif has_started_over:
        culprit = Culprit.STARTED_OVER
    differs = by_others if culprit in (Culprit.DIFFERENT, Culprit.STARTED_OVER) else at
    is_shown = culprit is not Culprit.NONE
    return Miss(
        culprit=culprit,
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=at,
        new_tokens=new_tokens,
        at=at,
        shared=prompt[max(0, differs - num_shown) : differs] if is_shown else (),
        here=prompt[differs : differs + num_shown] if is_shown else (),
        there=other[differs : differs + num_shown] if is_shown and differs == by_others else (),
        drafted_tokens=usage.drafted_tokens,
        accepted_tokens=usage.accepted_tokens,
    )


def with_text(miss: Miss, tokenizer: ChatTokenizer) -> Explanation:
    """Return a miss with what its tokens say, control tokens by their names."""
    parts = (miss.shared, miss.here, miss.there)
    shared, here, there = (tokenizer.decode(ids, keep_control=True) for ids in parts)
    return Explanation(miss=miss, shared=shared, here=here, there=there)


def _computed_before(
    turns: Sequence[Turn], tree: dict[TurnId, Turn], answer: Turn
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield fingerprint and fed ids of the longest paths that answers before this one computed."""
    passed: set[tuple[TurnId, str]] = set()
    before = turns[: next(at for at, turn in enumerate(turns) if turn.id == answer.id)]
    for turn in reversed(before):
        if turn.role is not Role.ASSISTANT or not turn.usage.prompt_tokens:
            continue
        if (turn.id, turn.fingerprint) in passed:
            continue
        path = _path_to(tree, turn)
        passed |= {(one.id, one.fingerprint) for one in path}
        # The last sampled token was never fed.
        yield turn.fingerprint, (path_token_ids(path) or ())[:-1]


def _path_to(tree: dict[TurnId, Turn], turn: Turn) -> list[Turn]:
    path = [turn]
    while (parent := path[-1].parent_id) is not None and parent in tree:
        path.append(tree[parent])
    return path[::-1]


def _common(left: Iterable[int], right: Iterable[int]) -> int:
    """Return how many ids two sequences begin with alike."""
    count = 0
    for one, other in zip(left, right, strict=False):
        if one != other:
            break
        count += 1
    return count
