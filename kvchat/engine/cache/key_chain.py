"""The names of a sequence's full blocks, each computed once."""

from dataclasses import field

from kvchat.engine.api.ids import BlockKey, block_key
from kvchat.platform.values import dataclass


@dataclass(slots=True)
class KeyChain:
    """What has been named of one sequence, first block first.

    A name is a pure function of the parent and the ids, so it is looked up with both: a name that was
    remembered for anything else is not found, and it is forgotten with all behind it.
    """

    keys: list[BlockKey] = field(default_factory=list)
    parents: list[BlockKey] = field(default_factory=list)
    block_ids: list[tuple[int, ...]] = field(default_factory=list)

    def name(self, number: int, parent: BlockKey, token_ids: tuple[int, ...]) -> BlockKey:
        """Return the key of a full block; hashes at most once for each block of an unchanged sequence."""
        if number < len(self.keys):
            if self.block_ids[number] == token_ids and self.parents[number] == parent:
                return self.keys[number]
            for names in (self.keys, self.parents, self.block_ids):
                del names[number:]
        key = block_key(parent, token_ids)
        if number == len(self.keys):
            self.keys.append(key)
            self.parents.append(parent)
            self.block_ids.append(token_ids)
        return key

    def copy(self) -> "KeyChain":
        return KeyChain(list(self.keys), list(self.parents), list(self.block_ids))
