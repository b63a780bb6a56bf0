"""Files that note every operation, and every state in which a loss of power may leave the directory.

What the model allows is what POSIX does not forbid: of a file's bytes that were not synced any part may be
missing, torn or zero; every name that was created, renamed or removed in a directory which was not synced
since may or may not be there; a rename happens whole or not at all. The index may have lost the last commits
behind the last durable one, never one in the middle, which is what SQLite promises.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from kvchat.engine.memory.disk.io import SystemFiles

INDEX = "index.db"


@dataclass(frozen=True, slots=True)
class Create:
    path: str
    file: int


@dataclass(frozen=True, slots=True)
class Write:
    file: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Sync:
    file: int


@dataclass(frozen=True, slots=True)
class Rename:
    source: str
    target: str


@dataclass(frozen=True, slots=True)
class OnPath:
    path: str


class Unlink(OnPath): ...


class MakeDir(OnPath): ...


class RemoveDir(OnPath): ...


class SyncDir(OnPath): ...


@dataclass(frozen=True, slots=True)
class Commit:
    image: bytes
    is_durable: bool


@dataclass(frozen=True, slots=True)
class Note:
    """What the test has to remember of this moment."""

    what: str
    about: object


Naming = Create | Rename | Unlink | MakeDir | RemoveDir
Operation = Naming | Write | Sync | SyncDir | Commit | Note


class RecordingFiles(SystemFiles):
    """The real files of one directory, with a record. Paths in it are relative."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.operations: list[Operation] = []
        self.num_written_bytes = 0
        self._open: dict[int, int] = {}
        self._num_files = 0

    def note(self, what: str, about: object) -> None:
        self.operations.append(Note(what, about))

    def create(self, path: Path) -> int:
        descriptor = super().create(path)
        self._num_files += 1
        self._open[descriptor] = self._num_files
        self.operations.append(Create(self._name(path), self._num_files))
        return descriptor

    def write(self, descriptor: int, parts: Sequence[memoryview]) -> int:
        num_bytes = super().write(descriptor, parts)
        self.num_written_bytes += num_bytes
        self.operations.append(Write(self._open[descriptor], b"".join(parts)[:num_bytes]))
        return num_bytes

    def sync(self, descriptor: int) -> None:
        self.operations.append(Sync(self._open[descriptor]))

    def rename(self, source: Path, target: Path) -> None:
        super().rename(source, target)
        self.operations.append(Rename(self._name(source), self._name(target)))

    def unlink(self, path: Path) -> None:
        super().unlink(path)
        self.operations.append(Unlink(self._name(path)))

    def make_dir(self, path: Path) -> None:
        super().make_dir(path)
        self.operations.append(MakeDir(self._name(path)))

    def remove_dir(self, path: Path) -> None:
        super().remove_dir(path)
        self.operations.append(RemoveDir(self._name(path)))

    def sync_dir(self, path: Path) -> None:
        super().sync_dir(path)
        self.operations.append(SyncDir(self._name(path)))

    def commit(self, connection: sqlite3.Connection) -> None:
        (level,) = connection.execute("PRAGMA synchronous").fetchone()
        super().commit(connection)
        self.operations.append(Commit(connection.serialize(), is_durable=level >= 2))

    def _name(self, path: Path) -> str:
        return str(path.relative_to(self.root))


class AnotherBoot(SystemFiles):
    """The files after the machine was started again; syncing is left out, since nothing falls here."""

    def boot_id(self) -> str:
        return "another"

    def sync(self, descriptor: int) -> None: ...

    def sync_dir(self, path: Path) -> None:
        path.stat()


@dataclass(frozen=True, slots=True)
class Tree:
    """A directory as values: files with their bytes, and directories."""

    files: dict[str, bytes]
    directories: frozenset[str]
    index: bytes | None

    @classmethod
    def of(cls, root: Path) -> "Tree":
        """Return what is in a closed cache directory."""
        paths = [path for path in root.rglob("*") if path.parent.name != "writers"]
        files = {
            str(path.relative_to(root)): path.read_bytes()
            for path in paths
            if path.is_file() and not path.name.startswith(INDEX)
        }
        connection = sqlite3.connect(root / INDEX)
        index = connection.serialize()
        connection.close()
        directories = frozenset(str(path.relative_to(root)) for path in paths if path.is_dir())
        return cls(files, directories, index)

    def put(self, root: Path) -> None:
        """Write the tree to an empty directory."""
        for directory in sorted(self.directories):
            (root / directory).mkdir(parents=True, exist_ok=True)
        for name, data in self.files.items():
            (root / name).write_bytes(data)
        if self.index is not None:
            (root / INDEX).write_bytes(self.index)


@dataclass(slots=True)
class _Content:
    """One file's bytes: those that were synced, and the writes behind them."""

    synced: bytes = b""
    writes: list[bytes] = field(default_factory=list)


class CrashStates:
    """The states after any prefix of the operations."""

    def __init__(self, base: Tree, operations: Sequence[Operation], random: Random, num_samples: int) -> None:
        """Prepare the enumeration.

        Args:
            base: the directory before the first operation, all of it durable.
            num_samples: states drawn at random at each moment, beside the two extremes.
        """
        self._base = base
        self._operations = operations
        self._random = random
        self._num_samples = num_samples

    def __iter__(self) -> Iterator[tuple[int, Tree]]:
        """Yield the number of operations that were called before the crash, and a state it may leave."""
        for num_called in range(len(self._operations) + 1):
            seen: list[Tree] = []
            for number in range(self._num_samples + 2):
                state = self._state(self._operations[:num_called], number)
                if state not in seen:
                    seen.append(state)
                    yield num_called, state

    def _state(self, called: Sequence[Operation], number: int) -> Tree:
        """Return one state: everything called has happened (0), nothing that needed not (1), or a draw."""
        share = {0: 1.0, 1: 0.0}.get(number, 0.5)
        names = [
            operation
            for at, operation in enumerate(called)
            if isinstance(operation, Naming)
            and (_is_durable(operation, called[at + 1 :]) or self._random.random() < share)
        ]
        contents = _contents(called)
        bytes_of = {file: self._survivors(content, number) for file, content in contents.items()}
        tree = _named(self._base, names, bytes_of)
        return Tree(tree.files, tree.directories, self._index(called, number))

    def _survivors(self, content: _Content, number: int) -> bytes:
        whole = content.synced + b"".join(content.writes)
        if number == 0:
            return whole
        if number == 1:
            return content.synced
        end = self._random.randint(len(content.synced), len(whole))
        survivors = whole[:end]
        if self._random.random() < 0.3:  # the length is there, the bytes are not
            hole = self._random.randint(len(content.synced), len(survivors))
            survivors = survivors[:hole] + bytes(len(whole) - hole)
        return survivors

    def _index(self, called: Sequence[Operation], number: int) -> bytes | None:
        images = [self._base.index]
        for operation in called:
            if isinstance(operation, Commit):
                images = ([] if operation.is_durable else images) + [operation.image]
        return {0: images[-1], 1: images[0]}.get(number, self._random.choice(images))


def _is_durable(operation: Naming, later: Sequence[Operation]) -> bool:
    if isinstance(operation, Rename):
        parents = {_parent(operation.source), _parent(operation.target)}
    else:
        parents = {_parent(operation.path)}
    return any(isinstance(one, SyncDir) and one.path in parents for one in later)


def _contents(called: Sequence[Operation]) -> dict[int, _Content]:
    contents: dict[int, _Content] = {}
    for operation in called:
        if isinstance(operation, Create):
            contents[operation.file] = _Content()
        elif isinstance(operation, Write):
            contents[operation.file].writes.append(operation.data)
        elif isinstance(operation, Sync):
            content = contents[operation.file]
            content.synced += b"".join(content.writes)
            content.writes.clear()
    return contents


def _named(base: Tree, names: Sequence[Naming], bytes_of: dict[int, bytes]) -> Tree:
    """Return the tree after those naming operations that can happen without the ones left out."""
    files: dict[str, bytes] = dict(base.files)
    directories = {*base.directories, "."}
    for operation in names:
        if isinstance(operation, Create) and _parent(operation.path) in directories:
            files[operation.path] = bytes_of[operation.file]
        elif isinstance(operation, Rename):
            if operation.source in files and _parent(operation.target) in directories:
                files[operation.target] = files.pop(operation.source)
        elif isinstance(operation, Unlink):
            files.pop(operation.path, None)
        elif isinstance(operation, MakeDir) and _parent(operation.path) in directories:
            directories.add(operation.path)
        elif isinstance(operation, RemoveDir) and not _has_any(operation.path, (*files, *directories)):
            directories.discard(operation.path)
    return Tree(files, frozenset(directories - {"."}), base.index)


def _has_any(directory: str, names: Sequence[str]) -> bool:
    return any(name.startswith(directory + "/") for name in names)


def _parent(path: str) -> str:
    return str(Path(path).parent)
