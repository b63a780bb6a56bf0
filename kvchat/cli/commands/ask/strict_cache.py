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
        self._ids = _past(conversation, pack, edit)
        is_whole = not _path(conversation, edit)
        self.num_tokens = len(self._ids) if is_whole else max(0, len(self._ids) - 1)
        self._namespace = conversation.session.namespace

    def check(self, chat: Chat) -> None:
        """Raise CacheMissed if less than that is kept. Waits for the engine."""
        if self.num_tokens:
            probe = (*self._ids, self._ids[-1])  # a prompt is never reused to its last token
            self.check_reused(chat.engine.reusable_len(probe, self._namespace))

    def check_reused(self, num_tokens: int) -> None:
        """Raise CacheMissed if fewer tokens than that were reused."""
        if num_tokens < self.num_tokens:
            raise CacheMissed(
                f"only {num_tokens:,} of {self.num_tokens:,} tokens that were computed before can be reused:"
                " their KV is of another model or format, damaged, or was removed; ask without --strict-cache"
                " to compute them again"
            )


def _past(conversation: Conversation, pack: Pack | None, edit: int | None) -> tuple[int, ...]:
    path = _path(conversation, edit)
    if not path:
        return pack.token_ids if pack is not None else ()
    ids = path_token_ids(path)
    if ids is None:
        raise CacheMissed(
            "the text of this session came without tokens, so nothing of it can be reused; ask without"
            " --strict-cache to compute it"
        )
    return ids


def _path(conversation: Conversation, edit: int | None) -> Sequence[Turn]:
    if edit is None:
        return conversation.turns
    question = nth_last_question(conversation.turns, edit)
    if question is None:
        raise UsageError(f"there is no message {edit} from the end to edit")
    return conversation.turns[: conversation.turns.index(question)]
