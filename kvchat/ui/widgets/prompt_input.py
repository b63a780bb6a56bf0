"""The prompt: many lines, history, slash commands that only typing can run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import TextArea

from kvchat.text.attached_files import cleaned, is_long, looks_binary, tidy
from kvchat.ui.commands import SlashCommand, completions
from kvchat.ui.key_names import keys_of
from kvchat.ui.state.completion import Argument, PathChoice, Source, arguments, path_at_end, path_choices

Choice = SlashCommand | PathChoice | Argument
Line = tuple[str, bool]
"""A line of the history, and whether it is a command."""

_NEWLINE_KEYS = frozenset({"ctrl+j", "shift+enter", "alt+enter"})
_SEND_KEYS = frozenset({"enter"})


class HistoryWalk:
    """A walk through the history, from the line that is being typed; what is changed on it stays changed.

    Args:
        history: what was sent before, oldest first.
    """

    def __init__(self, history: Sequence[Line]) -> None:
        self._found: tuple[Line, ...] = (*history, ("", False))
        self._lines = list(self._found)
        self._at = len(history)

    def go(self, step: int, here: Line) -> Line | None:
        """Return the line a step away, which at the oldest is the same; None behind the newest.

        Args:
            here: the line as it has become, which the walk comes back to.
        """
        at = max(0, self._at + step)
        if at == len(self._lines):
            return None
        self._lines[self._at], self._at = here, at
        return self._lines[at]

    @property
    def origin(self) -> Line:
        """The line where it is now, as it was found."""
        return self._found[self._at]

    def changed_elsewhere(self) -> tuple[Line, ...]:
        """Return what was typed on the walk, but for the line where it is now."""
        changed = [at for at, line in enumerate(self._lines) if line != self._found[at] and line[0].strip()]
        return tuple(self._lines[at] for at in changed if at != self._at)


class Prompt(TextArea):
    """Where the person types.

    A line is a command only if its `/` was the first character typed; a paste is always text.

    Attributes:
        sources: what the arguments of commands may become, by their names.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+underscore", "undo", "Undo", show=False),
        Binding("ctrl+c", "interrupt", "Copy or stop", show=False),
        Binding("pageup", "screen.page(-1)", "Scroll up", show=False),
        Binding("pagedown", "screen.page(1)", "Scroll down", show=False),
    ]

    @dataclass
    class Submitted(Message):
        """Enter was pressed, at `pressed_s`. `is_command`: the text is a command that was typed; `pasted`:
        what was pasted since the last message; `stored`: messages of earlier that were put in since.
        """

        text: str
        is_command: bool
        pressed_s: float
        pasted: tuple[str, ...]
        stored: tuple[str, ...]

    class Interrupted(Message):
        """Ctrl+c was pressed with nothing selected."""

    @dataclass
    class Completing(Message):
        """What a line may become changed; `chosen` is the highlighted one's position."""

        line: str
        candidates: tuple[Choice, ...]
        chosen: int

    @dataclass
    class Attached(Message):
        """A file is to go with the message."""

        path: str

    @dataclass
    class PastedMuch(Message):
        """A text was pasted that is too long for a prompt."""

        text: str

    class PastedBinary(Message):
        """Something was pasted that is no text; it was not taken."""

    class ErasedNothing(Message):
        """Backspace was pressed in an empty prompt."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id, soft_wrap=True, show_line_numbers=False, compact=True)
        self.highlight_cursor_line = False
        self.sources: Mapping[str, Source] = {}
        self._has_typed_slash = False
        self._candidates: tuple[Choice, ...] = ()
        self._chosen = 0
        self._history: list[Line] = []
        self._walk: HistoryWalk | None = None
        self._put_aside: list[str] = []
        self._pasted: list[str] = []
        self._stored: list[str] = []
        self._num_earlier = 0
        self._has_moved = False
        self._looked_at = ("", False)
        self._send_keys, self._newline_keys = _SEND_KEYS, _NEWLINE_KEYS

    def use_keys(self, own_keys: Mapping[str, str]) -> None:
        self._send_keys = frozenset(keys_of(own_keys, "send")) or _SEND_KEYS
        self._newline_keys = frozenset(keys_of(own_keys, "newline")) or _NEWLINE_KEYS

    @property
    def is_completing(self) -> bool:
        return bool(self._candidates)

    def set_text(self, text: str) -> None:
        """Replace the text by `text`, which is no command, and go to its end."""
        self._has_typed_slash = False
        self._replace_all(text)

    def write(self, text: str) -> None:
        """Let the person go on with a text; what stood here is a key up away."""
        self.keep_draft(text)
        self.set_text(text)
        self.focus()

    def restore_command(self, line: str) -> None:
        """Put a command line that could not be run here again."""
        self.keep_draft(line)
        self.set_text(line)
        self.mark_typed_slash()

    @property
    def drafts(self) -> tuple[str, ...]:
        """What was typed and not sent, oldest first: no command, and nothing sent as it stands."""
        here, walk = (self.text, self._has_typed_slash), self._walk
        lines = [(text, False) for text in self._put_aside]
        if walk is not None:
            lines += walk.changed_elsewhere()
        if walk is None or here != walk.origin:
            lines.append(here)
        return tuple(dict.fromkeys(text for text, is_command in lines if text.strip() and not is_command))

    def take_hidden_drafts(self) -> list[str]:
        """Return the drafts that are not shown, and leave them to the history; an old message goes too."""
        if self._walk is not None and self._walk.origin == (self.text, self._has_typed_slash):
            self.set_text("")
        hidden = [draft for draft in self.drafts if draft != self.text]
        self._end_walk()
        self._put_aside = []
        return hidden

    def give_back(self, text: str) -> None:
        """Put a draft before what was typed since; where that is a command, the draft is a key up away."""
        if self._has_typed_slash:
            self._put_aside.append(text)
            self._history.append((text, False))
        else:
            self.set_text(f"{text}\n{self.text}" if self.text else text)

    @property
    def messages(self) -> tuple[str, ...]:
        return tuple(text for text, is_command in self._history if not is_command)

    def begin_history(self, messages: Sequence[str]) -> None:
        """Put messages of earlier runs before those of this one."""
        self._history[:0] = [(text, False) for text in messages]
        self._num_earlier = len(messages)

    def note_stored(self, text: str) -> None:
        """Remember that what was put into the prompt is of a message that is stored: nobody has typed it."""
        self._stored.append(text)

    def note_found(self, message: str) -> None:
        """Remember the same of a line of the history, unless it was typed in this run."""
        earlier, typed = self._history[: self._num_earlier], self._history[self._num_earlier :]
        if (message, False) in earlier and (message, False) not in typed:
            self.note_stored(message)

    def remember(self, text: str, *, is_command: bool) -> None:
        """Add a line to the history of this prompt, behind what was changed on the way to it."""
        self._end_walk()
        if self._history[-1:] != [(text, is_command)]:
            self._history.append((text, is_command))

    def _end_walk(self) -> None:
        walk, self._walk = self._walk, None
        for line in walk.changed_elsewhere() if walk is not None else ():
            if self._history[-1:] != [line]:
                self._history.append(line)

    def keep_draft(self, successor: str) -> None:
        """Remember what is half typed, before `successor` takes its place."""
        if self.text.strip() and self.text != successor:
            self._put_aside = list(self.drafts)
            self.remember(self.text, is_command=self._has_typed_slash)

    def mark_typed_slash(self) -> None:
        """Treat the text, which begins with `/`, as a command being typed."""
        self._has_typed_slash = True
        self.complete()

    def stop_completing(self) -> None:
        """Close the list of commands until the text changes."""
        self._offer((), 0)

    async def on_key(self, event: events.Key) -> None:
        self._catch_up()
        if event.key in self._newline_keys or (event.key == "enter" and "enter" not in self._send_keys):
            self._take(event)
            self.insert("\n")
        elif event.key in self._send_keys:
            self._take(event)
            self._submit(event.time)
        elif event.key == "backspace" and not self.text:
            self.post_message(self.ErasedNothing())
        elif self._moves_choice(event.key) or self._walks_history(event.key):
            self._take(event)
        elif event.key in ("tab", "shift+tab"):
            self._take(event)  # the focus stays: what is typed next belongs here
            self.complete()
        elif event.character is not None and event.is_printable:
            if event.character == "/" and not self.text:
                self._has_typed_slash = True
        elif (action := self._own_action(event.key)) is not None:
            # Now: left to Textual, it would run when keys that were typed behind it have been taken already.
            self._take(event)
            await self.run_action(action)

    def _own_action(self, key: str) -> str | None:
        """Return what a key does to the text, None if it does something elsewhere."""
        bindings = self._bindings.key_to_bindings.get(key, ())
        return next((binding.action for binding in bindings if "." not in binding.action), None)

    async def on_paste(self, event: events.Paste) -> None:
        # A command's name must be typed; only its argument may be pasted.
        before = self.get_text_range(self.document.start, min(self.selection))
        if not any(one.isspace() for one in before):
            self._has_typed_slash = False
        event.prevent_default()
        event.stop()
        if looks_binary(event.text):
            self.post_message(self.PastedBinary())
            return
        text = tidy(event.text) if is_long(event.text) else cleaned(event.text)
        if is_long(text):
            self.post_message(self.PastedMuch(text))
        elif result := self.replace(text, *self.selection, maintain_selection_offset=False):
            self._pasted.append(text)
            self.move_cursor(result.end_location)

    def on_resize(self) -> None:
        self.call_after_refresh(self.scroll_cursor_visible)

    def on_text_area_changed(self) -> None:
        self._catch_up()

    def action_interrupt(self) -> None:
        """Copy the selection; without one, stop the answer."""
        if self.selected_text:
            self.action_copy()
        else:
            self.post_message(self.Interrupted())

    def _replace_all(self, text: str) -> None:
        self.load_text(text)
        self.move_cursor(self.document.end)

    def _take(self, event: events.Key) -> None:
        event.stop()
        event.prevent_default()

    def _submit(self, pressed_s: float) -> None:
        if self.is_completing and self._is_unfinished():
            chosen = self._accept_choice()
            if not isinstance(chosen, Argument) or not chosen.is_whole:
                return
        text = self.text.rstrip()
        if not text.strip():
            return
        is_command = self._has_typed_slash and not text.startswith("//")
        # `//x` was typed to say `/x`.
        sent = text[1:] if self._has_typed_slash and not is_command else text
        taken = {self.text, text, self._walk.origin[0] if self._walk is not None else text}
        if self._walk is not None:
            self.note_found(self._walk.origin[0])
        self._put_aside = [draft for draft in self.drafts if draft not in taken]
        self.remember(text, is_command=is_command)
        self.set_text("")
        pasted, self._pasted = tuple(self._pasted), []
        stored, self._stored = tuple(self._stored), []
        self.post_message(self.Submitted(sent, is_command, pressed_s, pasted, stored))

    def _is_unfinished(self) -> bool:
        """Return whether enter takes the choice: a file's only if it is all that is said, or was moved to; an
        argument's only if it was, or is the only one.
        """
        chosen = self._candidates[self._chosen]
        if isinstance(chosen, PathChoice):
            return self._has_typed_slash or self._has_moved or self.text == f"@{path_at_end(self.text)}"
        if isinstance(chosen, Argument):
            typed = self.text.partition(" ")[2]
            meant = [one for one in self._candidates if one.usage.casefold().startswith(typed.casefold())]
            is_only = chosen.usage != typed and len(meant or self._candidates) == 1
            return self._has_moved or (bool(typed) and is_only)
        return self.text[1:] not in chosen.names

    def _moves_choice(self, key: str) -> bool:
        """Handle a key that belongs to the list of commands; return whether it did."""
        if not self.is_completing:
            return False
        if key in ("up", "down"):
            step = 1 if key == "down" else -1
            self._has_moved = True
            self._offer(self._candidates, (self._chosen + step) % len(self._candidates))
        elif key == "tab":
            self._accept_choice()
        return key in ("up", "down", "tab")

    def _accept_choice(self) -> Choice:
        chosen = self._candidates[self._chosen]
        if isinstance(chosen, PathChoice):
            self._accept_path(chosen)
            return chosen
        if isinstance(chosen, Argument):
            line = f"{self.text.partition(' ')[0]} {chosen.usage}{'' if chosen.is_whole else ' '}"
        else:
            line = f"/{chosen.name}{' ' if chosen.needs_argument else ''}"
        self.set_text(line)
        self._has_typed_slash = True
        return chosen

    def _accept_path(self, chosen: PathChoice) -> None:
        """Go into a directory; attach a file, whose path leaves the text."""
        typed = path_at_end(self.text) or ""
        is_command = self._has_typed_slash and self.text.startswith("/")
        before = self.text[: len(self.text) - len(typed)]
        if chosen.is_directory:
            self._replace_all(before + chosen.usage)
            self._has_typed_slash = is_command
            return
        self.set_text("" if is_command else before.removesuffix("@"))
        self.post_message(self.Attached(chosen.path))

    def _catch_up(self) -> None:
        """Look at a text that has changed, once. Keys typed fast come before the message that tells of it."""
        if (self.text, self._has_typed_slash) == self._looked_at:
            return
        if not self.text.startswith("/"):
            self._has_typed_slash = False
        if not self.text and self._walk is not None and self._walk.origin[0]:
            self._end_walk()  # a line of the history was erased: nothing behind it is meant to come back
        self.complete()

    def complete(self) -> None:
        self._looked_at = (self.text, self._has_typed_slash)
        self._has_moved = False
        if self._walk is not None and self._walk.origin == self._looked_at:
            self._offer((), 0)  # it was not typed: up and down walk on
            return
        found: tuple[Choice, ...] = ()
        if self._has_typed_slash:
            found = completions(self.text) or arguments(self.text, self.sources)
        if not found and self.cursor_location == self.document.end:
            path = path_at_end(self.text)
            is_typed = path is not None and (self._has_typed_slash or not self.text.startswith("/"))
            found = path_choices(path) if is_typed and path is not None else ()
        self._offer(found, 0)

    def _offer(self, candidates: tuple[Choice, ...], chosen: int) -> None:
        if (candidates, chosen) != (self._candidates, self._chosen):
            self._candidates, self._chosen = candidates, chosen
            self.post_message(self.Completing(self.text, candidates, chosen))

    def _walks_history(self, key: str) -> bool:
        """Handle up and down at the edges of the text; return whether another line was shown."""
        if key == "up" and self.cursor_at_first_line and self._history:
            self._walk = self._walk or HistoryWalk(self._history)
            step = -1
        elif key == "down" and self.cursor_at_last_line and self._walk is not None:
            step = 1
        else:
            return False
        line = self._walk.go(step, (self.text, self._has_typed_slash))
        if line is None:
            return False
        text, self._has_typed_slash = line
        self._replace_all(text)
        return True
