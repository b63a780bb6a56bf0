"""`--strict-cache`: what should be reused is reused, or the question is not answered."""

from collections.abc import Sequence

from kvchat.chat.conversation import Conversation
from kvchat.chat.service import Chat
from kvchat.errors import CacheMissed, UsageError
from kvchat.session.packs import Pack
from kvchat.session.tree import Turn, nth_last_question, path_token_ids


class StrictCacheCheck:
    """How many tokens of a prompt must come from the cache: all that a session's past has, but for the last
    one, which was sampled and never computed, and all of a pack.
    """

    def __init__(self, conversation: Conversation, pack: Pack | None, edit: int | None = None) -> None:
        """Args:
        edit: the question that is replaced, from the end; None: one is asked behind the last answer.

        Raises:
            CacheMissed: the session was written by another model, so that nothing can be reused.
        """
        path = conversation.turns
        if edit is not None:
            path = path[: path.index(edited_question(path, edit))]
        ids = path_token_ids(path) if path or pack is None else pack.token_ids
        if ids is None:
            raise CacheMissed(
                "the text of this session came without tokens, so nothing of it can be reused; ask without"
                " --strict-cache to compute it"
            )
        self.num_tokens = max(0, len(ids) - 1) if path else len(ids)
        self._ids = ids
        self._namespace = conversation.session.namespace

    def check(self, chat: Chat) -> None:
        """Raise CacheMissed if less than that is kept. Waits for the engine."""
        if self.num_tokens:
            probe = (*self._ids, self._ids[-1])  # a prompt is never reused to its last token
            if (missed := self.missed(chat.engine.reusable_len(probe, self._namespace))) is not None:
                raise missed

    def missed(self, num_tokens: int) -> CacheMissed | None:
        """Return what is wrong if fewer tokens than that were reused."""
        if num_tokens >= self.num_tokens:
            return None
        return CacheMissed(
            f"only {num_tokens:,} of {self.num_tokens:,} tokens that were computed before can be reused:"
            " their KV is of another model or format, damaged, or was removed; ask without --strict-cache"
            " to compute them again"
        )


def edited_question(turns: Sequence[Turn], num: int) -> Turn:
    """Return the message that `--edit` names, from the end.

    Raises: UsageError: there is none.
    """
    question = nth_last_question(turns, num)
    if question is None:
        raise UsageError(f"there is no message {num} from the end to edit")
    return question
