"""`kvchat sessions`: look at what is stored. Loads no model."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from time import localtime, strftime, time
from typing import Annotated

from rich.cells import cell_len

from kvchat.app.open_store import open_to_read, short_ids
from kvchat.cli.output.streams import Output, Status, as_json, written_as_json
from kvchat.cli.output.wrap import GAP, LEAST_ROOM
from kvchat.cli.parser.options import ListOptions, SessionOptions
from kvchat.cli.parser.typer_parameters import Argument, Option, option_class
from kvchat.errors import SessionNotFound
from kvchat.session.kv.provenance import is_imported, origin_of, trust_of
from kvchat.session.session_queries import SessionSummary
from kvchat.session.tree import Branch, Finish, Role, Session, Turn, Verdict
from kvchat.text.figures import age_text, plural, short_count_text
from kvchat.text.fit_text import fitted, one_line
from kvchat.text.trust import trust_words

MOST_HITS = 1_000_000


@option_class
class SearchOptions(ListOptions):
    words: Annotated[list[str], Argument(help="Words that a message must contain.", metavar="WORD...")]
    limit: Annotated[int, Option(help="Show at most N messages.", metavar="N", min=1, max=MOST_HITS)] = 20


_EXCERPT_LEN = 60
_TITLE_COLUMN = 16
"""Where titles begin in the list of sessions, behind the name and the age."""
_LEAST_TITLE = 20


def list_sessions(options: ListOptions) -> None:
    """List all sessions, pinned ones first, then last used first."""
    output = Output()
    with closing(open_to_read(options.settings())) as store:
        summaries = sorted(store.list_sessions(), key=lambda one: not one.session.pinned)
    if written_as_json(options, output, map(_summary_values, summaries)):
        return
    if not summaries:
        Status(quiet=options.quiet).note("there is no session yet; `kvchat ask` or `kvchat` starts one")
    output.columns(_summary_rows(summaries, output.width), indent=_TITLE_COLUMN)


def show_session(options: SessionOptions) -> None:
    """Print the conversation on a session's active branch."""
    output = Output()
    with closing(open_to_read(options.settings())) as store:
        session = store.find(options.session)
        branches = store.branches(session.id)
        turns = store.turns_to(store.branch(session.id, session.active_branch).leaf_id)
    if options.ndjson:
        for turn in turns:
            output.json(_all_of(turn))
        return
    if options.json:
        output.json(
            _all_of_session(session)
            | {
                "trust": trust_of(session),
                "branches": [asdict(branch) for branch in branches],
                "turns": [_all_of(turn) for turn in turns],
            }
        )
        return
    output.line(f"{one_line(session.title) or '(untitled)'}  {session.id}")
    output.line(f"{session.model}, {_branch_words(session, branches)}, {_date(session.created_at)}")
    if words := _trust_words(session):
        output.line(words)
    if session.lost:
        output.line(f"damage has cost its {' and '.join(sorted(session.lost))}")
    if session.system:
        output.line(f"\nsystem: {session.system}")
    for turn in turns:
        output.line(f"\n{_SPEAKERS[turn.role]}: {turn.text}{_ending(turn)}")
    if turns and turns[-1].finish is Finish.INTERRUPTED:
        status = Status(quiet=options.quiet)
        status.note(
            f"\nthe last answer was interrupted; `kvchat ask -s {session.id}` goes on with it, "
            f"or /continue in `kvchat resume {session.id}`"
        )


def show_last(options: ListOptions) -> None:
    """Print the last answer of the session that was used last, and its id on standard error."""
    output = Output()
    with closing(open_to_read(options.settings())) as store:
        summaries = store.list_sessions()
        if not summaries:
            raise SessionNotFound("there is no session yet; `kvchat ask` or `kvchat` starts one")
        session = summaries[0].session
        turns = store.turns_to(store.branch(session.id, session.active_branch).leaf_id)
    answers = [turn for turn in turns if turn.role is Role.ASSISTANT]
    if as_json(options):
        output.json(
            {"session": session.id, "title": session.title} | _all_of(answers[-1]) if answers else None
        )
        return
    if not answers:
        raise SessionNotFound(f"session {session.id} has no answer yet; `kvchat sessions show {session.id}`")
    output.line(answers[-1].text)
    Status(quiet=options.quiet).note(f"{session.id}  {one_line(session.title)}".rstrip())


def show_tree(options: SessionOptions) -> None:
    """Print the tree of a session's turns with its branches."""
    output = Output()
    with closing(open_to_read(options.settings())) as store:
        session = store.find(options.session)
        branches = store.branches(session.id)
        turns = store.all_turns(session.id)
    if written_as_json(options, output, (_turn_values(turn, branches) for turn in turns)):
        return
    output.line(f"{one_line(session.title) or '(untitled)'}  {session.id}")
    for line in tree_lines(turns, branches, session):
        output.line(line)


def search_sessions(options: SearchOptions) -> None:
    """Find messages that hold all these words."""
    output = Output()
    with closing(open_to_read(options.settings())) as store:
        hits = store.search(" ".join(options.words), options.limit)
    if written_as_json(options, output, map(asdict, hits)):
        return
    if not hits:
        Status(quiet=options.quiet).note("no message contains these words")
    for hit in hits:
        output.line(
            f"{hit.session_id}  {one_line(hit.title)}  {_SPEAKERS[hit.role]}: {one_line(hit.excerpt)}"
        )


def tree_lines(turns: Sequence[Turn], branches: Sequence[Branch], session: Session) -> list[str]:
    """Return a line per turn, indented where the tree forks."""
    children: dict[str | None, list[Turn]] = {}
    for turn in turns:
        children.setdefault(turn.parent_id, []).append(turn)
    leaves: dict[str | None, list[str]] = {}
    for branch in branches:
        mark = "*" if branch.name == session.active_branch else ""
        leaves.setdefault(branch.leaf_id, []).append(f"[{branch.name}{mark}]")
    lines: list[str] = []
    # A stack, not recursion: a conversation may have more turns than Python has frames.
    waiting = [(turn, 0) for turn in reversed(children.get(None, []))]
    while waiting:
        turn, depth = waiting.pop()
        names = " ".join(leaves.get(turn.id, []))
        excerpt = fitted(one_line(turn.text), _EXCERPT_LEN)
        lines.append(f"{'  ' * depth}{_SPEAKERS[turn.role]}: {excerpt}{_ending(turn)}  {names}".rstrip())
        below = children.get(turn.id, [])
        waiting += [(child, depth + (len(below) > 1)) for child in reversed(below)]
    return lines


_SPEAKERS = {Role.USER: "you", Role.ASSISTANT: "kvchat"}


def _ending(turn: Turn) -> str:
    """Return what is to be said behind a message: how it ended, and that its KV was approximate."""
    words = [] if turn.finish is Finish.COMPLETE else [f" … ({turn.finish.value})"]
    if turn.token_ids is not None and not turn.exact:
        words.append(" (approximate)")
    return "".join(words)


def _summary_rows(summaries: Sequence[SessionSummary], width: int | None) -> list[tuple[str, str]]:
    """Return name, age and title of each session, and its figures; only for a terminal are titles cut."""
    names = short_ids(summary.session.id for summary in summaries)
    now = time()
    figures = [_summary_figures(summary) for summary in summaries]
    rooms = _title_rooms(figures, width)
    rows = []
    for summary, behind, room in zip(summaries, figures, rooms, strict=True):
        session = summary.session
        title = one_line(session.title) or "(untitled)"
        shown = title if room is None else fitted(title, room)
        age = age_text(max(0.0, now - session.updated_at))
        rows.append((f"{names[session.id]:8}  {age:>4}  {shown}", behind))
    return rows


def _title_rooms(figures: Sequence[str], width: int | None) -> list[int | None]:
    """Return the cells of each title: the same for all that have their figures beside them.

    Two thirds of them do, or none: those that have more to tell take no room from the others.
    """
    if width is None:
        return [None for _ in figures]
    alone = max(width - _TITLE_COLUMN, min(LEAST_ROOM, width - 4), 1)
    rooms = [width - _TITLE_COLUMN - len(GAP) - cell_len(one) for one in figures]
    common = sorted(rooms, reverse=True)[-(-2 * len(rooms) // 3) - 1] if rooms else alone
    return [common if room >= common >= _LEAST_TITLE else alone for room in rooms]


def _summary_figures(summary: SessionSummary) -> str:
    session = summary.session
    figures = f"{plural(summary.num_turns, 'turn')}, {short_count_text(summary.num_tokens)} tokens"
    if session.pinned:
        figures += ", pinned"
    if summary.num_branches > 1:
        figures += f", {summary.num_branches} branches"
    if not summary.is_exact:
        figures += ", approximate"
    if trust := trust_words(session):
        figures += f"; {trust}"
    return f"({figures})"


def _summary_values(summary: SessionSummary) -> dict[str, object]:
    values = {
        "num_turns": summary.num_turns,
        "num_tokens": summary.num_tokens,
        "num_branches": summary.num_branches,
        "exact": summary.is_exact,
    }
    return _all_of_session(summary.session) | {"trust": trust_of(summary.session)} | values


def _all_of_session(session: Session) -> dict[str, object]:
    return asdict(session) | {"lost": sorted(session.lost)}


def _all_of(turn: Turn) -> dict[str, object]:
    return asdict(turn) | {"broken": sorted(turn.broken)}


def _turn_values(turn: Turn, branches: Sequence[Branch]) -> dict[str, object]:
    return {
        "id": turn.id,
        "parent_id": turn.parent_id,
        "role": turn.role,
        "text": turn.text,
        "finish": turn.finish,
        "num_tokens": None if turn.token_ids is None else len(turn.token_ids),
        "branches": [branch.name for branch in branches if branch.leaf_id == turn.id],
    }


def _branch_words(session: Session, branches: Sequence[Branch]) -> str:
    others = [branch.name for branch in branches if branch.name != session.active_branch]
    return f"branch {session.active_branch}" + (f" (also {', '.join(others)})" if others else "")


def _trust_words(session: Session) -> str:
    """Return where a session's KV came from and what was found of it; empty if nobody has looked."""
    words = ["KV imported, shared with no other session"] if is_imported(session) else []
    if (conversion := origin_of(session.namespace)) is not None:
        words.append(f"KV converted from {conversion.source} to {conversion.cache_format}: approximate")
    found = session.verification
    if is_imported(session) and found is None:
        words.append(f"not verified: `kvchat sessions verify --all {session.id}` computes it again")
    if found is not None:
        of = f"{found.num_blocks} of {plural(found.of_blocks, 'block')}"
        words.append(f"KV verified {_date(found.at)}: {of}, {_VERDICTS[found.verdict]}")
    return "; ".join(words)


_VERDICTS = {
    Verdict.SAME: "all as computed here",
    Verdict.SAMPLED: "those as computed here",
    Verdict.DIFFERENT: "some were not and were set aside",
}


def _date(seconds: float) -> str:
    return strftime("%Y-%m-%d %H:%M", localtime(seconds))
