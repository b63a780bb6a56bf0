"""Switching between two idle conversations in the window: until a word of the answer is shown."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from benchmarks.random_llama import write_random_chat
from benchmarks.table import Row
from kvchat.app.composition import Kvchat, opened, start_worker
from kvchat.app.config import STARTER, Settings, read_settings
from kvchat.app.engine_swap import EngineSwap
from kvchat.app.interface_host import InterfaceHost
from kvchat.engine.api.config import EngineConfig
from kvchat.engine.api.sampling_params import SamplingParams
from kvchat.session.template.chat_template import ChatTemplate
from kvchat.session.tree import SessionId, Turn
from kvchat.ui.app import KvchatApp
from kvchat.ui.screens.chat import ChatScreen
from kvchat.ui.state.conversation_tab import message_turn
from kvchat.ui.widgets.answer import AnswerView
from kvchat.ui.widgets.answer_markdown import StaticText
from kvchat.ui.widgets.session_list import SessionList

ROUNDS = 10
LARGE_ROUNDS = 2
"""With the larger model, which prefills for most of a minute."""
NUM_TOKENS = 4096
SAMPLING = SamplingParams(temperature=0.0, max_tokens=4)
POLL_S = 0.001
IDLE_S = 0.3
"""Between the end of an answer and the next switch."""
PATIENCE_S = 300.0


def measure() -> list[Row]:
    with TemporaryDirectory(prefix="kvchat-bench-") as directory:
        home = Path(directory)
        large = str(write_random_chat(home / "large"))
        rows = _measure(home / "starter", STARTER, ROUNDS, "starter")
        return rows + _measure(home / "random", large, LARGE_ROUNDS, "layers of 360 M")


def _measure(home: Path, model: str, num_rounds: int, name: str) -> list[Row]:
    settings = replace(read_settings(environ={"KVCHAT_HOME": str(home)}, cwd=home.parent), model=model)
    settings = replace(settings, sampling=SAMPLING)
    kept = EngineConfig(cache_dir=home / "cache")
    kept = replace(kept, device_bytes=_talk(replace(settings, engine=kept)))
    stored = _switches(replace(settings, engine=kept), num_rounds)
    computed = _switches(replace(settings, engine=replace(kept, cache_dir=None)), num_rounds)
    return [
        *_rows(
            f"{name}, from choosing the conversation",
            [one[0] for one in stored],
            [one[0] for one in computed],
        ),
        *_rows(f"{name}, from sending the message", [one[1] for one in stored], [one[1] for one in computed]),
    ]


def _rows(since: str, stored: list[float], computed: list[float]) -> list[Row]:
    return [
        Row.of(f"{since}: {NUM_TOKENS:,} tokens are computed", "s", computed),
        Row.of(f"{since}: most come from disk", "s", stored),
        Row.of("ratio", "x", [a / b for a, b in zip(stored, computed, strict=True)], "at most 0.1"),
    ]


def _talk(settings: Settings) -> int:
    """Store two conversations, and return the bytes of a device pool that holds one of them, not both."""
    with opened(settings, start_worker) as kvchat:
        chat = kvchat.load(None, None)
        for number in (1986, 2011):
            conversation = chat.create(title=f"conversation {number}")
            for _ in chat.send(conversation, _long_text(f"In year {number} ", _length_of(chat.template))):
                ...
            assert len(conversation.token_ids or ()) >= NUM_TOKENS
            chat.close(conversation)
        snapshot = kvchat.engine.snapshot()
    assert snapshot is not None
    device = snapshot.tiers[0]
    num_bytes = device.used_bytes + device.cached_bytes
    # Of the starter half are blocks behind the windows, for which the pool need have no room.
    has_windows = any(group.kind == "sliding" for group in snapshot.groups)
    return num_bytes * 3 // 8 if has_windows else num_bytes * 5 // 8


def _long_text(beginning: str, length_of: Callable[[str], int]) -> str:
    sentence = "the river carried more water than in the year before, and the mill stood still. "
    text = beginning + sentence
    while (length := length_of(text)) < NUM_TOKENS:
        text += sentence * -(-(NUM_TOKENS - length) // length_of(sentence))
    return text


def _length_of(template: ChatTemplate) -> Callable[[str], int]:
    return lambda text: len(template.whole((), text))


def _switches(settings: Settings, num_rounds: int) -> list[tuple[float, float]]:
    with opened(settings, start_worker) as kvchat:
        return asyncio.run(_in_window(settings, kvchat, num_rounds))


async def _in_window(settings: Settings, kvchat: Kvchat, num_rounds: int) -> list[tuple[float, float]]:
    chat = kvchat.load(None, None)
    sessions = [summary.session.id for summary in kvchat.store.list_sessions()]
    app = KvchatApp(
        chat,
        kvchat.engine,
        InterfaceHost(settings, kvchat, chat, EngineSwap()),
        log_path=settings.paths.log_file,
    )
    async with app.run_test(size=(150, 40)):
        await _until(lambda: app.chat_screen.is_mounted and app.chat_screen.is_engine_ready)
        times = [await _switch(app.chat_screen, sessions[n % 2]) for n in range(num_rounds + 2)]
    return times[2:]


async def _switch(screen: ChatScreen, session_id: SessionId) -> tuple[float, float]:
    """Return how long until a word is shown: since the session was chosen and since the message was sent."""
    await asyncio.sleep(IDLE_S)
    chosen_s = perf_counter()
    screen.post_message(SessionList.Opened(session_id, None))
    await _until(lambda: _is_open(screen, session_id))
    before = screen.transcript.last_answer
    sent_s = perf_counter()
    screen.queue(message_turn("And then?"))
    await _until(lambda: _has_begun(screen, before))
    shown_s = perf_counter()
    await _until(lambda: _turn(screen).usage.prompt_tokens > 0 and not screen.turns.is_any_running)
    turn = _turn(screen)
    assert max(turn.loaded.disk, turn.usage.computed_tokens) > NUM_TOKENS // 2, "it was on the device still"
    return shown_s - chosen_s, shown_s - sent_s


def _turn(screen: ChatScreen) -> Turn:
    answer = screen.transcript.last_answer
    assert answer is not None
    return answer.turn


def _is_open(screen: ChatScreen, session_id: SessionId) -> bool:
    conversation = screen.turns.conversation
    is_drawn = all(worker.is_finished for worker in screen.workers if worker.group == "open")
    return is_drawn and conversation is not None and conversation.session.id == session_id


def _has_begun(screen: ChatScreen, before: AnswerView | None) -> bool:
    """Whether a word of a new answer is shown."""
    answer = screen.transcript.last_answer
    if answer is None or answer is before:
        return False
    return bool(answer.turn.text or any(shown.source for shown in answer.query(StaticText)))


async def _until(condition: Callable[[], bool]) -> None:
    end_s = perf_counter() + PATIENCE_S
    while not condition():
        assert perf_counter() < end_s
        await asyncio.sleep(POLL_S)
