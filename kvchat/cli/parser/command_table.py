"""Every command of kvchat: its words, where it lives, what it takes, and examples of it.

One table for what is run, what `--help` shows and what the manual page says.
"""

from importlib import import_module
from typing import Any

from kvchat.platform.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command.

    Args:
        words: what is typed behind `kvchat`.
        home: module and function under `kvchat.cli`, imported when the command runs.
        options: module and class under `kvchat.cli` of its options, imported when they are asked for.
        help: what it does, in one sentence.
        examples: lines to type, with what they are for behind a `#`.
    """

    words: str
    home: str
    options: str
    help: str
    examples: tuple[str, ...] = ()

    @property
    def takes(self) -> type:
        """The type of its options."""
        found: type = _imported(self.options)
        return found

    @property
    def function(self) -> Any:
        """What takes a value of that type and does it; returns the exit code, or None."""
        return _imported(self.home)

    @property
    def name(self) -> str:
        return self.words.split()[-1]

    @property
    def family(self) -> str | None:
        first, _, verb = self.words.partition(" ")
        return first if verb else None


def _imported(place: str) -> Any:
    module, _, name = place.rpartition(".")
    return getattr(import_module(f"kvchat.cli.{module}"), name)


def _command(words: str, home: str, options: str, help: str, *examples: str) -> Command:
    return Command(words=words, home=home, options=options, help=help, examples=examples)


FAMILIES = {
    "sessions": "List, show, search, rename and remove sessions.",
    "pack": "Beginnings of conversations, computed once and kept.",
    "models": "What can be loaded without a network.",
    "cache": "What is kept on disk.",
    "config": "What is set, and where.",
    "encrypt": "Encrypt conversations and KV on disk.",
}

DEFAULT_VERBS = {
    "sessions": "list",
    "pack": "list",
    "models": "list",
    "cache": "status",
    "config": "show",
    "encrypt": "status",
}
"""What a family does when nothing is said."""

TALKING = (
    _command(
        "ask",
        "commands.ask.ask.ask",
        "parser.options.AskOptions",
        "Answer one question and exit.",
        "kvchat ask 'What is a KV cache?'",
        "kvchat ask -f notes.txt 'What is the gate code?'    # documents come first",
        "git diff | kvchat ask -c 'And this?'    # in the session used last",
        "kvchat ask --pack spec 'What of errors?'    # nothing of a pack is computed again",
        "kvchat ask --json 'Hello' | jq -r .text",
    ),
    _command(
        "resume",
        "commands.resume.resume",
        "parser.options.ResumeOptions",
        "Open the terminal interface.",
        "kvchat resume demo",
        "kvchat demo    # the same",
    ),
    _command(
        "serve",
        "commands.serve.serve",
        "commands.serve.ServeOptions",
        "Keep a model loaded for other programs.",
        "kvchat serve --port 8080    # OpenAI's chat completions, on this machine alone",
        "kvchat serve --socket-only &    # `kvchat ask` answers at once then",
    ),
    _command(
        "doctor",
        "commands.doctor.doctor.doctor",
        "parser.options.DoctorOptions",
        "Say what is here, and what is wrong.",
        "kvchat doctor --no-model",
    ),
    _command(
        "plan",
        "commands.cache.plan.plan",
        "parser.options.PlanOptions",
        "Say how many bytes a model's cache takes.",
        "kvchat plan config.json --context 128k",
        "kvchat plan starter --format int4 --format k=int8,v=int4",
    ),
    _command(
        "bench",
        "commands.bench.bench",
        "commands.bench.BenchOptions",
        "Measure this machine, from the source tree.",
        "kvchat bench basics --svg .    # what a KV cache is for, and what paging is for",
        "kvchat bench start    # where the time to a first word goes",
        "kvchat bench cpu --quick",
    ),
    _command(
        "export",
        "commands.transfer.export.export_session",
        "commands.sessions.options.ExportOptions",
        "Write a session to one file.",
        "kvchat export demo -o demo.kvchat",
        "kvchat export demo --format md -o -",
    ),
    _command(
        "import",
        "commands.transfer.import_.import_sessions",
        "commands.sessions.options.ImportOptions",
        "Read sessions from files.",
        "kvchat import demo.kvchat",
        "kvchat import conversations.json",
    ),
    _command(
        "man",
        "commands.manual.show_manual",
        "parser.options.PlaceOptions",
        "Print the manual page.",
        "kvchat man | man -l -",
    ),
)

SESSIONS = (
    _command(
        "sessions list",
        "commands.sessions.listing.list_sessions",
        "parser.options.ListOptions",
        "List all sessions, pinned ones first, then last used first.",
        "kvchat sessions",
        "kvchat sessions list --ndjson | jq -r .title",
    ),
    _command(
        "sessions show",
        "commands.sessions.listing.show_session",
        "commands.sessions.options.SessionOptions",
        "Print a conversation.",
        "kvchat sessions show demo",
    ),
    _command(
        "sessions last",
        "commands.sessions.listing.show_last",
        "parser.options.ListOptions",
        "Print the last answer of the session used last.",
        "kvchat sessions last > answer.txt",
    ),
    _command(
        "sessions tree",
        "commands.sessions.listing.show_tree",
        "commands.sessions.options.SessionOptions",
        "Print the tree of its turns.",
    ),
    _command(
        "sessions fork",
        "commands.sessions.revise.fork_session",
        "commands.sessions.options.ForkOptions",
        "Begin a branch, also further up.",
    ),
    _command(
        "sessions undo",
        "commands.sessions.revise.undo_messages",
        "commands.sessions.options.ReviseOptions",
        "Take back your last messages.",
    ),
    _command(
        "sessions drop",
        "commands.sessions.revise.drop_message",
        "commands.sessions.options.ReviseOptions",
        "Leave one out, keep the rest.",
        "kvchat sessions drop demo 2 --dry-run",
    ),
    _command(
        "sessions search",
        "commands.sessions.listing.search_sessions",
        "commands.sessions.options.SearchOptions",
        "Find messages by words.",
        "kvchat sessions search gate code",
    ),
    _command(
        "sessions rename",
        "commands.sessions.changes.rename_session",
        "commands.sessions.options.RenameOptions",
        "Give it another title.",
        "kvchat sessions rename 7f3a 'Trip to Oslo'",
    ),
    _command(
        "sessions pin",
        "commands.sessions.changes.pin_sessions",
        "commands.sessions.options.PinOptions",
        "Keep sessions on top of the list, and their KV on disk.",
    ),
    _command(
        "sessions unpin",
        "commands.sessions.changes.unpin_sessions",
        "commands.sessions.options.PinOptions",
        "Let sessions stand where they were used last, and their KV make room.",
    ),
    _command(
        "sessions rm",
        "commands.sessions.changes.remove_sessions",
        "commands.sessions.options.RemoveOptions",
        "Remove text, and KV of its own.",
        "kvchat sessions rm demo 7f3a --yes",
        "kvchat sessions rm demo --branch main-2",
    ),
    _command(
        "sessions verify",
        "commands.sessions.verify.verify_session",
        "commands.sessions.options.VerifySessionOptions",
        "Compute its KV again and compare.",
        "kvchat sessions verify --all demo",
    ),
    _command(
        "sessions convert",
        "commands.sessions.convert.convert_session",
        "commands.sessions.convert.ConvertOptions",
        "Keep its KV in fewer bits, or exactly again.",
        "kvchat sessions convert demo int4    # what it saves and loses is told first",
        "kvchat sessions convert demo exact",
    ),
)

KEEPING = (
    _command(
        "pack make",
        "commands.pack.make.make_pack",
        "commands.pack.pack.MakeOptions",
        "Compute a beginning once and keep it.",
        "kvchat pack make spec -f rfc.txt",
        "git log -p | kvchat pack make history --system 'Answer from this log.'",
    ),
    _command("pack list", "commands.pack.pack.list_packs", "parser.options.ListOptions", "List all packs."),
    _command(
        "pack show",
        "commands.pack.pack.show_pack",
        "commands.pack.pack.PackOptions",
        "Print a pack's text.",
    ),
    _command(
        "pack rm",
        "commands.pack.pack.remove_packs",
        "commands.pack.pack.RemovePacksOptions",
        "Remove packs; their blocks make room again.",
        "kvchat pack rm spec",
    ),
    _command(
        "models list",
        "commands.models.list_models",
        "parser.options.ListOptions",
        "List the models that are here, and whether they fit.",
        "kvchat models",
        "kvchat models list --json | jq -r '.[].name'",
    ),
    _command(
        "models show",
        "commands.models.show_model",
        "commands.models.ModelOptions",
        "Say what is known of one of them.",
        "kvchat models show starter",
    ),
    _command(
        "cache status",
        "commands.cache.cache.cache_status",
        "commands.cache.cache.StatusOptions",
        "Say what is kept on disk, by model.",
        "kvchat cache",
        "kvchat cache status --remote http://gpu-box:8000/v1    # and what that server reports",
    ),
    _command(
        "cache verify",
        "commands.sessions.verify.verify_cache",
        "commands.sessions.options.VerifyCacheOptions",
        "Hold all KV to the model.",
    ),
    _command(
        "cache why",
        "commands.sessions.why.explain_answer",
        "commands.sessions.options.WhyOptions",
        "Say why an answer was not all reused.",
    ),
    _command(
        "cache gauge",
        "commands.cache.gauge.gauge",
        "commands.cache.gauge.GaugeOptions",
        "Measure what smaller cache formats lose.",
        "kvchat cache gauge demo    # on your own conversation",
        "kvchat cache gauge demo --keep 0.95 --layers int4 --svg demo.svg",
        "kvchat cache gauge    # on built-in questions, with the starter model",
    ),
    _command(
        "cache ls",
        "commands.cache.cache.list_blocks",
        "parser.options.ListOptions",
        "List whose blocks are on disk.",
        "kvchat cache ls --json | jq '.[0]'",
    ),
    _command(
        "cache evict",
        "commands.cache.cache.evict_blocks",
        "commands.cache.cache.EvictOptions",
        "Remove KV from the disk; no word goes.",
        "kvchat cache evict demo",
        "kvchat cache evict --to 2GiB",
    ),
    _command(
        "cache gc",
        "commands.cache.cache.cache_gc",
        "parser.options.ListOptions",
        "Remove blocks that no session refers to.",
    ),
    _command(
        "cache path",
        "commands.cache.cache.cache_path",
        "parser.options.ListOptions",
        "Print the directory of the blocks.",
        "rm -r $(kvchat cache path)    # costs time, never a word",
    ),
    _command(
        "config show",
        "commands.config.show_config",
        "commands.config.ShowOptions",
        "Say what is set, and where each value came from.",
        "kvchat config",
        "kvchat config show -m starter --json",
    ),
    _command(
        "config set",
        "commands.config.set_value",
        "commands.config.SetOptions",
        "Write one setting into your configuration file.",
        "kvchat config set model starter",
        "kvchat config set sampling.temperature 0.7",
    ),
    _command(
        "config edit",
        "commands.config.edit_config",
        "parser.options.PlaceOptions",
        "Open your configuration file in an editor.",
    ),
    _command(
        "config path",
        "commands.config.show_path",
        "parser.options.ListOptions",
        "Print where your configuration file is.",
    ),
    _command(
        "config schema",
        "commands.config.show_schema",
        "parser.options.ListOptions",
        "Print what can be set, as a JSON schema.",
    ),
    _command(
        "encrypt on",
        "commands.encrypt.turn_on",
        "parser.options.EncryptOptions",
        "Encrypt all conversations, and all KV.",
    ),
    _command(
        "encrypt off",
        "commands.encrypt.turn_off",
        "parser.options.ListOptions",
        "Keep everything in the clear again.",
    ),
    _command(
        "encrypt change", "commands.encrypt.change", "parser.options.EncryptOptions", "Change the passphrase."
    ),
    _command(
        "encrypt status",
        "commands.encrypt.show_status",
        "parser.options.ListOptions",
        "Say what is encrypted.",
    ),
)

COMMANDS = TALKING + SESSIONS + KEEPING


def help_text(command: Command) -> str:
    """Return what `--help` says of a command: what it does, then examples."""
    return command.help + examples_text(command.examples)


def examples_text(examples: tuple[str, ...]) -> str:
    """Return examples as a paragraph of a help text that is not wrapped."""
    return "\n\n\b\nExamples:\n" + "\n".join(f"  {line}" for line in examples) if examples else ""
