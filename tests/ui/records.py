"""A stored session and an answer in it, of which a test changes what it looks at."""

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
