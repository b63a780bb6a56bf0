"""Clipboard controller: texts that leave the interface, to the clipboard or the editor."""

import asyncio
import os
from functools import partial

from textual.app import SuspendNotSupported

from kvchat.errors import UsageError
from kvchat.session.tree import Turn
from kvchat.text.figures import plural
from kvchat.ui.controllers.screen_services import ScreenServices


class Clipboard:
    """Copies texts, and opens them in the editor."""

    def __init__(self, screen: ScreenServices) -> None:
        self._screen = screen

    def copy(self, text: str) -> None:
        """Copy a text and say by which route."""
        self._screen.begin(partial(self._copy, text))

    def copy_code(self, turn: Turn) -> None:
        """Copy the code of an answer, all blocks of it."""
        code = code_of(turn.text)
        if code:
            self.copy(code)
        else:
            self._screen.warn("there is no code in this answer")

    def edit_prompt(self, text: str) -> None:
        """Let the person write the message in the editor."""
        changed = self._edited(text)
        if changed is not None:
            self._screen.prompt.write(changed)

    def open(self, turn: Turn) -> None:
        """Show a message in the editor; what is changed there changes nothing here."""
        self._edited(turn.text)

    async def _copy(self, text: str) -> None:
        from kvchat.ui.terminal.system_clipboard import OSC_52, copy_by_tool

        route = await asyncio.to_thread(copy_by_tool, text)
        if route is None:
            # Nothing says whether a terminal has taken it.
            self._screen.app.copy_to_clipboard(text)
            route = OSC_52
        self._screen.tell(f"Copied {plural(len(text), 'character')} ({route})")

    def _edited(self, text: str) -> str | None:
        from kvchat.ui.terminal.editor import edited

        try:
            return edited(text, self._screen.app.suspend(), os.environ)
        except UsageError as error:
            self._screen.warn(str(error))
        except SuspendNotSupported:
            self._screen.warn("this terminal cannot be handed to an editor")
        return None


def code_of(text: str) -> str:
    """Return the fenced code of a Markdown text, blocks separated by an empty line."""
    from kvchat.session.render.markdown_parser import answer_parser  # not before the first frame

    tokens = answer_parser().parse(text)
    return "\n".join(token.content for token in tokens if token.type in ("fence", "code_block"))
