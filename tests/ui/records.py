"""A stored session and an answer in it, of which a test changes what it looks at; and a prompt on its way."""

from kvchat.engine.api.events import PrefillProgress
from kvchat.engine.api.ids import RequestId, SequenceId
from kvchat.session.tree import Finish, Role, Session, SessionId, Turn, TurnId

SESSION = Session(id=SessionId("s"), title="t", system="", model="m", created_at=0.0, updated_at=0.0)
ANSWER = Turn(
    id=TurnId("t"),
    session_id=SESSION.id,
    parent_id=None,
    role=Role.ASSISTANT,
    text="By train.",
    token_ids=(1, 2),
    finish=Finish.COMPLETE,
    created_at=0.0,
)


def prefilled(prompt: int, *, cached: int, computed: int) -> PrefillProgress:
    return PrefillProgress(
        request_id=RequestId(1),
        sequence=SequenceId(1),
        prompt_tokens=prompt,
        cached_tokens=cached,
        computed_tokens=computed,
    )
