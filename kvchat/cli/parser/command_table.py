"""Table of all commands: their words, the function and the options of each, and examples.

One table for what is run, what `--help` shows and what the manual page says.
"""

from inspect import signature
from pkgutil import resolve_name
from typing import Any

_COMMANDS = "kvchat.cli.commands."


class Command:
    """One command.

    Args:
        words: what is typed behind `kvchat`.
        function: what does it, as `module:name` below `kvchat.cli.commands`, imported when the command runs.
            It takes a value of the options, and returns the exit code or None.
        options: class of its options, in the same form, where another module is quicker to import.
        help: what it does, in one sentence.
        examples: lines to type, with what they are for behind a `#`.
    """

    def __init__(
        self, words: str, function: str, help: str, *examples: str, options: str | None = None
    ) -> None:
        self.words = words
        self.help = help
        self.examples = examples
        self._function = function
        self._options = options

    @property
    def takes(self) -> Any:
        """The class of its options."""
        if self._options is not None:
            return resolve_name(_COMMANDS + self._options)
        return signature(self.does).parameters["options"].annotation

    @property
    def does(self) -> Any:
        """The function itself."""
        return resolve_name(_COMMANDS + self._function)

    @property
    def name(self) -> str:
        return self.words.split()[-1]

    @property
    def family(self) -> str | None:
        first, _, verb = self.words.partition(" ")
        return first if verb else None


FAMILIES = {
    "sessions": "List, show, search, rename and remove sessions.",
    "pack": "Documents and system prompts, computed once.",
    "models": "List and show models that are here.",
    "cache": "Show, explain, measure and remove stored KV.",
    "config": "Show and change settings.",
    "encrypt": "Encrypt conversations and KV on disk.",
}

DEFAULT_VERBS = {"cache": "status", "config": "show", "encrypt": "status"}
"""What these families do when nothing is said; the others list."""

COMMANDS = (
    Command(
        "ask",
        "ask.ask:ask",
        "Answer one question and exit.",
        "kvchat ask 'What is a KV cache?'",
        "kvchat ask -f notes.txt 'What is the gate code?'    # documents come first",
        "git diff | kvchat ask -c 'And this?'    # in the session used last",
        "kvchat ask --pack spec 'What of errors?'    # nothing of a pack is computed again",
        "kvchat ask --json 'Hello' | jq -r .text",
        options="ask.options:AskOptions",
    ),
    Command(
        "resume",
        "interface:resume",
        "Open the terminal interface.",
        "kvchat resume demo",
        "kvchat demo    # the same",
    ),
    Command(
        "serve",
        "serve:serve",
        "Keep a model loaded for other programs.",
        "kvchat serve --port 8080    # OpenAI's chat completions, on this machine alone",
        "kvchat serve --socket-only &    # `kvchat ask` answers at once then",
    ),
    Command(
        "doctor", "doctor:doctor", "Check the installation, and say what to do.", "kvchat doctor --no-model"
    ),
    Command(
        "plan",
        "plan:plan",
        "Calculate the size of a model's KV cache.",
        "kvchat plan config.json --context 128k",
        "kvchat plan starter --format int4 --format k=int8,v=int4",
    ),
    Command(
        "bench",
        "bench:bench",
        "Measure this machine, from the source tree.",
        "kvchat bench basics --svg .    # what a KV cache is for, and what paging is for",
        "kvchat bench start    # where the time to a first word goes",
        "kvchat bench cpu --quick",
    ),
    Command(
        "export",
        "transfer.export:export_session",
        "Write a session to one file.",
        "kvchat export demo -o demo.kvchat",
        "kvchat export demo --format md -o -",
    ),
    Command(
        "import",
        "transfer.import_:import_sessions",
        "Read sessions from files.",
        "kvchat import demo.kvchat",
        "kvchat import conversations.json",
    ),
    Command("man", "manual:show_manual", "Print the manual page.", "kvchat man | man -l -"),
    Command(
        "sessions list",
        "sessions.browse:list_sessions",
        "List all sessions, pinned ones first, then last used first.",
        "kvchat sessions",
        "kvchat sessions list --ndjson | jq -r .title",
    ),
    Command(
        "sessions show", "sessions.browse:show_session", "Print a conversation.", "kvchat sessions show demo"
    ),
    Command(
        "sessions last",
        "sessions.browse:show_last",
        "Print the last answer of the session used last.",
        "kvchat sessions last > answer.txt",
    ),
    Command("sessions tree", "sessions.browse:show_tree", "Print a session's branches as a tree."),
    Command(
        "sessions fork", "sessions.revise:fork_session", "Start a branch, here or at an earlier message."
    ),
    Command("sessions undo", "sessions.revise:undo_messages", "Take back your last messages."),
    Command(
        "sessions drop",
        "sessions.revise:drop_message",
        "Remove a message and its answer, keep the rest.",
        "kvchat sessions drop demo 2 --dry-run",
    ),
    Command(
        "sessions search",
        "sessions.browse:search_sessions",
        "Find messages by words.",
        "kvchat sessions search gate code",
    ),
    Command(
        "sessions rename",
        "sessions.changes:rename_session",
        "Change a session's title.",
        "kvchat sessions rename 7f3a 'Trip to Oslo'",
    ),
    Command(
        "sessions pin",
        "sessions.changes:pin_sessions",
        "Keep sessions on top of the list, and their KV on disk.",
    ),
    Command(
        "sessions unpin",
        "sessions.changes:unpin_sessions",
        "Undo pin: sort by last use, and let KV be evicted.",
    ),
    Command(
        "sessions rm",
        "sessions.changes:remove_sessions",
        "Remove sessions, and KV that no other one shares.",
        "kvchat sessions rm demo 7f3a --yes",
        "kvchat sessions rm demo --branch main-2",
    ),
    Command(
        "sessions verify",
        "sessions.verify:verify_session",
        "Recompute a session's KV and compare.",
        "kvchat sessions verify --all demo",
    ),
    Command(
        "sessions convert",
        "sessions.convert:convert_session",
        "Store a session's KV in fewer bits, or exactly again.",
        "kvchat sessions convert demo int4    # what it saves and loses is told first",
        "kvchat sessions convert demo exact",
    ),
    Command(
        "pack make",
        "pack.make:make_pack",
        "Compute a document or system prompt once.",
        "kvchat pack make spec -f rfc.txt",
        "git log -p | kvchat pack make history --system 'Answer from this log.'",
    ),
    Command("pack list", "pack.pack:list_packs", "List all packs."),
    Command("pack show", "pack.pack:show_pack", "Print a pack's text."),
    Command(
        "pack rm",
        "pack.pack:remove_packs",
        "Remove packs, and let their blocks be evicted.",
        "kvchat pack rm spec",
    ),
    Command(
        "models list",
        "models:list_models",
        "List the models that are here, and whether they fit.",
        "kvchat models",
        "kvchat models list --json | jq -r '.[].name'",
    ),
    Command(
        "models show",
        "models:show_model",
        "Show one model: place, size, context, and whether it fits.",
        "kvchat models show starter",
    ),
    Command(
        "cache status",
        "cache.cache:cache_status",
        "Show what is stored on disk, by model.",
        "kvchat cache",
        "kvchat cache status --remote http://gpu-box:8000/v1    # and what that server reports",
    ),
    Command("cache verify", "sessions.verify:verify_cache", "Recompute all stored KV and compare."),
    Command("cache why", "cache.why:explain_answer", "Explain what an answer reused and computed."),
    Command(
        "cache watch",
        "cache.watch:watch_cache",
        "Follow the cache of a running kvchat.",
        "kvchat cache watch    # beside `kvchat serve` or a window, in another terminal",
        "kvchat cache watch --events | jq -r '[.kind, .reason] | @tsv'",
    ),
    Command(
        "cache gauge",
        "cache.gauge:gauge",
        "Measure what smaller cache formats lose.",
        "kvchat cache gauge demo    # on your own conversation",
        "kvchat cache gauge demo --keep 0.95 --layers int4 --svg demo.svg",
        "kvchat cache gauge    # on built-in questions, with the starter model",
    ),
    Command(
        "cache ls",
        "cache.cache:list_blocks",
        "List whose blocks are on disk.",
        "kvchat cache ls --json | jq '.[0]'",
    ),
    Command(
        "cache evict",
        "cache.cache:evict_blocks",
        "Remove KV from disk; conversations stay.",
        "kvchat cache evict demo",
        "kvchat cache evict --to 2GiB",
    ),
    Command("cache gc", "cache.cache:cache_gc", "Remove blocks that no session refers to."),
    Command(
        "cache path",
        "cache.cache:cache_path",
        "Print the directory of the blocks.",
        "rm -r $(kvchat cache path)    # costs time, never a word",
    ),
    Command(
        "config show",
        "config:show_config",
        "Show all settings, and where each comes from.",
        "kvchat config",
        "kvchat config show -m starter --json",
    ),
    Command(
        "config set",
        "config:set_value",
        "Write one setting into your configuration file.",
        "kvchat config set model starter",
        "kvchat config set sampling.temperature 0.7",
    ),
    Command("config edit", "config:edit_config", "Open your configuration file in an editor."),
    Command("config path", "config:show_path", "Print where your configuration file is."),
    Command("config schema", "config:show_schema", "Print what can be set, as a JSON schema."),
    Command("encrypt on", "encrypt:turn_on", "Encrypt all conversations, and all KV."),
    Command("encrypt off", "encrypt:turn_off", "Decrypt all conversations."),
    Command("encrypt change", "encrypt:change", "Change the passphrase."),
    Command("encrypt status", "encrypt:show_status", "Show what is encrypted."),
)


def examples_text(examples: tuple[str, ...]) -> str:
    """Return examples as a paragraph of a help text that is not wrapped."""
    return "\n\n\b\nExamples:\n" + "\n".join(f"  {line}" for line in examples) if examples else ""
