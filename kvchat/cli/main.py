"""The command `kvchat`: which words mean which command, and how a run ends."""

import gc
import os
import signal
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from threading import enumerate as enumerate_threads
from threading import main_thread
from typing import Annotated, Any

import typer
from typer._click.shell_completion import CompletionItem
from typer.core import TyperGroup
from typer.exceptions import TyperException

from kvchat.cli.coercion import HELP_NAMES, ease
from kvchat.cli.commands import COMMANDS, DEFAULT_VERBS, FAMILIES, examples_text, help_text
from kvchat.cli.completion import complete_session
from kvchat.cli.options import takes
from kvchat.cli.standard_streams import CLOSED_PIPE, complain, flushed, occupy, soften
from kvchat.config import did_you_mean
from kvchat.errors import KvchatError, OutOfMemory, StorageError, UsageError

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


_MOST_TOLD, _TOLD_END = 2000, 900
_NEW_OBJECTS_UNTIL_COLLECTION = 50_000
"""What importing makes stays: looking through it over and over again took an eighth of the time to begin."""


def main() -> None:
    """Run the command line of this process and end it."""
    gc.set_threshold(_NEW_OBJECTS_UNTIL_COLLECTION)
    occupy()
    soften()
    code = flushed(run(sys.argv[1:]))
    # A model that is still being loaded: native code in a thread does not survive the interpreter's end.
    is_loading = any(thread is not main_thread() and thread.daemon for thread in enumerate_threads())
    # Everything is stored and closed, and taking torch's modules apart takes a second of its own.
    if is_loading or "torch" in sys.modules:
        import logging

        logging.shutdown()
        os._exit(code)
    sys.exit(code)


def run(words: Sequence[str]) -> int:
    """Run a command line and return its exit code; a failure is one message on standard error."""
    try:
        command = typer.main.get_command(app)
        arranged = arrange(words, command)
        ease(command, arranged)
        result = command.main(args=arranged, prog_name="kvchat", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except TyperException as error:
        return _fail(words, error.format_message() or "see `kvchat --help`", error.exit_code)
    except KvchatError as error:
        return _fail(words, error, error.exit_code)
    except MemoryError:
        return _fail(words, OutOfMemory("out of memory; choose a smaller --kv-device-bytes or model"), 6)
    except (typer.Abort, KeyboardInterrupt):
        return _end_json(words, "interrupted", 128 + signal.SIGINT)
    except Exception as error:
        return _fail_unexpectedly(words, error)


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


def _fail(words: Sequence[str], error: KvchatError | str, exit_code: int) -> int:
    """Say what went wrong on standard error, and to whoever reads JSON on standard output too."""
    from kvchat.session.plain_text import clean_text

    complain(f"kvchat: {_short(clean_text(str(error)))}")  # it may name what an import brought
    return _end_json(words, error, exit_code)


def _short(message: str) -> str:
    """Return a message of which a person sees both ends, whatever was typed: what to do is at the end."""
    return message if len(message) <= _MOST_TOLD else f"{message[:_TOLD_END]} … {message[-_TOLD_END:]}"


def _end_json(words: Sequence[str], error: KvchatError | str, exit_code: int) -> int:
    """Tell whoever reads JSON what went wrong; return the exit code."""
    options = words[: words.index("--")] if "--" in words else words
    if "--json" in options or "--ndjson" in options:
        from kvchat.cli.answer import error_event
        from kvchat.cli.streams import Output

        try:
            event = error_event(error, exit_code)
            Output().json(event | {"message": _short(str(error))})
        except BrokenPipeError:
            return CLOSED_PIPE
        except StorageError:  # standard output itself is what went wrong
            pass
    return exit_code


def _fail_unexpectedly(words: Sequence[str], error: Exception) -> int:
    import logging

    from kvchat.config import read_settings

    where = "the log cannot be written"
    try:
        home = {name: value for name, value in os.environ.items() if name == "KVCHAT_HOME"}
        paths = read_settings(environ=home).paths
        if not logging.getLogger().handlers:
            from kvchat.cli.logs import start_log

            start_log(paths)
        logging.getLogger("kvchat").error("unexpected error", exc_info=error)
        where = f"the details are in {paths.log_file}"
    except (KvchatError, OSError):
        pass
    return _fail(words, f"unexpected error ({type(error).__name__}); {where}", 1)
