"""Which words mean which command: all of them, as Typer takes them."""

from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from typing import Annotated, Any

import typer
from typer._click.shell_completion import CompletionItem
from typer.core import TyperGroup
from typer.exceptions import TyperException

from kvchat.cli.coercion import HELP_NAMES, ease
from kvchat.cli.commands import COMMANDS, DEFAULT_VERBS, FAMILIES, examples_text, help_text
from kvchat.cli.completion import complete_session
from kvchat.cli.options import takes
from kvchat.config import did_you_mean
from kvchat.errors import UsageError

_EXAMPLES = (
    "kvchat    # open the terminal interface",
    "kvchat demo    # ... on a session",
    "kvchat ask 'What is a KV cache?'",
    "cat notes.txt | kvchat ask 'What is the gate code?'",
)
_HELP = f"""Chat in the terminal with a local model whose memory, the KV cache, you keep.

`kvchat [SESSION]` opens the terminal interface: it is `kvchat resume [SESSION]` and takes its options.
`kvchat ask` answers one question. `kvchat COMMAND --help` says more.{examples_text(_EXAMPLES)}
"""


class _Root(TyperGroup):
    """The command itself; a first word may also be a session's."""

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        offered = super().shell_complete(ctx, incomplete)
        if incomplete.startswith("-"):
            return offered
        sessions = complete_session(ctx, incomplete)
        return offered + [CompletionItem(word, help=meaning) for word, meaning in sessions]


app = typer.Typer(
    name="kvchat",
    cls=_Root,
    help=_HELP,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    subcommand_metavar="[SESSION] | COMMAND [ARGS]...",
    context_settings={"help_option_names": list(HELP_NAMES)},
)


def _command(home: str, options_type: type, help_text: str) -> Callable[..., int | None]:
    """Return a command whose module is imported when it runs, so that `--help` stays fast."""
    module, _, function = home.rpartition(".")

    def run(values: Any) -> int | None:
        result: int | None = getattr(import_module(module), function)(values)
        return result

    run.__doc__ = help_text
    return takes(options_type, run)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"kvchat {version('kvchat')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    pass


def _add_commands() -> None:
    families = {name: typer.Typer(rich_markup_mode=None, help=words) for name, words in FAMILIES.items()}
    for command in COMMANDS:
        words = help_text(command)
        parent = families[command.family] if command.family else app
        parent.command(command.name, help=words)(_command(f"kvchat.cli.{command.home}", command.takes, words))
    for name, family in families.items():
        app.add_typer(family, name=name)


_add_commands()


class Misused(Exception):
    """No command takes these words.

    Attributes:
        exit_code: of the process.
    """

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def call(words: Sequence[str]) -> int:
    """Run the command that is meant and return its exit code.

    Raises:
        Misused: no command takes these words.
        KvchatError: what the command raises.
        KeyboardInterrupt: it was given up.
    """
    try:
        command = commands()
        arranged = arrange(words, command)
        ease(command, arranged)
        result = command.main(args=arranged, prog_name="kvchat", standalone_mode=False)
    except TyperException as error:
        raise Misused(error.format_message() or "see `kvchat --help`", error.exit_code) from error
    except typer.Abort:
        raise KeyboardInterrupt from None
    return result if isinstance(result, int) else 0


@cache
def commands() -> Any:
    """Return all commands as Typer parses them; making them takes as long as reading a short list."""
    return typer.main.get_command(app)


def arrange(words: Sequence[str], command: Any) -> list[str]:
    """Return a command line with its command first: `-q demo` becomes `resume -q demo`.

    Raises:
        UsageError: a family has no such command.

    Whatever is no command is a session, so that `kvchat demo` opens it; `resume` reaches one whose name is a
    command. Options may stand anywhere.
    """
    words = list(words)
    takes_value = _options_with_values(command)
    place = _first_word(words, takes_value)
    if place is None or words[place] not in command.commands:
        is_root = bool(words) and words[0] in _own_options(command)
        return words if is_root else ["resume", *words]
    name = words.pop(place)
    if not hasattr(command.commands[name], "commands"):
        return [name, *words]
    verbs = command.commands[name].commands
    verb = _first_word(words, takes_value)
    if verb is None:
        wants_help = "-h" in words or "--help" in words
        return [name, *words] if wants_help else [name, DEFAULT_VERBS[name], *words]
    said = words.pop(verb)
    if said == "ls" and "ls" not in verbs and "list" in verbs:
        said = "list"
    if said not in verbs:
        hint = did_you_mean(said, verbs) or f"; there are {', '.join(verbs)}"
        raise UsageError(f"`kvchat {name}` has no command '{said}'{hint}")
    return [name, said, *words]


def _own_options(command: Any) -> set[str]:
    return {"-h", "--help"}.union(*(one.opts for one in command.params))


def _first_word(words: Sequence[str], takes_value: set[str]) -> int | None:
    """Return the place of the first word that is neither an option nor an option's value."""
    skip = False
    for place, word in enumerate(words):
        if skip:
            skip = False
        elif word == "--":
            return None
        elif word.startswith("-") and word != "-":
            skip = word in takes_value
        else:
            return place
    return None


def _options_with_values(command: Any) -> set[str]:
    """Return every spelling of every option that is followed by a value, over all commands."""
    below = getattr(command, "commands", {}).values()
    own = {
        name
        for parameter in command.params
        if parameter.param_type_name == "option" and not parameter.is_flag
        for name in parameter.opts
    }
    return own.union(*map(_options_with_values, below))
