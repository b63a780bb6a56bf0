"""The command `kvchat`: which words mean which command, and how a run ends."""

import os
import signal
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from threading import enumerate as enumerate_threads
from threading import main_thread
from typing import Annotated, Any

import typer
from typer.exceptions import TyperException

from kvchat.cli import options
from kvchat.cli.options import takes
from kvchat.errors import KvchatError, OutOfMemory

_HELP = """Chat in the terminal with a local model whose memory, the KV cache, you keep.

`kvchat [SESSION]` opens the terminal interface: it is `kvchat resume [SESSION]` and takes its options.
`kvchat ask` answers one question. `kvchat COMMAND --help` says more.
"""

app = typer.Typer(
    name="kvchat",
    help=_HELP,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    subcommand_metavar="[SESSION] | COMMAND [ARGS]...",
    context_settings={"help_option_names": ["-h", "--help"]},
)

# What a family does when nothing is said.
_DEFAULT_VERBS = {"sessions": "list", "cache": "status", "encrypt": "status"}


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
    sessions = typer.Typer(rich_markup_mode=None, help="List, show, search, rename and remove sessions.")
    cache = typer.Typer(rich_markup_mode=None, help="What is kept on disk.")
    encrypt = typer.Typer(rich_markup_mode=None, help="Encrypt conversations and KV on disk.")
    for parent, name, home, options_type, help_text in (
        (app, "ask", "ask.ask", options.AskOptions, "Answer one question and exit."),
        (app, "resume", "resume.resume", options.ResumeOptions, "Open the terminal interface."),
        (app, "doctor", "doctor.doctor", options.DoctorOptions, "Say what is here, and what is wrong."),
        (app, "plan", "plan.plan", options.PlanOptions, "Say how many bytes a model's cache takes."),
        (app, "export", "export.export_session", options.ExportOptions, "Write a session to one file."),
        (app, "import", "import_.import_sessions", options.ImportOptions, "Read sessions from files."),
        (
            sessions,
            "list",
            "sessions.list_sessions",
            options.ListOptions,
            "List all sessions, last used first.",
        ),
        (sessions, "show", "sessions.show_session", options.SessionOptions, "Print a conversation."),
        (sessions, "tree", "sessions.show_tree", options.SessionOptions, "Print the tree of its turns."),
        (sessions, "fork", "courses.fork_session", options.ForkOptions, "Begin a branch, also further up."),
        (sessions, "undo", "courses.undo_messages", options.ReviseOptions, "Take back your last messages."),
        (sessions, "drop", "courses.drop_message", options.ReviseOptions, "Leave one out, keep the rest."),
        (sessions, "search", "sessions.search_sessions", options.SearchOptions, "Find messages by words."),
        (sessions, "rename", "sessions.rename_session", options.RenameOptions, "Give it another title."),
        (
            sessions,
            "rm",
            "sessions.remove_sessions",
            options.RemoveOptions,
            "Remove text, and KV of its own.",
        ),
        (
            sessions,
            "verify",
            "verify.verify_session",
            options.VerifySessionOptions,
            "Compute its KV again and compare.",
        ),
        (cache, "verify", "verify.verify_cache", options.VerifyCacheOptions, "Hold all KV to the model."),
        (cache, "status", "cache.cache_status", options.ListOptions, "Say what is kept on disk, by model."),
        (cache, "why", "why.explain_answer", options.WhyOptions, "Say why an answer was not all reused."),
        (cache, "gc", "cache.cache_gc", options.ListOptions, "Remove blocks that no session refers to."),
        (cache, "path", "cache.cache_path", options.PlaceOptions, "Print the directory of the blocks."),
        (encrypt, "on", "encrypt.turn_on", options.EncryptOptions, "Encrypt all conversations, and all KV."),
        (encrypt, "off", "encrypt.turn_off", options.PlaceOptions, "Keep everything in the clear again."),
        (encrypt, "change", "encrypt.change", options.EncryptOptions, "Change the passphrase."),
        (encrypt, "status", "encrypt.show_status", options.ListOptions, "Say what is encrypted."),
    ):
        parent.command(name, help=help_text)(_command(f"kvchat.cli.{home}", options_type, help_text))
    app.add_typer(sessions, name="sessions")
    app.add_typer(cache, name="cache")
    app.add_typer(encrypt, name="encrypt")


_add_commands()


def main() -> None:
    """Run the command line of this process and end it."""
    code = _flushed(run(sys.argv[1:]))
    if any(thread is not main_thread() and thread.daemon for thread in enumerate_threads()):
        # A model that is still being loaded: native code in a thread does not survive the interpreter's end.
        os._exit(code)
    sys.exit(code)


def run(words: Sequence[str]) -> int:
    """Run a command line and return its exit code; a failure is one message on standard error."""
    try:
        command = typer.main.get_command(app)
        result = command.main(args=arrange(words, command), prog_name="kvchat", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except TyperException as error:
        return _fail(words, error.format_message() or "see `kvchat --help`", error.exit_code)
    except KvchatError as error:
        return _fail(words, error, error.exit_code)
    except MemoryError:
        return _fail(words, OutOfMemory("out of memory; choose a smaller --kv-device-bytes or model"), 6)
    except (typer.Abort, KeyboardInterrupt):
        return 128 + signal.SIGINT
    except Exception as error:
        return _fail_unexpectedly(words, error)


def arrange(words: Sequence[str], command: Any) -> list[str]:
    """Return a command line with its command first: `-q demo` becomes `resume -q demo`.

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
    verb = _first_word(words, takes_value)
    if verb is None:
        wants_help = "-h" in words or "--help" in words
        return [name, *words] if wants_help else [name, _DEFAULT_VERBS[name], *words]
    return [name, words.pop(verb), *words]


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
    print(f"kvchat: {error}", file=sys.stderr)
    if "--json" in words or "--ndjson" in words:
        from kvchat.cli.answer import error_event
        from kvchat.cli.streams import Output

        try:
            Output().json(error_event(error, exit_code))
        except BrokenPipeError:
            return 141
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


def _flushed(code: int) -> int:
    """Flush standard output; where nobody reads it, keep the interpreter from complaining at its end."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return code or 141
    return code
