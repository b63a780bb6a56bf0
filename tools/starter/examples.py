"""The example bundles of `sessions/`, made with the starter model: `python -m tools.starter.examples`.

Whatever the model answers is kept, so the examples can be made again with every new model. Times are those of
no clock: making them twice on one machine gives the same files.
"""

import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from kvchat.app.composition import opened, start_worker
from kvchat.app.config import Settings, read_settings
from kvchat.app.export.exporter import SUFFIX, write_session
from kvchat.app.open_store import open_store
from kvchat.chat.conversation import Conversation
from kvchat.chat.events import TurnFinished
from kvchat.chat.service import Chat
from kvchat.engine.api.events import Timings
from kvchat.engine.api.sampling_params import SamplingParams
from kvchat.engine.models.locate import STARTER
from kvchat.errors import EngineFailed
from kvchat.session.bundle.writer import Written, new_file

DIRECTORY = Path(__file__).parent.parent.parent / "sessions"
_GREEDY = SamplingParams(max_tokens=64, temperature=0.0)
_EPOCH = 1_760_000_000.0
"""The moment at which every example began."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A conversation: the questions of its first branch, and of one that leaves it behind an answer."""

    title: str
    questions: Sequence[str]
    aside: Sequence[str] = ()


EXAMPLES = (
    Example(title="first-steps", questions=("Hello! My name is Ana.", "What is a KV cache?")),
    Example(
        title="two-ways",
        questions=("My dog is called Rex.", "What is a block?"),
        aside=("What is my dog called?",),
    ),
)


def make_examples(directory: Path) -> list[Path]:
    """Hold every example conversation anew and write its bundle; return the files."""
    directory.mkdir(exist_ok=True)
    made = []
    with TemporaryDirectory(prefix="kvchat-") as home:
        flags = {"engine.device": "cpu", "model": STARTER}
        settings = read_settings(flags, environ={"KVCHAT_HOME": home})
        _hold_conversations(settings)
        for example in EXAMPLES:
            path = directory / (example.title + SUFFIX)
            written = _write(settings, example, path)
            figures = f"{written.num_turns} turns, {written.num_blocks} blocks, {written.num_bytes:,} bytes"
            print(f"{path.name}: {figures}")
            made.append(path)
    return made


def _hold_conversations(settings: Settings) -> None:
    with opened(settings, start_worker) as kvchat:
        chat = kvchat.load(None, None)
        for example in EXAMPLES:
            conversation = chat.create(title=example.title)
            _ask(chat, conversation, example.questions[:1])
            beginning = conversation.turns[-1].id
            _ask(chat, conversation, example.questions[1:])
            if example.aside:
                fork = chat.fork(conversation, beginning)
                _ask(chat, fork, example.aside)
                chat.close(fork)
            chat.close(conversation)


def _ask(chat: Chat, conversation: Conversation, questions: Sequence[str]) -> None:
    for question in questions:
        for event in chat.send(conversation, question, _GREEDY):
            if isinstance(event, TurnFinished) and event.error:
                raise EngineFailed(event.error)


def _write(settings: Settings, example: Example, path: Path) -> Written:
    with closing(open_store(settings)) as store:
        session = store.find(example.title)
        branches = sorted(store.branches(session.id), key=lambda branch: branch.name)
        turns = store.all_turns(session.id)
    with new_file(path) as write:
        return write_session(
            settings,
            replace(session, created_at=_EPOCH, updated_at=_EPOCH, active_branch=branches[0].name),
            [replace(branch, updated_at=_EPOCH) for branch in branches],
            [replace(turn, created_at=_EPOCH, timings=Timings()) for turn in turns],
            write,
        )


if __name__ == "__main__":
    make_examples(Path(sys.argv[1]) if len(sys.argv) > 1 else DIRECTORY)
