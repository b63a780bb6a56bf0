"""The session list's content: sessions, branches and search hits in, lines out. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rich.cells import cell_len

from kvchat.app.interface_types import KvOnDisk
from kvchat.session.session_queries import SearchHit
from kvchat.session.tree import Branch, BranchName, Session, SessionId, TurnId
from kvchat.text.figures import age_text, short_bytes_text, short_count_text, tiny_bytes_text
from kvchat.text.fit_text import UNTITLED, one_line, padded
from kvchat.text.trust import trust_mark

APPROXIMATE = " ≈"
"""Stands behind the mark of a session with approximate answers."""
_PINNED = "★"
_ID_LEN = 4
"""Characters of an id that tell sessions of one title apart."""
_MAX_HITS = 3
"""Messages shown of one session."""
_SEEN_IN_A_HIT = 14
_BEFORE_A_HIT = 8
"""Letters of a message that are shown before the first word looked for, where it stands behind those seen."""
_SHORT_NAME = 14
"""Cells of a name that bytes leave it, where it is not shorter."""
_LEAST_SHARED_WIDTH = 22
"""Cells of a line that has figures of both sorts; its name is cut for them."""

SessionWithBranches = tuple[Session, Sequence[Branch]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLine:
    """One line: a session, a branch under it, or a message found in it. `name` precedes the figures: bytes on
    the device, or on disk where nothing is on the device, or tokens of a branch that has no bytes there.
    """

    session_id: SessionId
    branch: BranchName | None
    name: str
    age: str
    is_active: bool
    own_bytes: int = 0
    shared_bytes: int = 0
    num_tokens: int = 0
    turn_id: TurnId | None = None

    @property
    def key(self) -> str:
        """Identify the line between two drawings."""
        if self.turn_id is not None:
            return f"{self.session_id}#{self.turn_id}"
        return self.session_id if self.branch is None else f"{self.session_id}/{self.branch}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What a session, or one of its branches, has of its own and with others on the device.

    Args:
        is_on_device: it has anything there.
        is_running: an answer is being written in it.
    """

    own_bytes: int = 0
    shared_bytes: int = 0
    is_on_device: bool = True
    is_running: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchPlace:
    """How deep a branch stands below the one that it leaves, and the tokens of all that is said on it."""

    depth: int = 0
    num_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchFinding:
    """What is looked for, and what was found in messages; None: those are not searched yet."""

    words: str = ""
    hits: Sequence[SearchHit] | None = None

    @property
    def is_in_vain(self) -> bool:
        """Whether all was searched and no message found."""
        return bool(self.words) and self.hits is not None and not self.hits


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionListOptions:
    """How to draw.

    Args:
        held: sessions with a live branch, by id.
        held_branches: live branches, by their session's id and their name.
        places: where branches stand, by the same.
        approximate: sessions with an answer that was sampled on approximate KV.
        on_disk: what of sessions is stored, by id.
    """

    active_session: SessionId | None
    active_branch: BranchName | None
    held: Mapping[str, Held]
    now: float
    held_branches: Mapping[tuple[str, str], Held] = field(default_factory=dict)
    places: Mapping[tuple[str, str], BranchPlace] = field(default_factory=dict)
    approximate: frozenset[str] = frozenset()
    on_disk: Mapping[SessionId, KvOnDisk] = field(default_factory=dict)
    folded: frozenset[str] = frozenset()
    finding: SearchFinding = field(default_factory=SearchFinding)


def session_lines(
    sessions: Sequence[SessionWithBranches], options: SessionListOptions
) -> tuple[SessionLine, ...]:
    """Return the lines, pinned and newest first; branches only where there are several.

    With words to look for: the sessions that have all of them in their title or a branch's name, and those
    with messages that hold them, each with these messages.
    """
    hits = _hits_of_sessions(options.finding.hits or ())
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

    A long name is cut for bytes, down to its beginning where both own and shared ones are there. In a list
    too narrow for that shared ones give way, then own ones; the age only where there is hardly room for a
    name.
    """
    age = f" {line.age:>3}"
    figures = _sizes(line, width - len(age)) + age if width >= 14 else ""
    return padded(line.name, width - len(figures)), figures


def _sizes(line: SessionLine, width: int) -> str:
    """Return the bytes of a line of so many cells; columns end at the same cell in all forms."""
    room = width - min(_SHORT_NAME, cell_len(line.name))
    if line.num_tokens and not line.own_bytes:
        tokens = f" {short_count_text(line.num_tokens)} tok"
        return tokens if room >= len(tokens) else ""
    own = f" {short_bytes_text(line.own_bytes):>5}" if line.own_bytes else ""
    if line.shared_bytes and room >= 13:
        return f" ▒{short_bytes_text(line.shared_bytes)}".rjust(7) + (own or " " * 6)
    if line.shared_bytes and width >= _LEAST_SHARED_WIDTH - 4:
        tiny = f" {tiny_bytes_text(line.own_bytes):>4}" if line.own_bytes else " " * 5
        return f" ▒{tiny_bytes_text(line.shared_bytes)}".rjust(6) + tiny
    return own if room >= 6 else ""


def title_of(session: Session) -> str:
    return one_line(session.title) or UNTITLED


def distinct_titles(sessions: Sequence[Session]) -> dict[str, str]:
    """Return titles by id; those that several sessions have with the beginning of the id."""
    titles: dict[str, str] = {session.id: title_of(session) for session in sessions}
    num = Counter(titles.values())
    return {id_: f"{title} · {id_[:_ID_LEN]}" if num[title] > 1 else title for id_, title in titles.items()}


def _newest_first(entry: SessionWithBranches) -> tuple[bool, float]:
    session, _ = entry
    return not session.pinned, -session.updated_at


def _hits_of_sessions(hits: Sequence[SearchHit]) -> dict[SessionId, list[SearchHit]]:
    found: dict[SessionId, list[SearchHit]] = {}
    for hit in hits:
        found.setdefault(hit.session_id, []).append(hit)
    return found


def _is_named(session: Session, branches: Sequence[Branch], words: str) -> bool:
    names = "\n".join([title_of(session), *(branch.name for branch in branches)]).casefold()
    return all(word in names for word in words.casefold().split())


def _session_line(session: Session, options: SessionListOptions, *, num_folded: int) -> SessionLine:
    is_active = session.id == options.active_session
    held = options.held.get(session.id)
    stored = options.on_disk.get(session.id)
    mark = "●" if is_active else _mark(held, stored)
    if session.id in options.approximate:
        mark += APPROXIMATE
    pin = _PINNED if session.pinned else ""
    folded = f"▸{num_folded}" if num_folded else ""
    has_bytes = held is not None and held.own_bytes + held.shared_bytes > 0
    sizes = held if has_bytes else stored
    return SessionLine(
        session_id=session.id,
        branch=None,
        name=" ".join(filter(None, (mark, trust_mark(session), pin, title_of(session), folded))),
        own_bytes=sizes.own_bytes if sizes else 0,
        shared_bytes=sizes.shared_bytes if sizes else 0,
        age=age_text(max(0.0, options.now - session.updated_at)),
        is_active=is_active,
    )


def _mark(held: Held | None, stored: KvOnDisk | None = None) -> str:
    """Return where something is that is not on screen."""
    if held is None:
        return "·" if stored is None else "◌"
    if held.is_running:
        return "▸"
    return "○" if held.is_on_device else "◐"


def _branch_lines(
    session: Session, branches: Sequence[Branch], options: SessionListOptions
) -> list[SessionLine]:
    lines = []
    places = [options.places.get((session.id, branch.name), BranchPlace()) for branch in branches]
    for index, (branch, place) in enumerate(zip(branches, places, strict=True)):
        is_active = session.id == options.active_session and branch.name == options.active_branch
        held = options.held_branches.get((session.id, branch.name))
        mark = "● " if is_active else f"{_mark(held)} " if held else ""
        above = "".join("│ " if _goes_on(places, index, depth) else "  " for depth in range(place.depth))
        elbow = above + ("├" if _goes_on(places, index, place.depth) else "└")
        lines.append(
            SessionLine(
                session_id=session.id,
                branch=branch.name,
                name=f"  {elbow} {mark}{one_line(branch.name)}",
                own_bytes=held.own_bytes if held else 0,
                num_tokens=place.num_tokens,
                age=age_text(max(0.0, options.now - branch.updated_at)),
                is_active=is_active,
            )
        )
    return lines


def _goes_on(places: Sequence[BranchPlace], index: int, depth: int) -> bool:
    """Return whether another branch of this depth follows, below the same one."""
    return next((one.depth for one in places[index + 1 :] if one.depth <= depth), None) == depth


def _hit_line(hit: SearchHit, options: SessionListOptions) -> SessionLine:
    return SessionLine(
        session_id=hit.session_id,
        branch=None,
        name=f"  “{_from_the_words(one_line(hit.excerpt), options.finding.words)}”",
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
