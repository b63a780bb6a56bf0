"""Cache miss analysis: why an answer computed more tokens than were new, from the stored turns alone.

Every earlier answer of the session left blocks of its path. As far as a prompt agrees with one of these it
could be reused; the reason is where it ceases to agree, or was not reused all the same.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from kvchat.errors import UsageError
from kvchat.session.tree import Role, Stored, Turn, TurnId, num_common, path_to, path_token_ids


class MissReason(StrEnum):
    NONE = "none"
    """Only what was new was computed."""
    STARTED_OVER = "started over"
    """The conversation was rendered anew: another tokenizer, text that came without ids, damage."""
    DIFFERENT = "different"
    """Something earlier was changed, left out or asked on another branch."""
    MODEL = "model"
    """Another model, or other weights, had answered before."""
    NOT_KEPT = "not kept"
    """It had been computed before; not recorded whether it was cached, or faster to compute."""
    EVICTED = "evicted"
    """It had been computed before, and no tier had it any more."""
    FASTER = "faster"
    """A slower tier had it, and computing was faster than loading."""
    NO_STATE = "no state"
    """Its keys and values were there, and no state of the recurrent layers behind them."""
    SYSTEM = "system"
    """What stands before the first message differs: the system prompt, or what the template writes there."""
    REWRITTEN = "rewritten"
    """The conversation was rendered anew, and the template writes what was said in another way."""


_FOUND_IN_TOKENS = (MissReason.DIFFERENT, MissReason.STARTED_OVER, MissReason.SYSTEM, MissReason.REWRITTEN)
"""Reasons that show where the two sides differ, not what was reused."""
_NUM_SHOWN = 8
"""Tokens of each side."""

_LOST: dict[Stored | None, MissReason] = {
    Stored.NOTHING: MissReason.EVICTED,
    Stored.LOADED: MissReason.EVICTED,
    Stored.COMPUTED: MissReason.FASTER,
    Stored.BOTH: MissReason.FASTER,
}
"""What a prompt had computed before and did not reuse, by what became of its stored part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheMiss:
    """What an answer's prompt reused, and why no more.

    Args:
        new_tokens: computed, and could not have been before: the question, and the token that was sampled
            last. Where the conversation started over they cannot be told from the rest: 0.
        at: position of the first token that was not reused.
        shared: what stands before `here` and `there` on both sides.
        here: the prompt's tokens from there, or from the first one that differs.
        there: those of the path that agrees longest, where they differ.
        drafted_tokens: tokens of the answer that were guessed while it was written.
        accepted_tokens: those that were right, each of which saved a step.
    """

    culprit: MissReason
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

    miss: CacheMiss
    shared: str
    here: str
    there: str


def explain(
    turns: Sequence[Turn],
    answer: Turn,
    *,
    system_len: int = 0,
    rewrites: bool = False,
    others: Sequence[tuple[str, tuple[int, ...]]] = (),
) -> CacheMiss:
    """Return why an answer computed what it did.

    Args:
        turns: all of its session, in the order in which they were stored.
        system_len: tokens before the words of its first message, as the template writes it; 0: not known.
        rewrites: whether the template writes what was said in another way when it is rendered anew.
        others: with which fingerprint, and how, other conversations began; looked at for a first message.

    Raises:
        UsageError: it was not computed here, or its ids are missing.
    """
    tree = {turn.id: turn for turn in turns}
    path = path_to(tree, answer)
    prompt, usage = path_token_ids(path), answer.usage
    if answer.role is not Role.ASSISTANT or prompt is None or not usage.prompt_tokens:
        raise UsageError("there is nothing to explain: this was not computed here")
    prompt = prompt[: usage.prompt_tokens]
    question = next((turn for turn in reversed(path) if turn.role is Role.USER), answer)
    has_started_over = question.starts_over and question.parent_id is not None
    is_continued = len(prompt) > len(path_token_ids(path[:-1]) or ())
    num_asked = 0 if has_started_over or is_continued else len(question.token_ids or ())
    new_tokens = min(num_asked + (len(path) > 2 or is_continued), len(prompt))
    earlier = list(_computed_before(turns, tree, answer))
    if question.parent_id is None:
        earlier += others
    if is_continued:  # who wrote its beginning had computed all but the last of it
        earlier.append((answer.fingerprint, prompt[:-1]))
    agreeing = max((num_common(ids, prompt) for by, ids in earlier if by == answer.fingerprint), default=0)
    by_others = max((num_common(ids, prompt) for _, ids in earlier), default=0)
    other = max((ids for _, ids in earlier), key=lambda ids: num_common(ids, prompt), default=())

    at = usage.cached_tokens
    culprit = MissReason.DIFFERENT
    if usage.computed_tokens <= new_tokens:
        culprit = MissReason.NONE
    elif at < min(agreeing, len(prompt) - 1):
        lost = _LOST.get(answer.stored, MissReason.NOT_KEPT)
        culprit = MissReason.NO_STATE if answer.loaded.stateless else lost
    elif by_others > max(agreeing, at):
        culprit = MissReason.MODEL
    elif has_started_over:
        culprit = MissReason.STARTED_OVER
    may_be_template = culprit in (MissReason.NONE, MissReason.DIFFERENT, MissReason.STARTED_OVER)
    if may_be_template and at <= agreeing and 0 < agreeing < system_len:
        culprit = MissReason.SYSTEM
    elif culprit is MissReason.STARTED_OVER and rewrites and at <= agreeing and agreeing:
        culprit = MissReason.REWRITTEN
    differs = by_others if culprit in _FOUND_IN_TOKENS else at
    is_shown = culprit is not MissReason.NONE
    return CacheMiss(
        culprit=culprit,
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=at,
        new_tokens=min(new_tokens, usage.computed_tokens),
        at=at,
        shared=prompt[max(0, differs - _NUM_SHOWN) : differs] if is_shown else (),
        here=prompt[differs : differs + _NUM_SHOWN] if is_shown else (),
        there=other[differs : differs + _NUM_SHOWN] if is_shown and differs == by_others else (),
        drafted_tokens=usage.drafted_tokens,
        accepted_tokens=usage.accepted_tokens,
    )


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
        path = path_to(tree, turn)
        if (ids := path_token_ids(path)) is None:
            continue  # the answers before it are paths of their own then
        passed |= {(one.id, one.fingerprint) for one in path}
        # The last sampled token was never fed.
        yield turn.fingerprint, ids[:-1]
