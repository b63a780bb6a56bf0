"""Every command of kvchat: its words, where it lives, what it takes, and examples of it.

One table for what is run, what `--help` shows and what the manual page says.
"""

from dataclasses import dataclass

from kvchat.cli import bench_options, config_options, models_options, options, serve_options, session_options


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command.

    Args:
        words: what is typed behind `kvchat`.
        home: module and function under `kvchat.cli`, imported when the command runs.
        takes: the type of its options.
        help: what it does, in one sentence.
        examples: lines to type, with what they are for behind a `#`.
    """

    words: str
    home: str
    takes: type
    help: str
    examples: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.words.split()[-1]

    @property
    def family(self) -> str | None:
        first, _, verb = self.words.partition(" ")
        return first if verb else None


FAMILIES = {
    "sessions": "List, show, search, rename and remove sessions.",
    "models": "What can be loaded without a network.",
    "cache": "What is kept on disk.",
    "config": "What is set, and where.",
    "encrypt": "Encrypt conversations and KV on disk.",
}

DEFAULT_VERBS = {
    "sessions": "list",
    "models": "list",
    "cache": "status",
    "config": "show",
    "encrypt": "status",
}
"""What a family does when nothing is said."""

TALKING = (
    Command(
        words="ask",
        home="ask.ask",
        takes=options.AskOptions,
        help="Answer one question and exit.",
        examples=(
            "kvchat ask 'What is a KV cache?'",
            "kvchat ask -f notes.txt 'What is the gate code?'    # documents come first",
            "git diff | kvchat ask -c 'And this?'    # in the session used last",
            "kvchat ask --json 'Hello' | jq -r .text",
        ),
    ),
    Command(
        words="resume",
        home="resume.resume",
        takes=options.ResumeOptions,
        help="Open the terminal interface.",
        examples=("kvchat resume demo", "kvchat demo    # the same"),
    ),
    Command(
        words="serve",
        home="serve.serve",
        takes=serve_options.ServeOptions,
        help="Keep a model loaded for other programs.",
        examples=(
            "kvchat serve --port 8080    # OpenAI's chat completions, on this machine alone",
            "kvchat serve --socket-only &    # `kvchat ask` answers at once then",
        ),
    ),
    Command(
        words="doctor",
        home="doctor.doctor",
        takes=options.DoctorOptions,
        help="Say what is here, and what is wrong.",
        examples=("kvchat doctor --no-model",),
    ),
    Command(
        words="plan",
        home="plan.plan",
        takes=options.PlanOptions,
        help="Say how many bytes a model's cache takes.",
        examples=("kvchat plan config.json --context 128k",),
    ),
    Command(
        words="bench",
        home="bench.bench",
        takes=bench_options.BenchOptions,
        help="Measure this machine, from the source tree.",
        examples=("kvchat bench start    # where the time to a first word goes", "kvchat bench cpu --quick"),
    ),
    Command(
        words="export",
        home="export.export_session",
        takes=session_options.ExportOptions,
        help="Write a session to one file.",
        examples=("kvchat export demo -o demo.kvchat", "kvchat export demo --format md -o -"),
    ),
    Command(
        words="import",
        home="import_.import_sessions",
        takes=session_options.ImportOptions,
        help="Read sessions from files.",
        examples=("kvchat import demo.kvchat", "kvchat import conversations.json"),
    ),
    Command(
        words="man",
        home="manual.show_manual",
        takes=options.PlaceOptions,
        help="Print the manual page.",
        examples=("kvchat man | man -l -",),
    ),
)

SESSIONS = (
    Command(
        words="sessions list",
        home="sessions.list_sessions",
        takes=options.RowsOptions,
        help="List all sessions, pinned ones first, then last used first.",
        examples=("kvchat sessions", "kvchat sessions list --ndjson | jq -r .title"),
    ),
    Command(
        words="sessions show",
        home="sessions.show_session",
        takes=session_options.SessionOptions,
        help="Print a conversation.",
        examples=("kvchat sessions show demo",),
    ),
    Command(
        words="sessions last",
        home="sessions.show_last",
        takes=options.ListOptions,
        help="Print the last answer of the session used last.",
        examples=("kvchat sessions last > answer.txt",),
    ),
    Command(
        words="sessions tree",
        home="sessions.show_tree",
        takes=session_options.SessionRowsOptions,
        help="Print the tree of its turns.",
    ),
    Command(
        words="sessions fork",
        home="courses.fork_session",
        takes=session_options.ForkOptions,
        help="Begin a branch, also further up.",
    ),
    Command(
        words="sessions undo",
        home="courses.undo_messages",
        takes=session_options.ReviseOptions,
        help="Take back your last messages.",
    ),
    Command(
        words="sessions drop",
        home="courses.drop_message",
        takes=session_options.ReviseOptions,
        help="Leave one out, keep the rest.",
        examples=("kvchat sessions drop demo 2 --dry-run",),
    ),
    Command(
        words="sessions search",
        home="sessions.search_sessions",
        takes=session_options.SearchOptions,
        help="Find messages by words.",
        examples=("kvchat sessions search gate code",),
    ),
    Command(
        words="sessions rename",
        home="sessions.rename_session",
        takes=session_options.RenameOptions,
        help="Give it another title.",
        examples=("kvchat sessions rename 7f3a 'Trip to Oslo'",),
    ),
    Command(
        words="sessions pin",
        home="sessions.pin_sessions",
        takes=session_options.PinOptions,
        help="Keep sessions on top of the list.",
    ),
    Command(
        words="sessions unpin",
        home="sessions.unpin_sessions",
        takes=session_options.PinOptions,
        help="Let sessions stand where they were used last.",
    ),
    Command(
        words="sessions rm",
        home="sessions.remove_sessions",
        takes=session_options.RemoveOptions,
        help="Remove text, and KV of its own.",
        examples=("kvchat sessions rm demo 7f3a --yes", "kvchat sessions rm demo --branch main-2"),
    ),
    Command(
        words="sessions verify",
        home="verify.verify_session",
        takes=session_options.VerifySessionOptions,
        help="Compute its KV again and compare.",
        examples=("kvchat sessions verify --all demo",),
    ),
)

KEEPING = (
    Command(
        words="models list",
        home="models.list_models",
        takes=options.RowsOptions,
        help="List the models that are here, and whether they fit.",
        examples=("kvchat models", "kvchat models list --json | jq -r '.[].name'"),
    ),
    Command(
        words="models show",
        home="models.show_model",
        takes=models_options.ModelOptions,
        help="Say what is known of one of them.",
        examples=("kvchat models show starter",),
    ),
    Command(
        words="cache status",
        home="cache.cache_status",
        takes=options.ListOptions,
        help="Say what is kept on disk, by model.",
    ),
    Command(
        words="cache verify",
        home="verify.verify_cache",
        takes=session_options.VerifyCacheOptions,
        help="Hold all KV to the model.",
    ),
    Command(
        words="cache why",
        home="why.explain_answer",
        takes=session_options.WhyOptions,
        help="Say why an answer was not all reused.",
    ),
    Command(
        words="cache gc",
        home="cache.cache_gc",
        takes=options.ListOptions,
        help="Remove blocks that no session refers to.",
    ),
    Command(
        words="cache path",
        home="cache.cache_path",
        takes=options.PlaceOptions,
        help="Print the directory of the blocks.",
        examples=("rm -r $(kvchat cache path)    # costs time, never a word",),
    ),
    Command(
        words="config show",
        home="config.show_config",
        takes=config_options.ShowOptions,
        help="Say what is set, and where each value came from.",
        examples=("kvchat config", "kvchat config show -m starter --json"),
    ),
    Command(
        words="config set",
        home="config.set_value",
        takes=config_options.SetOptions,
        help="Write one setting into your configuration file.",
        examples=("kvchat config set model starter", "kvchat config set sampling.temperature 0.7"),
    ),
    Command(
        words="config edit",
        home="config.edit_config",
        takes=options.PlaceOptions,
        help="Open your configuration file in an editor.",
    ),
    Command(
        words="config path",
        home="config.show_path",
        takes=options.PlaceOptions,
        help="Print where your configuration file is.",
    ),
    Command(
        words="config schema",
        home="config.show_schema",
        takes=options.PlaceOptions,
        help="Print what can be set, as a JSON schema.",
    ),
    Command(
        words="encrypt on",
        home="encrypt.turn_on",
        takes=options.EncryptOptions,
        help="Encrypt all conversations, and all KV.",
    ),
    Command(
        words="encrypt off",
        home="encrypt.turn_off",
        takes=options.PlaceOptions,
        help="Keep everything in the clear again.",
    ),
    Command(
        words="encrypt change",
        home="encrypt.change",
        takes=options.EncryptOptions,
        help="Change the passphrase.",
    ),
    Command(
        words="encrypt status",
        home="encrypt.show_status",
        takes=options.ListOptions,
        help="Say what is encrypted.",
    ),
)

COMMANDS = TALKING + SESSIONS + KEEPING


def help_text(command: Command) -> str:
    """Return what `--help` says of a command: what it does, then examples."""
    return command.help + examples_text(command.examples)


def examples_text(examples: tuple[str, ...]) -> str:
    """Return examples as a paragraph of a help text that is not wrapped."""
    return "\n\n\b\nExamples:\n" + "\n".join(f"  {line}" for line in examples) if examples else ""
