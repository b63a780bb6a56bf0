"""The session list's content: sessions, branches and search hits in, lines out. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from rich.cells import cell_len

from kvchat.session.lookup import SearchHit
from kvchat.session.tree import Branch, BranchName, Session, SessionId, TurnId
from kvchat.ui.figures import age_text, short_bytes_text
from kvchat.ui.plain_text import one_line, padded
from kvchat.ui.trust_words import trust_mark

UNTITLED = "untitled"
APPROXIMATE = " ≈"
"""Stands behind the mark of a session with approximate answers."""
_PINNED = "★"
_MAX_HITS = 3
"""Messages shown of one session."""
_SEEN_IN_A_HIT = 14
_BEFORE_A_HIT = 8
"""Letters of a message that are shown before the first word looked for, where it stands behind those seen."""
_SHORT_NAME = 14
"""Cells of a name that bytes leave it, where it is not shorter."""

SessionWithBranches = tuple[Session, Sequence[Branch]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLine:
    """One line: a session, a branch under it, or a message found in it. `name` precedes the figures."""

    session_id: SessionId
    branch: BranchName | None
    name: str
    size: str
    age: str
    is_active: bool
    shared: str = ""
    turn_id: TurnId | None = None

    @property
    def key(self) -> str:
        """Identify the line between two drawings."""
        if self.turn_id is not None:
            return f"{self.session_id}#{self.turn_id}"
        return self.session_id if self.branch is None else f"{self.session_id}/{self.branch}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What a session has of its own and with others on the device. `is_on_device`: it has anything there."""

    own_bytes: int = 0
    shared_bytes: int = 0
    is_on_device: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What is looked for, and what was found in messages."""

    words: str = ""
    hits: Sequence[SearchHit] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOptions:
    """How to draw. `held`: sessions with a live branch, by id.

    `approximate`: sessions with an answer that was sampled on approximate KV.
    """

    active_session: SessionId | None
    active_branch: BranchName | None
    held: Mapping[str, Held]
    now: float
    approximate: frozenset[str] = frozenset()
    folded: frozenset[str] = frozenset()
    finding: Finding = field(default_factory=Finding)


def session_lines(sessions: Sequence[SessionWithBranches], options: ListOptions) -> tuple[SessionLine, ...]:
    """Return the lines, pinned and newest first; branches only where there are several.

    With words to look for: the sessions that have all of them in their title or a branch's name, and those
    with messages that hold them, each with these messages.
    """
    hits = _hits_of_sessions(options.finding.hits)
    lines: list[SessionLine] = []
    for session, branches in sorted(sessions, key=_newest_first):
        found = hits.get(session.id, [])
        if not found and not _is_named(session, branches, options.finding.words):
            continue
        is_folded = session.id in options.folded and len(branches) > 1
        lines.append(_session_line(session, options, num_folded=len(branches) if is_folded else 0))
        if len(branches) > 1 and not is_folded:
            lines += _branch_lines(session, branches, options)
        lines += [_hit_line(hit, options) for hit in found[:_MAX_HITS]]
    return tuple(lines)


def line_text(line: SessionLine, width: int) -> tuple[str, str]:
    """Return the name, cut and padded, and the figures; together exactly `width` cells.

    Sizes leave a long name its beginning, and give way where not even that fits, first what is shared; the
    age only where there is hardly room for a name.
    """
    age = f" {line.age:>3}"
    room = width - len(age) - min(_SHORT_NAME, cell_len(line.name))
    size = f" {line.size:>5}" if line.size and room >= 6 else ""
    shared = f" {line.shared:>6}" if size and line.shared and room >= 13 else ""
    figures = shared + size + age if width >= 14 else ""
    return padded(line.name, width - len(figures)), figures


def title_of(session: Session) -> str:
    return one_line(session.title) or UNTITLED


def _newest_first(entry: SessionWithBranches) -> tuple[bool, float]:
    session, _ = entry
    return not session.pinned, -session.updated_at


def _hits_of_sessions(hits: Sequence[SearchHit]) -> dict[SessionId, list[SearchHit]]:
    found: dict[SessionId, list[SearchHit]] = {}
    for hit in hits:
        found.setdefault(hit.session_id, []).append(hit)
    return found


def _is_named(session: Session, branches: Sequence[Branch], words: str) -> bool:
    names = "\n".join(_names(session, branches)).casefold()
    return all(word in names for word in words.casefold().split())


def _names(session: Session, branches: Sequence[Branch]) -> Iterator[str]:
    yield title_of(session)
    yield from (branch.name for branch in branches)


def _session_line(session: Session, options: ListOptions, *, num_folded: int) -> SessionLine:
    is_active = session.id == options.active_session
    held = options.held.get(session.id)
    mark = _mark(held, is_active=is_active)
    if session.id in options.approximate:
        mark += APPROXIMATE
    pin = _PINNED if session.pinned else ""
    folded = f"▸{num_folded}" if num_folded else ""
    return SessionLine(
        session_id=session.id,
        branch=None,
        name=" ".join(filter(None, (mark, trust_mark(session), title_of(session), pin, folded))),
        size=short_bytes_text(held.own_bytes) if held and held.own_bytes else "",
        shared=f"▒{short_bytes_text(held.shared_bytes)}" if held and held.shared_bytes else "",
        age=age_text(max(0.0, options.now - session.updated_at)),
        is_active=is_active,
    )


def _mark(held: Held | None, *, is_active: bool) -> str:
    if is_active:
        return "●"
    if held is None:
        return "·"
    return "○" if held.is_on_device else "◐"


def _branch_lines(session: Session, branches: Sequence[Branch], options: ListOptions) -> list[SessionLine]:
    lines = []
    for index, branch in enumerate(branches):
        is_active = session.id == options.active_session and branch.name == options.active_branch
        elbow = "└" if index == len(branches) - 1 else "├"
        lines.append(
            SessionLine(
                session_id=session.id,
                branch=branch.name,
                name=f"  {elbow} {'● ' if is_active else ''}{one_line(branch.name)}",
                size="",
                age=age_text(max(0.0, options.now - branch.updated_at)),
                is_active=is_active,
            )
        )
    return lines


def _hit_line(hit: SearchHit, options: ListOptions) -> SessionLine:
    return SessionLine(
        session_id=hit.session_id,
        branch=None,
        name=f"  “{_from_the_words(one_line(hit.excerpt), options.finding.words)}”",
        size="",
        age=age_text(max(0.0, options.now - hit.created_at)),
        is_active=False,
        turn_id=hit.turn_id,
    )


def _from_the_words(excerpt: str, words: str) -> str:
    """Return the excerpt without what would push the first word looked for out of a narrow list."""
    lower = excerpt.casefold()
    places = [place for word in words.casefold().split() if (place := lower.find(word)) >= 0]
    place = min(places, default=0)
    return f"…{excerpt[place - _BEFORE_A_HIT :].lstrip()}" if place > _SEEN_IN_A_HIT else excerpt
