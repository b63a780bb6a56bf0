"""Command palette: kvchat's commands, most used first, and the stored sessions by title."""

from collections.abc import Iterator
from functools import partial

from textual.command import DiscoveryHit, Hit, Hits, Provider
from textual.content import Content
from textual.types import IgnoreReturnCallbackType

from kvchat.text.figures import plural
from kvchat.ui.commands import COMMANDS
from kvchat.ui.screens.chat import ChatScreen
from kvchat.ui.widgets.session_list import SessionList
from kvchat.ui.widgets.session_rows import title_of

_Entry = tuple[str, str, IgnoreReturnCallbackType]


class Palette(Provider):
    """Finds commands and sessions by their names; a session that is chosen is opened."""

    async def discover(self) -> Hits:
        for name, summary, run in self._entries():
            yield DiscoveryHit(Content(name), run, name, summary)

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for name, summary, run in self._entries():
            if score := matcher.match(name):
                yield Hit(score, Content(name), run, name, summary)

    def _entries(self) -> Iterator[_Entry]:
        """Return names and summaries, in which nothing is markup, and what choosing each does."""
        window = self.screen
        assert isinstance(window, ChatScreen)
        for command in COMMANDS:
            yield command.usage, command.help, partial(window.run_command, command)
        for session, branches in window.sessions.sessions.entries:
            several = f" · {plural(len(branches), 'branch', 'branches')}" if branches else ""
            opened = SessionList.Opened(session.id, None)
            yield title_of(session), f"open this session{several}", partial(window.post_message, opened)
