"""The message being written: its text in the prompt, and files that are read while the person still types."""

import asyncio
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from kvchat.errors import ContextOverflow, KvchatError
from kvchat.text.answer_footer import overflow_text
from kvchat.text.attached_files import (
    PASTED,
    Attachment,
    before_message,
    read_attachment,
    split_message,
    take_out_files,
    words_of,
)
from kvchat.text.figures import plural
from kvchat.text.fit_text import one_line
from kvchat.ui.controllers.screen_services import ScreenServices

if TYPE_CHECKING:
    from kvchat.chat.candidates.service import ReadAhead


class ComposerController:
    """Puts texts into the prompt, and keeps the attachments of the message there.

    Attributes:
        attachments: in the order in which they will stand.
        waiting: messages that wait for files to be read.
    """

    def __init__(self, screen: ScreenServices) -> None:
        self._screen = screen
        self._chat = screen.chat
        self._turns = screen.turns
        self.attachments: tuple[Attachment, ...] = ()
        self.waiting: list[str] = []
        self._reading: ReadAhead | None = None
        self._put_aside: tuple[Attachment, ...] | None = None
        self._of_edit: tuple[Attachment, ...] = ()
        self._num_unread = 0
        self._are_read = asyncio.Event()
        self._has_failed = False

    @property
    def is_reading(self) -> bool:
        """Whether a file is being read that goes with the next message."""
        return self._num_unread > 0

    @property
    def put_aside(self) -> tuple[Attachment, ...]:
        """What goes with the next message that is no edit, while one is edited."""
        return self._put_aside or ()

    async def settled(self) -> bool:
        """Wait until all files are read, and return whether all could be."""
        while self._num_unread:
            self._are_read.clear()
            await self._are_read.wait()
        has_failed, self._has_failed = self._has_failed, False
        return not has_failed

    def give_back(self, text: str) -> None:
        """Return unsent text to the prompt, before what has been typed since, and its files to its lines."""
        files, text = take_out_files(text)
        self._attach_again(files)
        if text:
            self._screen.prompt.give_back(text)

    def write_message(self, text: str) -> None:
        """Put a message into the prompt, its files beside it."""
        files, words = split_message(text)
        self._attach_again(files)
        self._write_stored(words)

    def begin_edit(self, text: str) -> None:
        """Put a message into the prompt to be changed, its files beside it; what is attached is put aside."""
        self.end_edit()
        files, words = split_message(text)
        self._put_aside, self._of_edit = self.attachments, files
        self._set(files)
        self._write_stored(words)

    def end_edit(self) -> None:
        """Attach again what was put aside, and what was attached to a change that is given up."""
        if self._put_aside is not None:
            put_aside, self._put_aside = self._put_aside, None
            self._set((*put_aside, *(one for one in self.attachments if one not in self._of_edit)))

    def attach(self, path: str) -> None:
        self._num_unread += 1
        self._screen.begin(partial(self._attach, Path(path)))

    def attach_text(self, text: str) -> None:
        number = sum(one.name.startswith(PASTED) for one in self.attachments) + 1
        name = PASTED if number == 1 else f"{PASTED} {number}"
        self._add(Attachment(name=name, text=text))
        self._screen.tell(f"Attached {plural(len(text), 'character')} · /detach removes")

    def detach(self) -> bool:
        """Leave out what was attached last, and return whether there was anything."""
        if not self.attachments:
            return False
        self._set(self.attachments[:-1])
        return True

    def take(self) -> "tuple[str, ReadAhead | None]":
        """Return what stands before the message that is sent now and what was read of it; forget both."""
        before, reading = before_message(self.attachments), self._reading
        self.attachments, self._reading = (), None
        self._draw("")
        return before, reading

    async def read_history(self) -> None:
        """Put the messages of earlier runs a key up away."""
        with suppress(KvchatError):
            messages = await asyncio.to_thread(self._chat.store.recent_questions)
            self._screen.prompt.begin_history([words_of(message) for message in messages])

    async def find_message(self) -> None:
        """Put an earlier message that the person looks for into the prompt."""
        from kvchat.ui.screens.choices import PromptHistoryScreen

        prompt = self._screen.prompt
        message = await self._screen.dialogs.ask(PromptHistoryScreen(prompt.messages))
        if message is not None:
            prompt.write(message)
            prompt.note_found(message)

    def read_again(self) -> None:
        """Read for what is on screen now: another conversation, or an engine that has loaded."""
        if self.attachments:
            self._set(self.attachments)

    def _write_stored(self, words: str) -> None:
        self._screen.prompt.write(words)
        self._screen.prompt.note_stored(words)

    def _attach_again(self, files: tuple[Attachment, ...]) -> None:
        if files:
            self._set((*files, *self.attachments))

    async def _attach(self, path: Path) -> None:
        try:
            attachment = await asyncio.to_thread(read_attachment, path)
        except KvchatError as error:
            self._has_failed = bool(self.waiting)
            self._screen.warn(str(error))
        else:
            self._add(attachment)
        finally:
            self._num_unread -= 1
            self._are_read.set()

    def _add(self, attachment: Attachment) -> None:
        self._set((*self.attachments, attachment))

    def _set(self, attachments: tuple[Attachment, ...]) -> None:
        self.attachments = attachments
        if self._reading is not None:
            self._reading.stop()
            self._reading = None
        self._draw("")
        if attachments and self._put_aside is None:
            self._screen.begin(self._read, group="read ahead")

    async def _read(self) -> None:
        before, conversation = before_message(self.attachments), self._turns.conversation
        system = self._turns.tab.draft.system
        try:
            num_tokens = await asyncio.to_thread(self._chat.variants.num_tokens, before)
            if not self._screen.is_engine_ready or self._turns.is_running:
                self._draw(plural(num_tokens, "token"))
                return
            self._draw(f"{plural(num_tokens, 'token')}, being read")
            reading = await asyncio.to_thread(self._chat.variants.read_ahead, conversation, system, before)
            if before != before_message(self.attachments):
                return  # the message was sent meanwhile
            self._reading = reading
            await asyncio.to_thread(reading.run)
        except ContextOverflow as error:
            self._draw(one_line(overflow_text(error, before, num_tokens)))
            return
        except KvchatError as error:
            self._draw(one_line(str(error)))
            return
        if self._reading is reading:
            self._draw(f"{plural(num_tokens, 'token')}, read")

    def _draw(self, state: str) -> None:
        lines = [f"▤ {one_line(one.summary)}" for one in self.attachments]
        if lines and state:
            lines[-1] += f" · {state}"
        self._screen.draw_lines("attachments", lines)
