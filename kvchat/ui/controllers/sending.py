"""Sends what was typed with the files that go with it: in its order, each message once its files are read."""

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from kvchat.errors import KvchatError
from kvchat.session.tree import Turn, TurnId
from kvchat.text.attached_files import Attachment, before_message, read_attachment
from kvchat.text.fit_text import one_line
from kvchat.ui.controllers.composer import ComposerController
from kvchat.ui.controllers.revisions import RevisionController
from kvchat.ui.controllers.screen_services import ScreenServices
from kvchat.ui.state.conversation_tab import message_turn

_MARKED = re.compile(r"(?<!\S)@(\S+)")
_AFTER_NAMES = ".,;:!?)\"'"
_MOST_REMEMBERED = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Marked:
    """What the `@` of a message stand for.

    Args:
        words: the message, with the names of the files that go with it in the place of their marks.
        others: what is marked and no file, nor looks like one.
        problems: why files cannot go with it.
    """

    words: str
    files: tuple[Attachment, ...]
    others: tuple[str, ...]
    problems: tuple[str, ...]


class SendController:
    """Takes messages from the prompt. One whose files cannot be read comes back, once."""

    def __init__(
        self, screen: ScreenServices, composer: ComposerController, revisions: RevisionController
    ) -> None:
        self._screen = screen
        self._turns = screen.turns
        self._composer = composer
        self._revisions = revisions
        self._in_order = asyncio.Lock()
        self._refused = ""
        self._untyped: tuple[str, ...] = ()

    def send(self, words: str, pasted: Sequence[str] = (), stored: Sequence[str] = ()) -> None:
        """Send a message, or a changed one.

        What is marked in `pasted` texts and `stored` messages, which hold the names of files in the place of
        their marks, is text, also when it comes back: only what was typed reads a file.
        """
        marks = self._typed_marks(words, pasted, stored)
        if marks or self._composer.is_reading or self._composer.waiting:
            self._composer.waiting.append(words)
            self._screen.begin(partial(self._send_when_read, words, marks))
        else:
            self._send(words, ())

    def _typed_marks(self, words: str, pasted: Sequence[str], stored: Sequence[str]) -> list[str]:
        marks: list[str] = _MARKED.findall(words)
        earlier = (*self._untyped, *stored)
        untyped = [mark for mark in marks if _is_in(mark, earlier) and not _is_in(mark, pasted)]
        if untyped:
            names = ", ".join(f"@{one_line(mark)}" for mark in untyped)
            self._screen.tell(
                f"{names} was pasted earlier or stands in an earlier message, so it is text; "
                "tab behind it attaches a file"
            )
        known = (one for one in (*earlier, *pasted) if "@" in one)
        self._untyped = tuple(known)[-_MOST_REMEMBERED:]
        return [mark for mark in marks if not _is_in(mark, self._untyped)]

    async def _send_when_read(self, words: str, marks: Sequence[str]) -> None:
        place, editing = self._turns.tab, _id_of(self._revisions.editing)
        try:
            async with self._in_order:
                are_read = await self._composer.settled()
                marked = await asyncio.to_thread(look_up, words, marks)
        finally:
            self._composer.waiting.remove(words)
        problem, again = "\n".join(marked.problems), "enter again sends it without"
        if not are_read:
            problem = "a file that was to go with your message could not be read"
        if place is not self._turns.tab:
            problem, again = "you have left its conversation", "enter sends it to the one on screen"
        elif editing != _id_of(self._revisions.editing):
            problem = "you have begun or left a change meanwhile"
            again = f"enter sends it as {'a message' if self._revisions.editing is None else 'the change'}"
        if problem and words != self._refused:
            self._refused = words
            self._composer.give_back(words)
            self._screen.warn(f"{problem}\nnothing was sent; {again}")
            return
        self._refused = ""
        if marked.others:
            names = ", ".join(f"@{one_line(name)}" for name in marked.others)
            self._screen.tell(f"{names} is no file here, and was sent as it is")
        self._send(marked.words, marked.files)

    def _send(self, words: str, files: Sequence[Attachment]) -> None:
        before, reading = self._composer.take()
        text = before + before_message(files) + words
        if self._revisions.editing is not None:
            self._revisions.send_edit(text)
        else:
            self._screen.queue(message_turn(text, reading))


def _is_in(mark: str, texts: Sequence[str]) -> bool:
    return any(f"@{mark}" in one for one in texts)


def _id_of(turn: Turn | None) -> TurnId | None:
    return None if turn is None else turn.id


def look_up(words: str, marks: Sequence[str]) -> Marked:
    """Read the files that are marked in a message; see `Marked`."""
    files, others, problems = [], [], []
    for mark in dict.fromkeys(marks):
        path = next((path for path in (mark, mark.rstrip(_AFTER_NAMES)) if _is_there(path)), None)
        if path is None and not _looks_like_path(mark):
            others.append(mark)
            continue
        path = path or mark.rstrip(_AFTER_NAMES)  # maybe there by now
        try:
            files.append(read_attachment(Path(path)))
        except KvchatError as error:
            problems.append(str(error))
        else:
            as_text = path.replace("\\", r"\\")
            words = re.sub(rf"(?<!\S)@{re.escape(path)}", as_text, words)
    return Marked(words=words, files=tuple(files), others=tuple(others), problems=tuple(problems))


def _is_there(path: str) -> bool:
    try:
        return bool(path) and Path(path).expanduser().exists()
    except (OSError, RuntimeError, ValueError):  # too long a name; `~name` of nobody
        return False


def _looks_like_path(mark: str) -> bool:
    name = mark.rstrip(_AFTER_NAMES)
    return "/" in name or "." in name.strip(".") or name.startswith("~")
