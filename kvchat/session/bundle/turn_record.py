"""One turn as a record: its text as JSON, its token ids packed.

In a bundle a turn is known by its number; parents come first. Ids of sessions and turns are new where the
bundle is imported, so that importing it twice makes two sessions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Annotated, Any

from msgspec import Meta, Struct, structs

from kvchat.engine.api.events import Loaded, Timings, Usage
from kvchat.engine.api.ids import from_u32le, u32le
from kvchat.errors import BundleError
from kvchat.session.bundle.container import Count, Seconds, read_header
from kvchat.session.timestamp_limits import LATEST
from kvchat.session.tree import Backend, Finish, Role, SessionId, Turn, TurnId

_Name = Annotated[str, Meta(max_length=200)]


class _Backend(Struct, frozen=True):
    url: Annotated[str, Meta(max_length=2000)]
    counts_tokens: bool
    counts_cached: bool


class _Timings(Struct, frozen=True):
    queued_s: Seconds
    ttft_s: Seconds | None
    total_s: Seconds
    decode_tokens_per_s: Seconds | None


class _Header(Struct, frozen=True, kw_only=True):
    parent: Annotated[int, Meta(ge=0)] | None
    role: Role
    text: str
    reasoning: str
    has_ids: bool
    finish: Finish
    created_at: Seconds
    model: _Name
    fingerprint: _Name
    tokenizer: _Name
    exact: bool
    starts_over: bool
    usage: dict[str, Count | None]
    loaded: dict[str, Count | None]
    timings: _Timings
    backend: _Backend | None = None


def turn_header(turn: Turn, numbers: Mapping[TurnId, int]) -> dict[str, object]:
    """Return the header of a TURN record; damaged ids are left out, the text stays."""
    finish = Finish.INTERRUPTED if turn.finish is Finish.PARTIAL else turn.finish
    values = asdict(turn) | {
        "parent": None if turn.parent_id is None else numbers[turn.parent_id],
        "has_ids": turn.has_ids,
        "finish": finish,
        "created_at": min(turn.created_at, LATEST),
    }
    return {name: values[name] for name in _Header.__struct_fields__ if name != "backend" or turn.backend}


def turn_body(turn: Turn) -> bytes:
    return u32le(turn.token_ids or ()) if turn.has_ids else b""


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
    place = f"turn {number}"
    read = read_header(_Header, header, place)
    if read.parent is not None and read.parent >= number:
        raise BundleError(f"{place}: its parent must be a turn before it")
    if len(body) % 4 or (body and not read.has_ids):
        raise BundleError(f"{place}: its token ids must be whole 32-bit numbers")
    if read.finish is Finish.PARTIAL:
        raise BundleError(f"{place}: it must have ended")
    values = structs.asdict(read) | {
        "id": turn_ids[-1],
        "session_id": session_id,
        "parent_id": None if read.parent is None else turn_ids[read.parent],
        "token_ids": tuple(from_u32le(body)) if read.has_ids else None,
        "usage": Usage(**_known(read.usage, Usage)),
        "loaded": Loaded(**_known(read.loaded, Loaded)),
        "timings": Timings(**structs.asdict(read.timings)),
        "backend": None if read.backend is None else Backend(**structs.asdict(read.backend)),
    }
    del values["parent"], values["has_ids"]
    return Turn(**values)


def _known(counts: Mapping[str, int | None], kind: type[Usage | Loaded]) -> dict[str, int]:
    """Return the counts that a type has, of those that are given."""
    names = {one.name for one in fields(kind)}
    return {name: count for name, count in counts.items() if name in names and count is not None}
