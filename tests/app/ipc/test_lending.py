"""An engine in other hands: the same answers, and nobody harmed by a borrower that misbehaves."""

import os
import socket
import stat
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from kvchat.app.config import read_settings
from kvchat.app.ipc.client import EngineClientProxy, IpcHandle, borrow
from kvchat.app.ipc.server import EngineServer
from kvchat.app.ipc.socket_path import identity_of, make_room, socket_path, sockets
from kvchat.app.ipc.wire import VERSION, Channel
from kvchat.chat.conversation import BEHIND
from kvchat.chat.engine_client import EngineClient
from kvchat.chat.events import TurnFinished
from kvchat.chat.service import Chat
from kvchat.engine.api.config import EngineConfig
from kvchat.engine.api.events import FinishReason, RequestFinished, TokenEmitted
from kvchat.engine.api.request import Request
from kvchat.errors import EngineFailed, InvalidRequest, OutOfMemory, StorageError
from kvchat.session.store import SessionStore
from kvchat.session.template.chat_template import ChatTemplate
from kvchat.session.template.text_stream import Piece
from kvchat.session.tree import Finish
from tests.app.ipc.conftest import ANSWER, IDENTITY, lent
from tests.patience import PATIENCE_S, wait_until
from tests.scripted_engine import ScriptedEngine

pytestmark = pytest.mark.pure

PROMPT = Request(token_ids=(1, 2, 3))


def tokens_of(handle: IpcHandle) -> tuple[list[int], RequestFinished]:
    tokens: list[int] = []
    while True:
        for event in handle.take_events(5.0):
            if isinstance(event, TokenEmitted):
                tokens.append(event.token_id)
            elif isinstance(event, RequestFinished):
                return tokens, event


def told(engine: EngineClient, store: SessionStore, template: ChatTemplate) -> tuple[list[str], TurnFinished]:
    chat = Chat(store=store, template=template, engine=engine, model="scripted")
    events = list(chat.send(chat.create(), "Tell me."))
    assert isinstance(events[-1], TurnFinished)
    return [event.text for event in events if isinstance(event, Piece)], events[-1]


def test_a_borrowed_engine_answers_as_ones_own(
    borrowed: EngineClientProxy, engine: ScriptedEngine, template: ChatTemplate, tmp_path: Path
) -> None:
    with closing(SessionStore(tmp_path / "sessions.db")) as store:
        texts, last = told(borrowed, store, template)
        own_texts, own = told(engine, store, template)
    assert "".join(texts) == "".join(own_texts) != ""
    assert last.answer.token_ids == own.answer.token_ids
    assert (last.answer.usage, last.answer.finish) == (own.answer.usage, own.answer.finish)
    assert last.answer.fingerprint == own.answer.fingerprint


def test_the_lender_ends_an_answer_at_the_stop_strings_of_a_model_without_a_template(
    engine: ScriptedEngine, place: Path, tmp_path: Path, template: ChatTemplate
) -> None:
    plain = ChatTemplate(template.tokenizer, None)
    ids = plain.tokenizer.encode("Yes.\nUser: and you")
    talker = ScriptedEngine(lambda prompt: ids)
    lender = EngineServer(talker, plain, place, IDENTITY)
    assert lender.start()
    try:
        with closing(lent(place)) as engine_there, closing(SessionStore(tmp_path / "sessions.db")) as store:
            _, last = told(engine_there, store, plain)
    finally:
        lender.close()
    assert last.answer.text == "Yes."
    assert last.answer.finish is Finish.COMPLETE
    assert len(last.answer.token_ids or ()) < len(ids)


def test_a_sequence_of_somebody_else_cannot_be_continued_or_released(
    borrowed: EngineClientProxy, engine: ScriptedEngine
) -> None:
    theirs = engine.submit(PROMPT).sequence
    with pytest.raises(InvalidRequest, match="somebody else"):
        borrowed.submit(Request(token_ids=(1, 2, 3, 4), sequence=theirs))
    borrowed.release(theirs)
    borrowed.info()  # behind the release, in order
    assert theirs in engine.live


def test_whoever_sits_before_the_lender_goes_first(
    borrowed: EngineClientProxy, engine: ScriptedEngine
) -> None:
    engine.held_after = 1
    handle = borrowed.submit(PROMPT)
    handle.prioritise(0)
    handle.cancel()
    tokens_of(handle)
    borrowed.prioritise_sequence(handle.sequence, 0)
    borrowed.info()
    assert engine.requests[0].priority == BEHIND
    assert (engine.handles[0].priorities, engine.sequence_priorities) == ([], {})


def test_a_cancelled_request_ends_within_a_step(borrowed: EngineClientProxy, engine: ScriptedEngine) -> None:
    engine.held_after = len(ANSWER) // 4
    handle = borrowed.submit(PROMPT)
    wait_until(lambda: any(isinstance(event, TokenEmitted) for event in handle.take_events(1.0)))
    handle.cancel()
    tokens, last = tokens_of(handle)
    assert last.reason is FinishReason.CANCELLED
    assert len(tokens) < len(ANSWER) // 2


def test_a_borrower_that_vanishes_costs_its_own_request_alone(
    lender: EngineServer, engine: ScriptedEngine
) -> None:
    lost, other = lent(lender.path), lent(lender.path)
    with closing(other):
        idle = tokens_of(lost.submit(PROMPT))[1].sequence
        engine.held_after = len(ANSWER) // 4
        doomed = lost.submit(PROMPT)
        engine.held_after = None
        kept = other.submit(PROMPT)
        doomed.take_events(1.0)
        lost.close()
        wait_until(lambda: engine.handles[1].cancelled.is_set())
        wait_until(lambda: doomed.sequence not in engine.live and idle not in engine.live)
        assert tokens_of(kept)[0] == list(ANSWER)
        assert not engine.handles[2].cancelled.is_set()
    with pytest.raises(EngineFailed, match="ask again"):
        lost.submit(PROMPT)


def test_an_engine_that_dies_ends_the_borrowers_answer(
    borrowed: EngineClientProxy, engine: ScriptedEngine
) -> None:
    engine.dies_after = 3
    with pytest.raises(EngineFailed):
        tokens_of(borrowed.submit(PROMPT))


def test_an_engine_that_ends_for_want_of_memory_ends_the_borrowers_answer(
    borrowed: EngineClientProxy, engine: ScriptedEngine
) -> None:
    engine.at_token[3] = dies_of_memory
    with pytest.raises(EngineFailed):
        tokens_of(borrowed.submit(PROMPT))


def dies_of_memory() -> None:
    raise OutOfMemory("no memory is left")


def test_a_lender_that_closes_ends_the_borrowers_answer(
    lender: EngineServer, borrowed: EngineClientProxy, engine: ScriptedEngine
) -> None:
    engine.held_after = len(ANSWER) // 4
    handle = borrowed.submit(PROMPT)
    handle.take_events(1.0)
    lender.close()
    with pytest.raises(EngineFailed, match="ask again"):
        tokens_of(handle)
    assert borrowed.status().error is not None
    assert borrowed.snapshot() is None
    assert not lender.path.exists()


HOSTILE = [
    b"GET / HTTP/1.1\r\n\r\n",
    b"\x00\xff\n",
    b"[1, 2]\n",
    b"[" * 100_000 + b"\n",
    b'{"v": 1, "identity": "another"}\n',
    b'{"v": 99, "identity": "0123456789abcdef"}\n',
]
GREETED = [
    b'{"call": "fly", "value": {}}\n',
    b'{"call": "submit"}\n',
    b'{"id": 1, "call": "submit", "value": {"request": {"token_ids": [1]}}}\n',
    b'{"id": 1, "call": "submit", "value": {"request": {"token_ids": "abc"}, "prompt_len": "x"}}\n',
    b'{"call": "release", "value": {"sequence": [1]}}\n',
    b'{"id": [1], "call": "reusable_len", "value": {}}\n',
    b"no json\n",
    b'{"call": "cancel", "value": {}}',
]


@pytest.mark.parametrize("line", HOSTILE + GREETED)
def test_what_is_no_message_ends_that_connection_and_no_other(
    line: bytes, lender: EngineServer, borrowed: EngineClientProxy, engine: ScriptedEngine
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as raw:
        raw.connect(str(lender.path))
        if line in GREETED:
            raw.sendall(b'{"v": %d, "identity": "%s"}\n' % (VERSION, IDENTITY.encode()))
        raw.sendall(line)
        raw.shutdown(socket.SHUT_WR)
        raw.settimeout(PATIENCE_S)
        while raw.recv(65536):
            pass  # read to the end: the lender has closed
    assert tokens_of(borrowed.submit(PROMPT))[0] == list(ANSWER)


def test_nobody_is_lent_another_engine(lender: EngineServer) -> None:
    assert borrow(lender.path, "fedcba9876543210") is None
    assert borrow(lender.path.with_name("nothing.sock"), IDENTITY) is None


def test_a_second_lender_of_the_same_engine_stands_back(
    lender: EngineServer, engine: ScriptedEngine, template: ChatTemplate
) -> None:
    second = EngineServer(engine, template, lender.path, IDENTITY)
    assert not second.start()
    second.close()
    lent(lender.path).close()


def test_the_socket_of_a_dead_process_is_no_engine_and_in_nobodys_way(
    engine: ScriptedEngine, template: ChatTemplate, place: Path
) -> None:
    make_room(place)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
        dead.bind(str(place))
    assert place.is_socket()
    assert borrow(place, IDENTITY) is None
    lender = EngineServer(engine, template, place, IDENTITY)
    assert lender.start()
    lent(place).close()
    lender.close()


def test_socket_and_directory_are_the_owners_alone(lender: EngineServer) -> None:
    assert stat.S_IMODE(lender.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(lender.path.parent.stat().st_mode) == 0o700


def test_a_directory_into_which_others_reach_is_not_used(place: Path, lender: EngineServer) -> None:
    place.parent.chmod(0o755)
    assert borrow(place, IDENTITY) is None
    with pytest.raises(StorageError, match="chmod 700"):
        make_room(place)
    place.parent.chmod(0o700)
    link = place.parent.parent / "link"
    link.symlink_to(place.parent)
    with pytest.raises(StorageError):
        make_room(link / place.name)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
def test_another_user_is_cut_off_where_modes_would_let_him_in(
    lender: EngineServer, engine: ScriptedEngine
) -> None:
    for path in (lender.path, lender.path.parent, lender.path.parent.parent):
        path.chmod(0o777)
    program = (
        "import os, socket, sys; os.setgroups([]); os.setuid(65534)\n"
        "s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])\n"
        "try:\n"
        f'    s.sendall(b\'{{"v": {VERSION}, "identity": "{IDENTITY}"}}\\n\')\n'
        "    print(s.recv(100))\n"
        "except OSError: print(b'')\n"
    )
    command = [sys.executable, "-c", program, str(lender.path)]
    assert subprocess.run(command, capture_output=True, check=True).stdout == b"b''\n"


@pytest.mark.parametrize("excess", range(-17, 3))
def test_sockets_of_a_long_path_lie_elsewhere_where_those_who_look_for_any_find_them(excess: int) -> None:
    """What decides is the same for a socket and for whoever looks for all of them."""
    runtime = Path("/run") / ("r" * (100 - len("/run//") - len("0123456789abcdef.sock") + excess))
    found = socket_path(runtime, "0123456789abcdef")
    assert len(str(found)) <= 100
    assert (found.parent == runtime) == (excess <= 0)
    if found.parent != runtime:
        make_room(found)
        found.touch()
        try:
            assert sockets(runtime) == [found]
            assert sockets(runtime / "other") == [], "those of another home are not mixed up with them"
        finally:
            found.unlink()
            found.parent.rmdir()


def test_an_identity_is_the_files_and_what_shapes_kv_and_not_the_budget(tmp_path: Path) -> None:
    """Trap 1: same directory, other weights."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "model.safetensors").write_bytes(b"a" * 100)
    config = EngineConfig(cache_dir=tmp_path / "cache")
    one = identity_of(model, config)
    assert identity_of(model, EngineConfig(cache_dir=tmp_path / "cache", device_bytes=5, threads=2)) == one
    assert identity_of(tmp_path / "model" / ".." / "model", config) == one
    others = {
        identity_of(model, EngineConfig(cache_dir=None)),
        identity_of(model, EngineConfig(cache_dir=tmp_path / "cache", weights="int8")),
        identity_of(model, EngineConfig(cache_dir=tmp_path / "cache", cache_format="fp8")),
        identity_of(model, EngineConfig(cache_dir=tmp_path / "cache", block_size=32)),
        identity_of(model, EngineConfig(cache_dir=tmp_path / "cache", adapter=model)),
    }
    (model / "model.safetensors").write_bytes(b"b" * 101)
    others.add(identity_of(model, config))
    assert len(others) == 6
    assert one not in others


def test_only_sessions_of_the_same_store_share_an_engine_that_saves(tmp_path: Path) -> None:
    """Another store's sessions are unknown to the lender, which would save nothing for them."""
    there, elsewhere = (read_settings({"paths.data_dir": tmp_path / name}).engine for name in ("one", "two"))
    assert identity_of(tmp_path, there) != identity_of(tmp_path, elsewhere)
    forgetful, another = (replace(engine, cache_dir=None) for engine in (there, elsewhere))
    assert identity_of(tmp_path, forgetful) == identity_of(tmp_path, another)


def test_another_kvchat_looks_for_another_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = EngineConfig(cache_dir=tmp_path)
    one = identity_of(tmp_path, config)
    monkeypatch.setattr("importlib.metadata.version", lambda name: "99.0")
    assert identity_of(tmp_path, config) != one


def test_sequences_of_a_request_belong_to_the_borrower(
    borrowed: EngineClientProxy, engine: ScriptedEngine
) -> None:
    handle = borrowed.submit(PROMPT)
    tokens_of(handle)
    ids = tuple(engine.live[handle.sequence])
    assert borrowed.reusable_len((*ids, 1)) == len(ids)
    borrowed.release(handle.sequence)
    wait_until(lambda: handle.sequence not in engine.live)


def test_nobody_waits_for_ever_for_a_lender_that_was_stopped() -> None:
    here, there = socket.socketpair()
    borrowed, stopped = EngineClientProxy(Channel(here), drain_s=0.05), Channel(there)
    with pytest.raises(EngineFailed, match="does not answer"):
        borrowed.drain_saves()
    stopped.end()
    borrowed.close()
