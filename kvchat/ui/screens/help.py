"""Keys and commands on one page."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widgets import Static

from kvchat.ui.commands import COMMANDS
from kvchat.ui.screens.dialog import Dialog

KEYS = (
    ("enter", "send", "send"),
    ("ctrl+j, shift+enter", "new line", "newline"),
    ("esc", "back to the prompt; again: stop the answer and restore queued text", "stop"),
    ("@file", "attach a file: tab at once; backspace removes it", ""),
    ("ctrl+r", "find an earlier message", "history"),
    ("up, down", "earlier messages, from the edge of the prompt", ""),
    ("ctrl+g", "write the message in $EDITOR", "editor"),
    ("f6", "walk through the messages; enter: actions and costs", "messages"),
    ("pageup, pagedown", "scroll the conversation", ""),
    ("f1", "this page", "help"),
    ("f2", "sessions: enter opens, left and right fold", "sessions"),
    ("delete, ctrl+r", "there: delete the chosen one, rename it", ""),
    ("ctrl+k, ctrl+e", "there: pin it, write it to a file", ""),
    ("ctrl+f", "find sessions by title and messages by words", "find"),
    ("f3", "cache panel", "cache"),
    ("f4", "every layer, or alike layers as one row", "layers"),
    ("f7", "every block: whose, name, where, when last used", "inspect"),
    ("l, e, w", "there: layers of one session or all, what moved and why, write it to a file", ""),
    ("f8", "freeze the cache panel, or follow again", "freeze"),
    ("f9", "answer a question that waited because you were typing", "answer"),
    ("f10", "every notice of this run; dismisses those above the prompt", "notices"),
    ("f5", "go on with an interrupted answer", "go_on"),
    ("ctrl+n", "new conversation", "new"),
    ("ctrl+t", "show or fold reasoning", "reasoning"),
    ("ctrl+p", "commands, most used first, and sessions by title", "palette"),
    ("ctrl+z", "suspend", "suspend"),
    ("ctrl+l", "paint the window again", "redraw"),
    ("ctrl+s", "write what the window shows to a file, dialogs too", "screen"),
    ("ctrl+q", "quit; sessions are stored", "quit"),
)
"""Keys, what they do, and the ids by which a person may change them."""
_LEGEND = (
    ("▒ shared", "blocks that several branches hold"),
    ("▓ own", "blocks that one branch holds; deleting it frees them"),
    ("░ cached", "blocks that no branch holds: reused until their room is needed"),
    ("· free", "empty blocks"),
    ("320K+64K", "bytes of a layer that branches hold, and those that are cached"),
    ("window 256, w256", "what a layer sees: the last 256 tokens; c: of its chunk"),
    ("▸  ●", "before a branch: it is being answered, it is on screen"),
    ("› #7", "a branch without a name: a file that is read ahead, an answer asked for elsewhere"),
    ("disk ▁▃█ ≤ 64M", "bytes of a tier over the last two minutes, and their highest"),
    ("on screen, cached", "the conversation on screen: its blocks are there, and nothing is sent yet"),
    ("▼ ▲", "bytes have just gone down to a tier, come up from it"),
)


_MARKS = (
    ("●  ▸  ○", "on screen, being answered behind it, on the device"),
    ("◐  ◌  ·", "open but moved off the device, KV on disk, words alone; a branch without a mark is stored"),
    ("≈", "with an answer that was sampled on approximate KV"),
    ("▸2", "its branches, folded into one line: right shows them, left folds them"),
    ("★", "pinned: stays on top, its KV on disk"),
    ("▒1.2M  4.0M", "bytes shared with others, bytes of its own: on the device, else on disk"),
    ("?", "KV that was imported and is not all verified; it serves this session alone"),
    ("✓", "KV that was verified: all of it was computed again and agrees"),
    ("!", "KV of which some was found wrong; that is set aside and computed again"),
)


class HelpScreen(Dialog[None]):
    BINDINGS: ClassVar[list[BindingType]] = [Binding("f1,q,enter", "dismiss", "Close")]

    def __init__(self, own_keys: Mapping[str, str]) -> None:
        super().__init__()
        self._own_keys = own_keys

    def compose(self) -> ComposeResult:
        keys = [(self._own_keys.get(name, key), meaning) for key, meaning, name in KEYS]
        commands = [(command.usage, command.help) for command in COMMANDS]
        with VerticalScroll(classes="dialog help"):
            yield Static(_table("keys (/set changes them: keys.help, keys.find ...)", keys))
            yield Static(_table("commands (// sends a line that begins with /)", commands))
            yield Static(_table("sessions", _MARKS))
            yield Static(_table("cache panel", _LEGEND))
            yield Static("esc closes", classes="dialog-keys", markup=False)


def _table(title: str, rows: Sequence[tuple[str, str]]) -> Table:
    heading = Text(title, "bold")
    table = Table(title=heading, title_justify="left", box=None, show_header=False, padding=(0, 1))
    for row in rows:
        table.add_row(*map(Text, row))
    return table
