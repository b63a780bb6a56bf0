"""Conversations across processes: one is killed in the middle of an answer, two write one branch."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kvchat.chat.service import Chat
from kvchat.engine.api.sampling_params import SamplingParams
from kvchat.session.store import SessionStore
from kvchat.session.template.chat_template import ChatTemplate
from kvchat.session.tree import Finish, path_token_ids
from tests.scripted_engine import ScriptedEngine
from tests.tiny_models import STARTER, write_model

pytestmark = [pytest.mark.pure, pytest.mark.long]

ROOT = Path(__file__).parent.parent
REPLY = "Grüße! " + " ".join(f"word{at}" for at in range(120))

# Answers one question and prints every piece of the answer as it is shown.
CHILD = """
import sys
from pathlib import Path
from kvchat.chat.service import Chat, TextDelta, TurnStarted
from kvchat.engine.api.sampling_params import SamplingParams
from kvchat.session.store import SessionStore
from kvchat.session.template.chat_template import ChatTemplate
from tests.scripted_engine import ScriptedEngine

home, reply, question = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
template = ChatTemplate.from_dir(home / "model")
ids = [*template.tokenizer.encode(reply), min(template.end_ids)]
engine = ScriptedEngine(lambda prompt: ids)
engine.step_s = 0.002
store = SessionStore(home / "sessions.db")
chat = Chat(store=store, template=template, engine=engine, model="tiny")
conversation = chat.open("demo")
print("opened", flush=True)
sys.stdin.readline()
for event in chat.send(conversation, question, SamplingParams(max_tokens=None)):
    if isinstance(event, TextDelta):
        sys.stdout.write(event.text)
        sys.stdout.flush()
chat.close(conversation)
store.close()
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    write_model(tmp_path / "model", STARTER)
    store = SessionStore(tmp_path / "sessions.db")
    store.create_session(title="demo")
    store.close()
    return tmp_path


def start(home: Path, question: str) -> subprocess.Popen[bytes]:
    """Start a process that has opened the conversation and waits for a line before it asks."""
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(home), REPLY, question],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"opened\n"
    return process


def ask(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.write(b"\n")
    process.stdin.flush()


def kill_mid_answer(process: subprocess.Popen[bytes], num_bytes: int) -> bytes:
    """Read some of the answer, kill the process, and return all that it had printed."""
    assert process.stdout is not None
    printed = b""
    while len(printed) < num_bytes:
        printed += os.read(process.stdout.fileno(), 4096)
    process.send_signal(signal.SIGKILL)
    printed += process.stdout.read()
    process.wait()
    close(process)
    return printed


def close(process: subprocess.Popen[bytes]) -> None:
    for stream in (process.stdin, process.stdout):
        assert stream is not None
        stream.close()


def test_every_word_that_a_killed_process_had_shown_is_stored_and_the_answer_goes_on(home: Path) -> None:
    process = start(home, "Hello")
    ask(process)
    printed = kill_mid_answer(process, 60).decode()
    template = ChatTemplate.from_dir(home / "model")
    full = [*template.tokenizer.encode(REPLY), min(template.end_ids)]
    store = SessionStore(home / "sessions.db")
    engine = ScriptedEngine(lambda prompt: full[len(prompt) - num_asked :])
    chat = Chat(store=store, template=template, engine=engine, model="tiny")
    conversation = chat.open("demo")
    asked, kept = conversation.turns
    num_asked = len(asked.token_ids or ())
    assert asked.text == "Hello"
    assert kept.finish is Finish.INTERRUPTED
    assert kept.is_open
    assert not kept.damaged
    assert kept.text.startswith(printed)
    assert kept.text != REPLY
    list(chat.continue_answer(conversation, SamplingParams(max_tokens=None)))
    assert conversation.turns[-1].text == REPLY
    assert conversation.turns[-1].token_ids == tuple(full)
    store.close()


def test_a_reader_sees_the_answer_of_another_process_and_leaves_it_alone(home: Path) -> None:
    process = start(home, "Hello")
    ask(process)
    assert process.stdout is not None
    assert os.read(process.stdout.fileno(), 1)
    store = SessionStore(home / "sessions.db")
    session = store.find("demo")
    leaf = store.branch(session.id, "main").leaf_id
    assert store.settle(session.id) == 0
    assert store.turns_to(leaf)[-1].finish is Finish.PARTIAL
    kill_mid_answer(process, 1)
    assert store.turns_to(leaf)[-1].finish is Finish.INTERRUPTED
    assert store.settle(session.id) == 1
    store.close()


def test_two_processes_on_one_branch_make_two_branches_and_lose_nothing(home: Path) -> None:
    processes = [start(home, question) for question in ("left", "right")]
    for process in processes:
        ask(process)
    answers = []
    for process in processes:
        assert process.stdout is not None
        answers.append(process.stdout.read().decode())
        assert process.wait() == 0
        close(process)
    assert answers == [REPLY, REPLY]
    store = SessionStore(home / "sessions.db")
    branches = store.branches(store.find("demo").id)
    assert {branch.name for branch in branches} == {"main", "main-2"}
    paths = [store.turns_to(branch.leaf_id) for branch in branches]
    assert {tuple(turn.text for turn in path) for path in paths} == {("left", REPLY), ("right", REPLY)}
    for path in paths:
        assert path[-1].finish is Finish.COMPLETE
        assert path_token_ids(path) is not None
    store.close()
    assert list((home / "writers").iterdir()) == []


def test_many_processes_may_create_the_database_at_once(tmp_path: Path) -> None:
    child = (
        "import sys; from pathlib import Path; from kvchat.session.store import SessionStore;"
        "sys.stdin.readline(); SessionStore(Path(sys.argv[1])).create_session(title=sys.argv[2])"
    )
    path = tmp_path / "new" / "sessions.db"
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", child, str(path), str(at)], cwd=ROOT, stdin=subprocess.PIPE
        )
        for at in range(4)
    ]
    for process in processes:
        process.communicate(b"\n")
    assert [process.returncode for process in processes] == [0] * 4
    store = SessionStore(path)
    assert {one.session.title for one in store.list_sessions()} == {"0", "1", "2", "3"}
    store.close()
