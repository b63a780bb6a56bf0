"""A conversation as a tree of turns. Values only; the store persists them, chat extends them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NewType

from kvchat.engine.api.events import Loaded, Timings, Usage
from kvchat.errors import UsageError

SessionId = NewType("SessionId", str)
TurnId = NewType("TurnId", str)
BranchName = NewType("BranchName", str)

MAIN = BranchName("main")


class Role(StrEnum):
    USER = "user"
    ASSISTANT = "assistant"


class Finish(StrEnum):
    """How a turn ended. PARTIAL is an answer that is being written, or was when the process died."""

    COMPLETE = "complete"
    LENGTH = "length"
    INTERRUPTED = "interrupted"
    ERROR = "error"
    PARTIAL = "partial"


class MessagePart(StrEnum):
    """A part of a stored turn that has a digest of its own."""

    TEXT = "text"
    IDS = "token ids"
    FACTS = "facts"
    """Whose turn it is, where it hangs, and by which model and tokenizer."""


class Stored(StrEnum):
    """What became of that part of an answer's prompt that lay on a slower tier."""

    NOTHING = "nothing"
    """Nothing lay there that the device did not have."""
    LOADED = "load"
    COMPUTED = "compute"
    """It was computed again, since that was faster."""
    BOTH = "both"
    """Its front was computed while its end was loaded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """The server that has written an answer. What it did not report is not known.

    Args:
        url: of its API.
        counts_tokens: whether it has reported how long prompt and answer are.
        counts_cached: whether it has reported how much of the prompt it had cached.
    """

    url: str
    counts_tokens: bool = False
    counts_cached: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One message.

    `token_ids` are exactly the ids this turn adds to the conversation. A user turn's ids are the template's
    glue behind the turn before it (for the first one, everything before it, the system prompt included), the
    message, and the opening of the answer. An answer's ids are those that were sampled, its end-of-turn id
    included. Concatenated from the root they are what the model saw. None: the text was imported without ids.
    """

    id: TurnId
    session_id: SessionId
    parent_id: TurnId | None
    role: Role
    text: str
    reasoning: str = ""
    token_ids: tuple[int, ...] | None
    finish: Finish
    created_at: float
    model: str = ""
    fingerprint: str = ""
    usage: Usage = field(default_factory=Usage)
    loaded: Loaded = field(default_factory=Loaded)
    timings: Timings = field(default_factory=Timings)
    exact: bool = True
    tokenizer: str = ""
    starts_over: bool = False
    damaged: bool = False
    """Some part is not what was written, and could not be repaired."""
    broken: frozenset[MessagePart] = frozenset()
    """Which parts those are."""
    repaired: bool = False
    """A part was rebuilt from another one."""
    backend: Backend | None = None
    """None: it was written, or imported, here."""
    stored: Stored | None = field(default=None, compare=False)
    """None: nobody has noted it. It explains what was computed, and says nothing of the message."""

    @property
    def has_ids(self) -> bool:
        """Whether there are ids and they are what was written, whatever became of the text."""
        return self.token_ids is not None and (not self.damaged or self.broken == {MessagePart.TEXT})

    @property
    def is_open(self) -> bool:
        """Whether the answer can be continued: it stopped before the model ended it."""
        return self.role is Role.ASSISTANT and self.finish is not Finish.COMPLETE


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How an answer ended, and what it cost. `backend`: who wrote it, as far as that is known only then;
    `stored`: what became of its prompt's stored part.
    """

    finish: Finish
    usage: Usage = field(default_factory=Usage)
    loaded: Loaded = field(default_factory=Loaded)
    timings: Timings = field(default_factory=Timings)
    backend: Backend | None = None
    stored: Stored | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """A named leaf of a session's tree."""

    session_id: SessionId
    name: BranchName
    leaf_id: TurnId | None
    updated_at: float


class Verdict(StrEnum):
    """What recomputing KV has found."""

    SAME = "same"
    """Everything was computed again and agrees."""
    SAMPLED = "sampled"
    """What was looked at agrees; the rest was not looked at."""
    DIFFERENT = "different"
    """Some blocks disagreed and were set aside."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """The latest look at a session's KV. `num_blocks` of a session's `of_blocks` were computed again."""

    verdict: Verdict
    at: float
    num_blocks: int
    of_blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """A conversation. `model` is the name it was started with; `system` its system prompt; `adapter` the
    directory of the LoRA that it was computed with last, empty for none.

    `namespace` is empty for a session whose KV was computed here. That of an imported session is its
    bundle's: it shares blocks with nothing else until they have been verified.
    """

    id: SessionId
    title: str
    system: str
    model: str
    created_at: float
    updated_at: float
    active_branch: BranchName = MAIN
    pinned: bool = False
    namespace: str = ""
    verification: Verification | None = None
    adapter: str = ""
    lost: frozenset[str] = frozenset()
    """Which of `title`, `system` and `model` stand empty, because what was stored is damaged."""


def path_to(tree: Mapping[TurnId, Turn], turn: Turn) -> list[Turn]:
    """Return the turns from the first message to one of them."""
    path = [turn]
    while (parent := path[-1].parent_id) is not None and parent in tree:
        path.append(tree[parent])
    return path[::-1]


def live_part(path: Sequence[Turn]) -> Sequence[Turn]:
    """Return the turns of a path (root first) whose ids the model sees: from the last that starts over."""
    start = max((at for at, turn in enumerate(path) if turn.starts_over), default=0)
    return path[start:]


def path_token_ids(path: Sequence[Turn]) -> tuple[int, ...] | None:
    """Return what the model has seen of a path (root first); None where ids are missing or damaged."""
    ids: list[int] = []
    for turn in live_part(path):
        if turn.token_ids is None or not turn.has_ids:
            return None
        ids.extend(turn.token_ids)
    return tuple(ids)


def nested(
    branches: Sequence[Branch], outline: Mapping[TurnId, tuple[TurnId | None, int]]
) -> Iterator[tuple[Branch, int, int]]:
    """Yield branches with their depth and tokens, in their order but each behind the one that it leaves.

    Where branches part, what stands before belongs to `main`, else to the one that ends there, else to that
    whose next turn is the oldest, and the others leave it. Those that leave a branch that leaves none stand
    beside it, and have no depth either.

    Args:
        branches: of one session, last used first.
        outline: the parent and the number of tokens of each turn, oldest first.
    """
    age = {turn_id: at for at, turn_id in enumerate(outline)}
    parents = {turn_id: parent_id for turn_id, (parent_id, _) in outline.items()}
    paths = {branch.name: [*_ids_to(parents, branch.leaf_id)][::-1] for branch in reversed(branches)}
    had: dict[TurnId, BranchName] = {}
    left: dict[BranchName, BranchName] = {}
    for name in sorted(paths, key=lambda one: (one != MAIN, [age[turn_id] for turn_id in paths[one]])):
        for turn_id in paths[name]:
            if (owner := had.setdefault(turn_id, name)) != name:
                left[name] = owner

    def at(depth: int, found: Sequence[Branch]) -> Iterator[tuple[Branch, int, int]]:
        for branch in found:
            yield branch, depth, sum(outline[turn_id][1] for turn_id in paths[branch.name])
            if branch.name in left:
                yield from at(depth + 1, [one for one in branches if left.get(one.name) == branch.name])

    yield from at(0, [one for one in branches if left.get(one.name) not in left])


def num_common(one: Sequence[object], other: Sequence[object]) -> int:
    """Return how many items two sequences begin with alike."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (left, right) in pairs if left != right), min(len(one), len(other)))


def nth_last_question(turns: Sequence[Turn], num: int) -> Turn | None:
    """Return the person's `num`-th last message, 1 being the last; None if there are fewer."""
    questions = [turn for turn in turns if turn.role is Role.USER]
    return questions[-num] if 1 <= num <= len(questions) else None


def answer_positions(path: Sequence[Turn]) -> tuple[int, ...]:
    """Return the positions of the answers' tokens, among all that the model has seen of a path (root first).

    What a turn without ids would have is not counted, nor the very first token, which follows from nothing.
    """
    found: list[int] = []
    start = 0
    for turn in live_part(path):
        end = start + len(turn.token_ids or ())
        if turn.role is Role.ASSISTANT:
            found += range(max(start, 1), end)
        start = end
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchRemoval:
    """What removing a branch means.

    Args:
        path: its messages, root first.
        doomed: messages that go: those of its path that no other branch has, and what is behind them.
        left: messages of the session that stay, a parent before its children.
        successor: the branch that is opened next.
    """

    branch: Branch
    path: tuple[Turn, ...]
    doomed: tuple[Turn, ...]
    left: tuple[Turn, ...]
    successor: Branch

    @property
    def touched(self) -> tuple[Turn, ...]:
        """Messages of its path, and those behind them that go, a parent before its children."""
        on_path = {turn.id for turn in self.path}
        return (*self.path, *(turn for turn in self.doomed if turn.id not in on_path))

    @property
    def num_shared(self) -> int:
        """Messages of the branch that stay."""
        gone = {turn.id for turn in self.doomed}
        return sum(turn.id not in gone for turn in self.path)


def plan_removal(
    branch: Branch, branches: Sequence[Branch], turns: Sequence[Turn], active: BranchName
) -> BranchRemoval:
    """Return what removing a branch would mean.

    Args:
        branches, turns: all of its session, a parent before its children.
        active: the branch that was used last.

    Raises:
        UsageError: the session has no other branch.
    """
    others = [one for one in branches if one.name != branch.name]
    if not others:
        raise UsageError(f"{branch.name!r} is the only branch of its session; remove the session instead")
    parents = {turn.id: turn.parent_id for turn in turns}
    shared = {turn_id for one in others for turn_id in _ids_to(parents, one.leaf_id)}
    path = set(_ids_to(parents, branch.leaf_id))
    doomed = path - shared
    for turn in turns:
        if turn.parent_id in doomed:
            doomed.add(turn.id)
    return BranchRemoval(
        branch=branch,
        path=tuple(turn for turn in turns if turn.id in path),
        doomed=tuple(turn for turn in turns if turn.id in doomed),
        left=tuple(turn for turn in turns if turn.id not in doomed),
        successor=next((one for one in others if one.name == active), others[0]),
    )


def _ids_to(parents: dict[TurnId, TurnId | None], leaf_id: TurnId | None) -> Iterable[TurnId]:
    while leaf_id is not None and leaf_id in parents:
        yield leaf_id
        leaf_id = parents[leaf_id]
