"""Long conversations and many sessions in the window, without an engine: opening, scrolling, the list."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, process_time

from textual.events import Key, Paste
from textual.pilot import Pilot

from benchmarks.clock import Cost
from benchmarks.table import Row
from kvchat.app.composition import opened
from kvchat.app.config import Settings, read_settings
from kvchat.app.engine_swap import EngineSwap
from kvchat.app.interface_host import InterfaceHost
from kvchat.session.store import Outcome, SessionStore
from kvchat.session.template import prompts
from kvchat.session.template.chat_template import ChatTemplate
from kvchat.session.tree import MAIN, Finish, SessionId, Turn
from kvchat.ui.app import KvchatApp
from kvchat.ui.widgets.session_list import SessionList
from kvchat.ui.widgets.transcript import QuestionView, Transcript

NUM_TURNS = 2000
NUM_SESSIONS = 500
NUM_PAGES = 12
SIZE = (140, 40)
POLL_S = 0.002
PATIENCE_S = 60.0
REPLY = """There are **two** ways: by train, which takes seven hours, and by boat, which takes a night.

- the train leaves at `08:05` and arrives in time for dinner
- the boat has a restaurant, and *cabins* with a window
"""


def measure_sessions(home: Path, *, num_rounds: int) -> list[Row]:
    home.mkdir(parents=True)
    settings = read_settings(environ={"KVCHAT_HOME": str(home)}, cwd=home)
    with opened(settings, EngineSwap()) as kvchat:
        template = kvchat.load(None, None).template
        long_id = _write_long(kvchat.store, template)
        for number in range(NUM_SESSIONS):
            kvchat.store.create_session(title=f"conversation {number}")
    measured = [asyncio.run(_in_window(settings, long_id)) for _ in range(num_rounds)]
    opens, pages, lists, filters = (list(values) for values in zip(*measured, strict=True))
    slowest = [max(costs, key=lambda cost: cost.wall_s) for costs in pages]
    return [
        *_rows(f"open a conversation of {NUM_TURNS:,} turns", opens, "below 0.5 s, until it is laid out"),
        *_rows("scroll it up by a page", [cost for costs in pages for cost in costs], "with earlier turns"),
        *_rows("  the slowest page of a round", slowest),
        *_rows(f"show {NUM_SESSIONS} sessions", lists),
        *_rows("find one of them by a word", filters, "until the list is made"),
    ]


def _rows(name: str, costs: list[Cost], note: str = "") -> list[Row]:
    return [
        Row.of(name, "ms", [1e3 * cost.wall_s for cost in costs], note),
        Row.of(f"  {name.strip()}: processor", "ms", [1e3 * cost.cpu_s for cost in costs]),
    ]


def _write_long(store: SessionStore, template: ChatTemplate) -> SessionId:
    session = store.create_session(title="long")
    branch = store.branch(session.id, MAIN)
    path: tuple[Turn, ...] = ()
    for number in range(NUM_TURNS // 2):
        asked = prompts.question(template, session, path[-2:], f"How do I get to town {number}?")
        answer = prompts.empty_answer(template, asked)
        branch = store.add_turns(branch, (asked, answer))
        store.append_to_answer(answer.id, template.tokenizer.encode(REPLY), REPLY)
        path = (*path[-2:], asked, store.finish_answer(answer.id, Outcome(finish=Finish.COMPLETE)))
    return session.id


async def _in_window(settings: Settings, long_id: SessionId) -> tuple[Cost, list[Cost], Cost, Cost]:
    engine = EngineSwap()  # never started: what is measured waits for no model
    with opened(settings, engine) as kvchat:
        chat = kvchat.load(None, None)
        host = InterfaceHost(settings, kvchat, chat, engine)
        app = KvchatApp(chat, kvchat.engine, host, None, log_path=settings.paths.log_file)
        async with app.run_test(size=SIZE) as pilot:
            screen = app.chat_screen
            await _until(lambda: screen.is_mounted and len(screen.sessions.sessions.entries) > NUM_SESSIONS)
            await pilot.pause(0.5)
            opened_s = await _timed(
                lambda: screen.post_message(SessionList.Opened(long_id, None)),
                lambda: _is_laid_out(screen.transcript, f"town {NUM_TURNS // 2 - 1}?"),
            )
            await pilot.pause(0.3)
            pages = [await _page_up(pilot, screen.transcript) for _ in range(NUM_PAGES)]
            listed = screen.query_one(SessionList)
            shown_s = await _timed(
                screen.show_sessions_pane, lambda: listed.has_focus and listed.option_count > NUM_SESSIONS
            )
            await pilot.press("ctrl+f")
            found_s = await _timed(
                lambda: pilot.app.post_message(Paste("conversation 123")), lambda: listed.option_count == 1
            )
            return opened_s, pages, shown_s, found_s


async def _page_up(pilot: Pilot[None], transcript: Transcript) -> Cost:
    before = transcript.scroll_offset.y, len(transcript.views)
    cost = await _timed(
        lambda: transcript.app.post_message(Key("pageup", None)),
        lambda: (transcript.scroll_offset.y, len(transcript.views)) != before,
    )
    await pilot.pause(0.5)  # it glides
    return cost


def _is_laid_out(transcript: Transcript, text: str) -> bool:
    """Whether the last question says that, and has its place on the screen."""
    questions = [view for view in transcript.views if isinstance(view, QuestionView)]
    return bool(questions) and text in questions[-1].turn.text and questions[-1].region.height > 0


async def _timed(begin: Callable[[], object], is_done: Callable[[], bool]) -> Cost:
    wall_s, cpu_s = perf_counter(), process_time()
    begin()
    await _until(is_done)
    return Cost(wall_s=perf_counter() - wall_s, cpu_s=process_time() - cpu_s)


async def _until(is_so: Callable[[], bool]) -> None:
    deadline_s = perf_counter() + PATIENCE_S
    while not is_so():
        assert perf_counter() < deadline_s, "waited in vain"
        await asyncio.sleep(POLL_S)
