"""Slash commands: their names, their help, and which line is one."""

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SlashCommand:
    """A slash command. `argument` is how its argument is shown in help, empty where it takes none;
    `takes_lines`: that may have several lines. `is_for_lines`: it may be meant for a line in the list.
    """

    name: str
    summary: str
    argument: str = ""
    takes_lines: bool = False
    is_for_lines: bool = False
    aliases: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return self.name, *self.aliases

    @property
    def usage(self) -> str:
        return f"/{self.name} {self.argument}".rstrip()

    @property
    def help(self) -> str:
        """What it does, and what it is called too."""
        others = ", ".join(f"/{name}" for name in self.aliases)
        return f"{self.summary} (also {others})" if others else self.summary

    @property
    def needs_argument(self) -> bool:
        return self.argument.isupper()


COMMANDS = (
    SlashCommand(
        name="new",
        argument="[title]",
        summary="start a conversation; the one on screen stays",
        aliases=("clear",),
    ),
    SlashCommand(name="switch", argument="[name]", summary="open another conversation or branch"),
    SlashCommand(name="fork", argument="[name]", summary="go on from here on a branch of its own"),
    SlashCommand(name="retry", argument="[n]", summary="answer again on a new branch; n answers to compare"),
    SlashCommand(name="edit", argument="[n]", summary="change your nth message from the end, on a branch"),
    SlashCommand(
        name="undo", argument="[n]", summary="take back your last n messages; they stay on their branch"
    ),
    SlashCommand(name="search", argument="[words]", summary="find sessions by title, and messages by words"),
    SlashCommand(name="tree", summary="this conversation's branches: open, compare, delete"),
    SlashCommand(name="why", argument="[n]", summary="explain what the nth answer from the end reused"),
    SlashCommand(name="model", argument="[name]", summary="choose or download another model; what fits"),
    SlashCommand(
        name="copy", argument="[n|code]", summary="copy the nth answer from the end, or the last code"
    ),
    SlashCommand(
        name="export",
        argument="[file]",
        summary="write it to a file: .md .html .json .kvchat",
        is_for_lines=True,
    ),
    SlashCommand(name="help", summary="keys and commands"),
    SlashCommand(name="set", argument="[name value]", summary="see and change settings, in your own file"),
    SlashCommand(name="theme", argument="NAME", summary="other colours; ansi-dark has the terminal's own"),
    SlashCommand(
        name="screen", argument="[file]", summary="write what the screen shows to a file: .svg .txt"
    ),
    SlashCommand(
        name="cache", argument="[what]", summary="the cache panel; what: layers, blocks, freeze, format NAME"
    ),
    SlashCommand(
        name="attach", argument="FILE", summary="let a text file go with your message, as @file does"
    ),
    SlashCommand(name="detach", summary="remove what was attached last"),
    SlashCommand(name="continue", summary="go on with an interrupted answer"),
    SlashCommand(name="stop", summary="stop the answer"),
    SlashCommand(
        name="aside",
        argument="[text]",
        summary="ask on a fork that is deleted afterwards; again: go back",
        takes_lines=True,
    ),
    SlashCommand(name="temp", summary="start one that is deleted when you leave it; again: keep it"),
    SlashCommand(name="drop", argument="[n]", summary="remove your nth message from the end"),
    SlashCommand(name="summary", summary="sum it up on a branch; there again: begin anew with the summary"),
    SlashCommand(name="tokens", argument="[n]", summary="open the nth answer from the end as tokens"),
    SlashCommand(
        name="system",
        argument="[text]",
        summary="show the system prompt, or start anew with another",
        takes_lines=True,
    ),
    SlashCommand(name="title", argument="TITLE", summary="rename the conversation", is_for_lines=True),
    SlashCommand(
        name="pin",
        summary="keep the conversation on top of the list and its KV on disk, or no longer",
        is_for_lines=True,
    ),
    SlashCommand(
        name="delete", summary="delete the conversation, which frees memory and disk", is_for_lines=True
    ),
    SlashCommand(name="history", summary="find an earlier message"),
    SlashCommand(name="notices", summary="show every notice of this run"),
    SlashCommand(name="open", argument="[n]", summary="open the nth answer from the end in $EDITOR"),
    SlashCommand(name="gauge", argument="[format]", summary="measure what smaller cache formats lose here"),
    SlashCommand(name="answer", summary="show the waiting question"),
    SlashCommand(name="reload", summary="load the engine again"),
    SlashCommand(name="quit", summary="quit; sessions are stored", aliases=("bye", "exit")),
)
"""Most used first, as they are offered."""
_BY_NAME = {name: command for command in COMMANDS for name in command.names}


def find_command(name: str) -> SlashCommand | None:
    return _BY_NAME.get(name.lower())


def split_command(line: str) -> tuple[str, str]:
    """Return the name and the argument of a text that begins with `/`."""
    name = re.split(r"\s", line[1:], maxsplit=1)[0]
    return name, line[1 + len(name) :].strip()


def completions(line: str) -> tuple[SlashCommand, ...]:
    """Return the commands that a line may become: those whose name begins with what is typed.

    A line with an argument, or one that begins with `//`, completes to nothing.
    """
    if not line.startswith("/") or line.startswith("//") or " " in line or "\n" in line:
        return ()
    typed = line[1:].lower()
    return tuple(command for command in COMMANDS if any(name.startswith(typed) for name in command.names))


def nearest_command(name: str) -> SlashCommand | None:
    """Return the command that was probably meant by an unknown name."""
    candidates = completions(f"/{name[:2]}")
    return candidates[0] if candidates else None


def message_text(line: str, *, is_typed_slash: bool) -> str:
    """Return what is sent for a line that is no command: `//x` was typed to say `/x`."""
    return line[1:] if is_typed_slash and line.startswith("//") else line
