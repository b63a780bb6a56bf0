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
        "ask.ask",
        "options.AskOptions",
        "Answer one question and exit.",
        "kvchat ask 'What is a KV cache?'",
        "kvchat ask -f notes.txt 'What is the gate code?'    # documents come first",
        "git diff | kvchat ask -c 'And this?'    # in the session used last",
        "kvchat ask --pack spec 'What of errors?'    # nothing of a pack is computed again",
        "kvchat ask --json 'Hello' | jq -r .text",
    ),
    _command(
        "resume",
        "resume.resume",
        "options.ResumeOptions",
        "Open the terminal interface.",
        "kvchat resume demo",
        "kvchat demo    # the same",
    ),
    _command(
        "serve",
        "serve.serve",
        "serve_options.ServeOptions",
        "Keep a model loaded for other programs.",
        "kvchat serve --port 8080    # OpenAI's chat completions, on this machine alone",
        "kvchat serve --socket-only &    # `kvchat ask` answers at once then",
    ),
    _command(
        "doctor",
        "doctor.doctor",
        "options.DoctorOptions",
        "Say what is here, and what is wrong.",
        "kvchat doctor --no-model",
    ),
    _command(
        "plan",
        "plan.plan",
        "options.PlanOptions",
        "Say how many bytes a model's cache takes.",
        "kvchat plan config.json --context 128k",
        "kvchat plan starter --format int4 --format k=int8,v=int4",
    ),
    _command(
        "bench",
        "bench.bench",
        "bench_options.BenchOptions",
        "Measure this machine, from the source tree.",
        "kvchat bench basics --svg .    # what a KV cache is for, and what paging is for",
        "kvchat bench start    # where the time to a first word goes",
        "kvchat bench cpu --quick",
    ),
    _command(
        "export",
        "export.export_session",
        "session_options.ExportOptions",
        "Write a session to one file.",
        "kvchat export demo -o demo.kvchat",
        "kvchat export demo --format md -o -",
    ),
    _command(
        "import",
        "import_.import_sessions",
        "session_options.ImportOptions",
        "Read sessions from files.",
        "kvchat import demo.kvchat",
        "kvchat import conversations.json",
    ),
    _command(
        "man",
        "manual.show_manual",
        "options.PlaceOptions",
        "Print the manual page.",
        "kvchat man | man -l -",
    ),
)

SESSIONS = (
    _command(
        "sessions list",
        "sessions.list_sessions",
        "options.ListOptions",
        "List all sessions, pinned ones first, then last used first.",
        "kvchat sessions",
        "kvchat sessions list --ndjson | jq -r .title",
    ),
    _command(
        "sessions show",
        "sessions.show_session",
        "session_options.SessionOptions",
        "Print a conversation.",
        "kvchat sessions show demo",
    ),
    _command(
        "sessions last",
        "sessions.show_last",
        "options.ListOptions",
        "Print the last answer of the session used last.",
        "kvchat sessions last > answer.txt",
    ),
    _command(
        "sessions tree",
        "sessions.show_tree",
        "session_options.SessionOptions",
        "Print the tree of its turns.",
    ),
    _command(
        "sessions fork",
        "courses.fork_session",
        "session_options.ForkOptions",
        "Begin a branch, also further up.",
    ),
    _command(
        "sessions undo",
        "courses.undo_messages",
        "session_options.ReviseOptions",
        "Take back your last messages.",
    ),
    _command(
        "sessions drop",
        "courses.drop_message",
        "session_options.ReviseOptions",
        "Leave one out, keep the rest.",
        "kvchat sessions drop demo 2 --dry-run",
    ),
    _command(
        "sessions search",
        "sessions.search_sessions",
        "session_options.SearchOptions",
        "Find messages by words.",
        "kvchat sessions search gate code",
    ),
    _command(
        "sessions rename",
        "session_changes.rename_session",
        "session_options.RenameOptions",
        "Give it another title.",
        "kvchat sessions rename 7f3a 'Trip to Oslo'",
    ),
    _command(
        "sessions pin",
        "session_changes.pin_sessions",
        "session_options.PinOptions",
        "Keep sessions on top of the list, and their KV on disk.",
    ),
    _command(
        "sessions unpin",
        "session_changes.unpin_sessions",
        "session_options.PinOptions",
        "Let sessions stand where they were used last, and their KV make room.",
    ),
    _command(
        "sessions rm",
        "session_changes.remove_sessions",
        "session_options.RemoveOptions",
        "Remove text, and KV of its own.",
        "kvchat sessions rm demo 7f3a --yes",
        "kvchat sessions rm demo --branch main-2",
    ),
    _command(
        "sessions verify",
        "verify.verify_session",
        "session_options.VerifySessionOptions",
        "Compute its KV again and compare.",
        "kvchat sessions verify --all demo",
    ),
    _command(
        "sessions convert",
        "convert.convert_session",
        "convert_options.ConvertOptions",
        "Keep its KV in fewer bits, or exactly again.",
        "kvchat sessions convert demo int4    # what it saves and loses is told first",
        "kvchat sessions convert demo exact",
    ),
)

KEEPING = (
    _command(
        "pack make",
        "pack_making.make_pack",
        "pack_options.MakeOptions",
        "Compute a beginning once and keep it.",
        "kvchat pack make spec -f rfc.txt",
        "git log -p | kvchat pack make history --system 'Answer from this log.'",
    ),
    _command("pack list", "pack.list_packs", "options.ListOptions", "List all packs."),
    _command("pack show", "pack.show_pack", "pack_options.PackOptions", "Print a pack's text."),
    _command(
        "pack rm",
        "pack.remove_packs",
        "pack_options.RemovePacksOptions",
        "Remove packs; their blocks make room again.",
        "kvchat pack rm spec",
    ),
    _command(
        "models list",
        "models.list_models",
        "options.ListOptions",
        "List the models that are here, and whether they fit.",
        "kvchat models",
        "kvchat models list --json | jq -r '.[].name'",
    ),
    _command(
        "models show",
        "models.show_model",
        "models_options.ModelOptions",
        "Say what is known of one of them.",
        "kvchat models show starter",
    ),
    _command(
        "cache status",
        "cache.cache_status",
        "cache_options.StatusOptions",
        "Say what is kept on disk, by model.",
        "kvchat cache",
        "kvchat cache status --remote http://gpu-box:8000/v1    # and what that server reports",
    ),
    _command(
        "cache verify",
        "verify.verify_cache",
        "session_options.VerifyCacheOptions",
        "Hold all KV to the model.",
    ),
    _command(
        "cache why",
        "why.explain_answer",
        "session_options.WhyOptions",
        "Say why an answer was not all reused.",
    ),
    _command(
        "cache gauge",
        "gauge.gauge",
        "gauge_options.GaugeOptions",
        "Measure what smaller cache formats lose.",
        "kvchat cache gauge demo    # on your own conversation",
        "kvchat cache gauge demo --keep 0.95 --layers int4 --svg demo.svg",
        "kvchat cache gauge    # on built-in questions, with the starter model",
    ),
    _command(
        "cache ls",
        "cache.list_blocks",
        "options.ListOptions",
        "List whose blocks are on disk.",
        "kvchat cache ls --json | jq '.[0]'",
    ),
    _command(
        "cache evict",
        "cache.evict_blocks",
        "cache_options.EvictOptions",
        "Remove KV from the disk; no word goes.",
        "kvchat cache evict demo",
        "kvchat cache evict --to 2GiB",
    ),
    _command("cache gc", "cache.cache_gc", "options.ListOptions", "Remove blocks that no session refers to."),
    _command(
        "cache path",
        "cache.cache_path",
        "options.ListOptions",
        "Print the directory of the blocks.",
        "rm -r $(kvchat cache path)    # costs time, never a word",
    ),
    _command(
        "config show",
        "config.show_config",
        "config_options.ShowOptions",
        "Say what is set, and where each value came from.",
        "kvchat config",
        "kvchat config show -m starter --json",
    ),
    _command(
        "config set",
        "config.set_value",
        "config_options.SetOptions",
        "Write one setting into your configuration file.",
        "kvchat config set model starter",
        "kvchat config set sampling.temperature 0.7",
    ),
    _command(
        "config edit",
        "config.edit_config",
        "options.PlaceOptions",
        "Open your configuration file in an editor.",
    ),
    _command(
        "config path", "config.show_path", "options.ListOptions", "Print where your configuration file is."
    ),
    _command(
        "config schema",
        "config.show_schema",
        "options.ListOptions",
        "Print what can be set, as a JSON schema.",
    ),
    _command(
        "encrypt on", "encrypt.turn_on", "options.EncryptOptions", "Encrypt all conversations, and all KV."
    ),
    _command("encrypt off", "encrypt.turn_off", "options.ListOptions", "Keep everything in the clear again."),
    _command("encrypt change", "encrypt.change", "options.EncryptOptions", "Change the passphrase."),
    _command("encrypt status", "encrypt.show_status", "options.ListOptions", "Say what is encrypted."),
)

COMMANDS = TALKING + SESSIONS + KEEPING


def help_text(command: Command) -> str:
    """Return what `--help` says of a command: what it does, then examples."""
    return command.help + examples_text(command.examples)


def examples_text(examples: tuple[str, ...]) -> str:
    """Return examples as a paragraph of a help text that is not wrapped."""
    return "\n\n\b\nExamples:\n" + "\n".join(f"  {line}" for line in examples) if examples else ""
