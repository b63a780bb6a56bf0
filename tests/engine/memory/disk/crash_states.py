"""Looking at every state in which a loss of power may leave a directory.

A kill cannot test an fsync: the kernel still has every byte. So the operations of a run are recorded, and the
directory is opened in every state that the medium may be in after any number of them.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from shutil import rmtree

from tests.engine.memory.disk.recorded_files import CrashStates, Operation, Sync, Tree

Recorded = tuple[Tree, list[Operation]]
"""A directory, and what was done to it then."""
Look = Callable[[Path, Sequence[Operation]], list[str]]
"""Returns how a state in a place breaks a promise that these operations have given."""
Forget = Callable[[Operation], Operation | None]
"""Leaves operations out, or makes less of them."""


def check_every_state(place: Path, recorded: Recorded, look: Look, num_samples: int, least: int) -> None:
    """Look at every state, of which there are more than `least`."""
    base, operations = recorded
    num_states = 0
    for num_called, state in CrashStates(base, operations, Random(0), num_samples):
        _put(place, state)
        assert look(place, operations[:num_called]) == []
        num_states += 1
    assert num_states > least


def is_any_state_wrong(place: Path, recorded: Recorded, look: Look, forget: Forget) -> bool:
    """Return whether a state breaks a promise where some operations are left out."""
    base, operations = recorded
    kept = [operation for operation in map(forget, operations) if operation is not None]
    for num_called, state in CrashStates(base, kept, Random(0), num_samples=4):
        _put(place, state)
        if look(place, kept[:num_called]):
            return True
    return False


def without_syncs(operation: Operation) -> Operation | None:
    return None if isinstance(operation, Sync) else operation


def _put(place: Path, state: Tree) -> None:
    rmtree(place, ignore_errors=True)
    place.mkdir()
    state.put(place)
