"""Slash commands: their names, their help, and which line is one."""

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SlashCommand:
    """A slash command. `argument` is how its argument is shown in help, empty where it takes none;
    `takes_lines`: that may have several lines. `is_for_lines`: it may be meant for a line in the list.
    """

    name: str
    argument: str
    summary: str
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
        others = ", ".join(f"/{name}" for name in self.aliases)
        return f"{self.summary} (also {others})" if others else self.summary

    @property
    def needs_argument(self) -> bool:
        return self.argument.isupper()


COMMANDS = (
    SlashCommand("new", "[title]", "start a conversation; the one on screen stays", aliases=("clear",)),
    SlashCommand("switch", "[name]", "open another conversation or branch"),
    SlashCommand("fork", "[name]", "go on from here on a branch of its own"),
    SlashCommand("retry", "[n]", "answer again on a new branch; n answers to compare"),
    SlashCommand("edit", "[n]", "change your nth message from the end, on a branch"),
    SlashCommand("undo", "[n]", "take back your last n messages; they stay on their branch"),
    SlashCommand("search", "[words]", "find sessions by title, and messages by words"),
    SlashCommand("tree", "", "this conversation's branches: open, compare, delete"),
    SlashCommand("why", "[n]", "explain what the nth answer from the end reused"),
    SlashCommand("model", "[name]", "choose or download another model; what fits"),
    SlashCommand("copy", "[n|code]", "copy the nth answer from the end, or the last code"),
    SlashCommand("export", "[file]", "write it to a file: .md .html .json .kvchat", is_for_lines=True),
    SlashCommand("help", "", "keys and commands"),
    SlashCommand("set", "[name value]", "see and change settings, in your own file"),
    SlashCommand("theme", "NAME", "other colours; ansi-dark has the terminal's own"),
    SlashCommand("screen", "[file]", "write what the screen shows to a file: .svg .txt"),
    SlashCommand("cache", "[what]", "the cache panel; what: layers, blocks, freeze, format NAME"),
    SlashCommand("attach", "FILE", "let a text file go with your message, as @file does"),
    SlashCommand("detach", "", "remove what was attached last"),
    SlashCommand("continue", "", "go on with an interrupted answer"),
    SlashCommand("stop", "", "stop the answer"),
    SlashCommand(
        "aside", "[text]", "ask on a fork that is deleted afterwards; again: go back", takes_lines=True
    ),
    SlashCommand("temp", "", "start one that is deleted when you leave it; again: keep it"),
    SlashCommand("drop", "[n]", "remove your nth message from the end"),
    SlashCommand("summary", "", "sum it up on a branch; there again: begin anew with the summary"),
    SlashCommand("tokens", "[n]", "open the nth answer from the end as tokens"),
    SlashCommand("system", "[text]", "show the system prompt, or start anew with another", takes_lines=True),
    SlashCommand("title", "TITLE", "rename the conversation", is_for_lines=True),
    SlashCommand(
        "pin",
        "",
        "keep the conversation on top of the list and its KV on disk, or no longer",
        is_for_lines=True,
    ),
    SlashCommand("delete", "", "delete the conversation, which frees memory and disk", is_for_lines=True),
    SlashCommand("history", "", "find an earlier message"),
    SlashCommand("notices", "", "show every notice of this run"),
    SlashCommand("open", "[n]", "open the nth answer from the end in $EDITOR"),
    SlashCommand("gauge", "[format]", "measure what smaller cache formats lose here"),
    SlashCommand("answer", "", "show the waiting question"),
    SlashCommand("reload", "", "load the engine again"),
    SlashCommand("quit", "", "quit; sessions are stored", aliases=("bye", "exit")),
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
