"""Requests, and the seam for stop strings."""

from dataclasses import dataclass, field
from typing import Protocol

from kvchat.engine.api.ids import SequenceId
from kvchat.engine.api.sampling_params import SamplingParams
from kvchat.errors import InvalidRequest
from kvchat.platform.parsing import is_text


class StopMatcher(Protocol):
    """Watches one answer's tokens for a stop string; the engine has no tokenizer of its own."""

    def feed(self, token_id: int) -> bool:
        """Take the next token and return whether the answer ends with it."""
        ...

    def fork(self) -> "StopMatcher":
        """Return a matcher in the same state that goes on by itself, for another answer to the prompt."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One answer to compute.

    Args:
        token_ids: the whole prompt, from the first token of the conversation.
        owner: whose blocks these are, for display and fairness (a session's id).
        priority: smaller runs first; the session on screen has 0.
        sequence: a live sequence to continue; its tokens must begin `token_ids`. None: find what is cached.
        namespace: whose blocks may be reused and whose the new ones are: empty for native blocks; a bundle's
            are kept apart from all others until they have been verified.
        is_saved: whether what is computed goes to the disk; if not, a request that goes on from it saves it.
        checkpoints: behind how many tokens of the prompt others may go on, besides where it ends: recurrent
            states are kept there.

    Raises:
        InvalidRequest: a token id, a checkpoint or the priority is no whole number, or the namespace no text.
    """

    token_ids: tuple[int, ...]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    owner: str = ""
    priority: int = 0
    sequence: SequenceId | None = None
    stop: StopMatcher | None = None
    namespace: str = ""
    is_saved: bool = True
    checkpoints: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not set(map(type, (*self.token_ids, *self.checkpoints))) <= {int}:
            # A float would end every request of the step.
            raise InvalidRequest("token ids and checkpoints must be whole numbers (int)")
        if type(self.priority) is not int:  # queues could not be sorted by it
            raise InvalidRequest(f"the priority must be a whole number (int), not {self.priority!r}")
        check_namespace(self.namespace)


def check_namespace(namespace: object) -> None:
    """Raise InvalidRequest on what no block can be named by: no text, or half of a surrogate pair. Pure."""
    if not (isinstance(namespace, str) and is_text(namespace)):
        raise InvalidRequest(f"the namespace must be text that utf-8 can hold, not {namespace!r}")
