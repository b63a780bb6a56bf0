"""The manual page, made of the very table of commands that is run: `kvchat man | man -l -`."""

from collections.abc import Iterator
from typing import Any

import typer

from kvchat.app.config import KEYS
from kvchat.cli.output.streams import Output
from kvchat.cli.parser.command_table import COMMANDS, Command
from kvchat.cli.parser.options import PlaceOptions

_EXIT_CODES = (
    ("0", "ok"),
    ("1", "failed while running: disk full, directory that cannot be written"),
    ("2", "usage"),
    ("3", "configuration, or a key that does not open"),
    ("4", "model missing or unloadable"),
    ("5", "session not found or ambiguous"),
    ("6", "out of memory or context"),
    ("7", "a file or KV that is not what it says"),
    ("8", "cut off by its length, with --fail-on-length"),
    ("130, 141, 143", "Ctrl-C, closed pipe, terminated"),
)


def show_manual(options: PlaceOptions) -> None:
    """Print the manual page in the language of man(7)."""
    Output().write("\n".join(manual_lines()) + "\n")


def manual_lines() -> Iterator[str]:
    """Yield the lines of the manual page."""
    from kvchat.cli.parser.command_line import app

    root = typer.main.get_command(app)
    yield '.TH KVCHAT 1 "" kvchat "User Commands"'
    yield ".SH NAME"
    yield r"kvchat \- chat in the terminal with a local model whose KV cache you keep"
    yield ".SH SYNOPSIS"
    yield r"\fBkvchat\fR [\fISESSION\fR] | \fICOMMAND\fR [\fIARGUMENTS\fR]..."
    yield ".SH COMMANDS"
    for command in COMMANDS:
        yield from _command_lines(command, _below(root, command.words))
    yield ".SH ENVIRONMENT"
    for name, key in KEYS.items():
        yield from (".TP", rf"\fB{_escaped(key.variable)}\fR", f"sets {_escaped(name)}")
    yield ".SH EXIT STATUS"
    for code, meaning in _EXIT_CODES:
        yield from (".TP", rf"\fB{code}\fR", meaning)


def _command_lines(command: Command, parsed: Any) -> Iterator[str]:
    yield f".SS {_escaped('kvchat ' + command.words)}"
    yield _escaped(command.help)
    if command.examples:
        yield from (".PP", ".nf", *(_escaped("    " + line) for line in command.examples), ".fi")
    for parameter in parsed.made.params:
        spelling = ", ".join(parameter.opts) if parameter.param_type_name == "option" else ""
        value = "" if getattr(parameter, "is_flag", False) else parameter.metavar or parameter.name.upper()
        yield ".TP"
        yield rf"\fB{_escaped(spelling)}\fR \fI{_escaped(value)}\fR"
        yield _escaped(getattr(parameter, "help", None) or "")


def _below(root: Any, words: str) -> Any:
    for word in words.split():
        root = root.commands[word]
    return root


def _escaped(text: str) -> str:
    """Return text in which nothing is a command of the formatter."""
    text = text.replace("\\", r"\e").replace("-", r"\-")
    return r"\&" + text if text.startswith((".", "'")) else text
