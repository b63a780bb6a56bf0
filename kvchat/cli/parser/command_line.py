"""Command-line parser: all commands, as Typer takes them."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import MISSING, fields
from functools import cache, cached_property
from typing import Annotated, Any, get_args, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from kvchat.cli.parser.command_table import COMMANDS, DEFAULT_VERBS, FAMILIES, Command, examples_text
from kvchat.errors import UsageError

_HELP_NAMES = ("-h", "--help")
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


class _LazyCommand(TyperCommand):
    """A command whose options are imported when it is typed: lists of commands need only what it is for."""

    def __init__(self, command: Command) -> None:
        text = inspect.cleandoc(command.help + examples_text(command.examples))
        super().__init__(command.name, help=text, rich_markup_mode=None)
        self._command = command

    @cached_property
    def made(self) -> Any:
        """The command as Typer makes it of the type of its options."""
        alone = typer.Typer(rich_markup_mode=None, add_completion=False)
        alone.command(self.name, help=self.help)(_function_of(self._command))
        return typer.main.get_command(alone)

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        return self.made.make_context(info_name, args, parent, **extra)


def _function_of(command: Command) -> Callable[..., int | None]:
    """Return a command as a function whose parameters are the fields of its options."""
    options = command.takes

    def run(**values: Any) -> int | None:
        try:
            if values.get("json") and values.get("ndjson"):
                raise UsageError("--json and --ndjson contradict each other; choose one")
            exit_code: int | None = command.does(options(**values))
            return exit_code
        except BrokenPipeError:
            raise typer.Exit(141) from None

    hints, parameters = get_type_hints(options, include_extras=True), []
    for one in fields(options):
        kind, parameter = get_args(hints[one.name])
        default = inspect.Parameter.empty if one.default is MISSING else one.default
        parameters.append(
            inspect.Parameter(
                one.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=default,
                annotation=Annotated[kind, parameter.for_typer(kind)],
            )
        )
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    return run


def _all_commands() -> dict[str, Any]:
    """Return what may follow `kvchat`, by its word."""
    found: dict[str, Any] = {one.name: _LazyCommand(one) for one in COMMANDS if one.family is None}
    for name, words in FAMILIES.items():
        verbs: dict[str, Any] = {one.name: _LazyCommand(one) for one in COMMANDS if one.family == name}
        found[name] = TyperGroup(name=name, commands=verbs, help=words, rich_markup_mode=None)
    return found


class _Root(TyperGroup):
    """The command itself; a first word may also be a session's."""

    def __init__(self, *, commands: Any, **rest: Any) -> None:
        super().__init__(commands=_all_commands() | commands, **rest)

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        offered = super().shell_complete(ctx, incomplete)
        if incomplete.startswith("-"):
            return offered
        resume: Any = self.commands["resume"]
        [session] = (one for one in resume.made.params if one.name == "session")
        return offered + session.shell_complete(ctx, incomplete)


app = typer.Typer(
    name="kvchat",
    cls=_Root,
    help=_HELP,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    subcommand_metavar="[SESSION] | COMMAND [ARGS]...",
    context_settings={"help_option_names": list(_HELP_NAMES)},
)


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
        result = command.main(args=arrange(words, command), prog_name="kvchat", standalone_mode=False)
    except typer.TyperException as error:
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
    own = set(_HELP_NAMES).union(*(one.opts for one in command.params))
    resume = command.commands["resume"]
    all_options = cache(lambda: options_of(command))

    def takes_value(word: str) -> bool:
        # No spelling is a flag here and takes a value there: all commands are read where these say nothing.
        if word in own:
            return False
        known = options_of(resume)
        return known[word] if word in known else all_options().get(word, False)

    place = _first_word(words, takes_value)
    if place is None or words[place] not in command.commands:
        is_root = bool(words) and words[0] in own
        return words if is_root else ["resume", *words]
    name = words.pop(place)
    if not hasattr(command.commands[name], "commands"):
        return [name, *words]
    verbs = command.commands[name].commands
    verb = _first_word(words, takes_value)
    if verb is None:
        wants_help = "-h" in words or "--help" in words
        return [name, *words] if wants_help else [name, DEFAULT_VERBS.get(name, "list"), *words]
    said = words.pop(verb)
    if said == "ls" and "ls" not in verbs and "list" in verbs:
        said = "list"
    if said not in verbs:
        from kvchat.app.config import did_you_mean

        hint = did_you_mean(said, verbs) or f"; there are {', '.join(verbs)}"
        raise UsageError(f"`kvchat {name}` has no command '{said}'{hint}")
    return [name, said, *words]


def _first_word(words: Sequence[str], takes_value: Callable[[str], bool]) -> int | None:
    """Return the place of the first word that is neither an option nor an option's value."""
    skip = False
    for place, word in enumerate(words):
        if skip:
            skip = False
        elif word == "--":
            return None
        elif word.startswith("-") and word != "-":
            skip = takes_value(word)
        else:
            return place
    return None


def options_of(command: Any) -> dict[str, bool]:
    """Return every spelling of every option, also of commands below, and whether a value follows it."""
    found: dict[str, bool] = {}
    for below in getattr(command, "commands", {}).values():
        found |= options_of(below)
    for parameter in getattr(command, "made", command).params:
        if parameter.param_type_name == "option":
            found |= dict.fromkeys(parameter.opts, not parameter.is_flag)
    return found
