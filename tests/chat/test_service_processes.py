"""Conversations across processes: one is killed in the middle of an answer, two write one branch."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kvchat.session.store import SessionStore
from kvchat.session.tree import Finish, path_token_ids
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
