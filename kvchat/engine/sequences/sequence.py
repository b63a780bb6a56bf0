"""A live sequence: token ids, how many of them are computed, and one block table per group."""

from dataclasses import dataclass, field

from kvchat.engine.api.ids import BlockId, BlockKey, GroupId, SequenceId, block_key
from kvchat.engine.formats.spec import Group
from kvchat.engine.formats.view_schedule import EXACT, Name, ViewSchedule, kept_name


@dataclass(slots=True)
class KeyChain:
    """What has been named of one sequence, first block first.

    A name is a pure function of the parent and the ids, so it is looked up with both: a name that was
    remembered for anything else is not found, and it is forgotten with all behind it.
    """

    names: list[tuple[BlockKey, BlockKey, tuple[int, ...]]] = field(default_factory=list)
    """Key, parent and token ids of each block."""

    def name(self, number: int, parent: BlockKey, token_ids: tuple[int, ...]) -> BlockKey:
        """Return the key of a full block; hashes at most once for each block of an unchanged sequence."""
        if number < len(self.names):
            key, *of = self.names[number]
            if of == [parent, token_ids]:
                return key
            del self.names[number:]
        key = block_key(parent, token_ids)
        if number == len(self.names):
            self.names.append((key, parent, token_ids))
        return key


BlockTable = list[BlockId | None]
"""Logical block number → block id; None is a hidden range: the block has left the window."""


@dataclass(slots=True)
class Sequence:
    """Bookkeeping of one sequence.

    `token_ids[:computed_len]` have their KV in the tables' blocks. `keys` name the full blocks among them,
    and so does `len(keys) * block_size <= computed_len`. `root` is the parent of the first of them.
    `saved_tail` is the key under which the tail was last saved. `root` follows from the fingerprint and
    `namespace`.
    """

    id: SequenceId
    owner: str
    root: BlockKey
    token_ids: list[int]
    tables: list[BlockTable]
    computed_len: int = 0
    num_ahead: int = 0
    """Tokens behind the computed ones whose slots are being written before it is known what they are."""
    keys: list[BlockKey] = field(default_factory=list)
    saved_tail: BlockKey | None = None
    saved_len: int = 0
    """Tokens that were computed when the tail was last saved."""
    kept: dict[GroupId, list[BlockId]] = field(default_factory=dict)
    """Blocks that the step in progress fills with what it keeps of a stretch."""
    kept_names: dict[int, Name] = field(default_factory=dict)
    """Of what is left of stretches, by number, in the groups that are pruned."""
    priority: int = 0
    """Of the last request that ran on it: who is less important gives way first."""
    idle_since_s: float | None = None
    """When it was first seen without a request; None: not yet, or it is at work."""
    namespace: str = ""
    is_saved: bool = True
    """Whether what it computes goes to the disk."""
    chain: KeyChain = field(default_factory=KeyChain)
    """Names of its full blocks, computed or not, as far as anybody has asked for them."""
    view_schedule: ViewSchedule = EXACT
    """What it keeps in sight."""
    piece: int = 0
    """Of a model with states: steps end at multiples of so many tokens, so that the same tokens are always
    computed together."""
    checkpoints: tuple[int, ...] = ()
    """Behind how many tokens of its prompt others may go on."""
    known_len: int = 0
    """Tokens of its prompt whose keys and values were found in any tier, with a state or without."""
    ends_at_snapshots: bool = False
    """Whether its steps end there: its model computes the tokens of a step in one call."""
    snapshots_at: tuple[int, ...] = ()
    """Behind how many tokens states of its prompt are kept, ascending."""

    def step_len(self, num_tokens: int, num_due: int) -> int:
        """Return how many of the next `num_tokens` tokens one step may compute, of `num_due` that are to be
        computed. Pure.
        """
        num_tokens = self.view_schedule.step_len(self.computed_len, num_tokens)
        if not self.piece:
            return num_tokens
        if self.ends_at_snapshots and (inside := self.snapshots_within(num_tokens)):
            return inside[0] - self.computed_len
        end = self.computed_len + num_tokens
        whole = end // self.piece * self.piece - self.computed_len
        return whole if whole > 0 and num_tokens < num_due else num_tokens

    def snapshots_within(self, num_tokens: int) -> tuple[int, ...]:
        """Return where inside a step of the next `num_tokens` tokens states are kept. Pure."""
        return tuple(at for at in self.snapshots_at if 0 < at - self.computed_len < num_tokens)

    @property
    def num_uncomputed(self) -> int:
        return len(self.token_ids) - self.computed_len

    @property
    def last_key(self) -> BlockKey:
        """The parent of the tail."""
        return self.parent_of(len(self.keys))

    def parent_of(self, number: int) -> BlockKey:
        """Return the parent of a full block, as it was computed, or of the tail."""
        previous = self.keys[number - 1] if number else self.root
        return self.view_schedule.parent(number, previous, self.computed_len)

    def name_of(self, group: Group, number: int) -> Name:
        """Return the name of what a group holds of a full block."""
        kept = kept_name(group, number, self.kept_names)
        return kept or (self.keys[number], self.parent_of(number))

    def prefix_name(self, num_tokens: int, block_size: int) -> BlockKey:
        """Return a name of the first `num_tokens` computed tokens, in whoever's sequence, before anything
        went out of sight behind them. What has the same name has the same KV. Pure.
        """
        number = num_tokens // block_size
        previous = self.keys[number - 1] if number else self.root
        parent = self.view_schedule.parent(number, previous, num_tokens - 1)
        return block_key(parent, self.token_ids[number * block_size : num_tokens])

    def block_ids(self, number: int, block_size: int) -> tuple[int, ...]:
        """Return the computed token ids of one block."""
        start = number * block_size
        return tuple(self.token_ids[start : min(start + block_size, self.computed_len)])
