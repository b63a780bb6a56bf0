"""One turn as a record: its text as JSON, its token ids packed.

In a bundle a turn is known by its number; parents come first. Ids of sessions and turns are new where the
bundle is imported, so that importing it twice makes two sessions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from kvchat.engine.api.events import Loaded, Timings, Usage
from kvchat.engine.api.ids import from_u32le, u32le
from kvchat.session.bundle.fields import Fields
from kvchat.session.timestamps import LATEST
from kvchat.session.tree import Backend, Finish, Role, SessionId, Turn, TurnId

_MAX_NAME_LEN = 200
_MAX_URL_LEN = 2000


def turn_header(turn: Turn, numbers: Mapping[TurnId, int]) -> dict[str, object]:
    """Return the header of a TURN record; damaged ids are left out, the text stays."""
    written_by = {} if turn.backend is None else {"backend": asdict(turn.backend)}
    return written_by | {
        "parent": None if turn.parent_id is None else numbers[turn.parent_id],
        "role": turn.role.value,
        "text": turn.text,
        "reasoning": turn.reasoning,
        "has_ids": has_ids(turn),
        "finish": (Finish.INTERRUPTED if turn.finish is Finish.PARTIAL else turn.finish).value,
        "created_at": min(turn.created_at, LATEST),
        "model": turn.model,
        "fingerprint": turn.fingerprint,
        "tokenizer": turn.tokenizer,
        "exact": turn.exact,
        "starts_over": turn.starts_over,
        "usage": asdict(turn.usage),
        "loaded": asdict(turn.loaded),
        "timings": asdict(turn.timings),
    }


def turn_body(turn: Turn) -> bytes:
    return u32le(turn.token_ids or ()) if has_ids(turn) else b""


def has_ids(turn: Turn) -> bool:
    return turn.has_ids


def read_turn(
    header: Mapping[str, Any], body: bytes, session_id: SessionId, turn_ids: Sequence[TurnId]
) -> Turn:
    """Return the turn that a TURN record holds.

    Args:
        turn_ids: the new ids of all turns; this one's comes behind those of the turns before it.

    Raises:
        BundleError: a field is missing or of another type or range.
    """
    number = len(turn_ids) - 1
    fields = Fields(header, f"turn {number}")
    parent = fields.count_or_none("parent", number)
    has_ids = fields.flag("has_ids")
    if len(body) % 4 or (body and not has_ids):
        raise fields.refuse("its token ids must be whole 32-bit numbers")
    finish = _one_of(fields, "finish", Finish)
    if finish is Finish.PARTIAL:
        raise fields.refuse("it must have ended")
    return Turn(
        id=turn_ids[-1],
        session_id=session_id,
        parent_id=None if parent is None else turn_ids[parent],
        role=_one_of(fields, "role", Role),
        text=fields.text("text"),
        reasoning=fields.text("reasoning"),
        token_ids=tuple(from_u32le(body)) if has_ids else None,
        finish=finish,
        created_at=fields.seconds("created_at"),
        model=fields.text("model", _MAX_NAME_LEN),
        fingerprint=fields.text("fingerprint", _MAX_NAME_LEN),
        tokenizer=fields.text("tokenizer", _MAX_NAME_LEN),
        usage=_counts(fields.within("usage"), Usage),
        loaded=_counts(fields.within("loaded"), Loaded),
        timings=_timings(fields.within("timings")),
        exact=fields.flag("exact"),
        starts_over=fields.flag("starts_over"),
        backend=_backend(fields.within("backend")) if fields.has("backend") else None,
    )


def _one_of(fields: Fields, name: str, kind: Any) -> Any:
    known = {member.value: member for member in kind}
    word = fields.text(name)
    if word not in known:
        raise fields.refuse(f"the field {name!r} must be one of {', '.join(known)}")
    return known[word]


def _counts(fields: Fields, kind: Any) -> Any:
    return kind(**{name: fields.count(name) for name in asdict(kind()) if fields.has(name)})


def _backend(fields: Fields) -> Backend:
    return Backend(
        url=fields.text("url", _MAX_URL_LEN),
        counts_tokens=fields.flag("counts_tokens"),
        counts_cached=fields.flag("counts_cached"),
    )


def _timings(fields: Fields) -> Timings:
    return Timings(
        queued_s=fields.seconds("queued_s"),
        ttft_s=fields.seconds_or_none("ttft_s"),
        total_s=fields.seconds("total_s"),
        decode_tokens_per_s=fields.seconds_or_none("decode_tokens_per_s"),
    )
