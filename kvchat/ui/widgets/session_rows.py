"""The session list's content: sessions and branches in, lines out. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvchat.session.tree import Branch, BranchName, Session, SessionId
from kvchat.ui.figures import age_text, short_bytes_text
from kvchat.ui.plain_text import fitted, one_line
from kvchat.ui.trust_words import trust_mark

UNTITLED = "untitled"
APPROXIMATE = " ≈"
"""Stands behind the mark of a session with approximate answers."""

SessionWithBranches = tuple[Session, Sequence[Branch]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLine:
    """One line: a session, or a branch under it. `name` is written before the figures."""

    session_id: SessionId
    branch: BranchName | None
    name: str
    size: str
    age: str
    is_active: bool

    @property
    def key(self) -> str:
        """Identify the line between two drawings."""
        return self.session_id if self.branch is None else f"{self.session_id}/{self.branch}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOptions:
    """How to draw. `own_bytes` holds what each session on the device has for itself.

    `approximate`: sessions with an answer that was sampled on approximate KV.
    """

    active_session: SessionId | None
    active_branch: BranchName | None
    own_bytes: Mapping[str, int]
    now: float
    approximate: frozenset[str] = frozenset()


def session_lines(sessions: Sequence[SessionWithBranches], options: ListOptions) -> tuple[SessionLine, ...]:
    """Return the lines, newest session first; branches only where there are several."""
    lines: list[SessionLine] = []
    for session, branches in sorted(sessions, key=_newest_first):
        lines.append(_session_line(session, options))
        if len(branches) > 1:
            lines += _branch_lines(session, branches, options)
    return tuple(lines)


def line_text(line: SessionLine, width: int) -> tuple[str, str]:
    """Return the name, cut and padded, and the figures; together exactly `width` cells.

    The size gives way to the name, the age only where there is hardly room for a name.
    """
    age = f" {line.age:>3}"
    size = f" {line.size:>5}" if line.size and len(line.name) + len(age) + 6 <= width else ""
    figures = size + age if width >= 14 else ""
    room = width - len(figures)
    return fitted(line.name, room).ljust(room), figures


def title_of(session: Session) -> str:
    return one_line(session.title) or UNTITLED


def _newest_first(entry: SessionWithBranches) -> tuple[bool, float]:
    session, _ = entry
    return not session.pinned, -session.updated_at


def _session_line(session: Session, options: ListOptions) -> SessionLine:
    is_active = session.id == options.active_session
    own_bytes = options.own_bytes.get(session.id)
    mark = "●" if is_active else "○" if own_bytes is not None else "·"
    if session.id in options.approximate:
        mark += APPROXIMATE
    return SessionLine(
        session_id=session.id,
        branch=None,
        name=" ".join(filter(None, (mark, trust_mark(session), title_of(session)))),
        size=short_bytes_text(own_bytes) if own_bytes else "",
        age=age_text(max(0.0, options.now - session.updated_at)),
        is_active=is_active,
    )


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
