"""What a turn produces is drawn at once where something new begins, in order, one after another."""

import asyncio
from collections.abc import Iterator
from threading import Event, Thread
from typing import Literal

import pytest
from textual.app import App
from textual.css.query import NoMatches

from kvchat.app.turn_thread import Produced, TurnEnded, TurnFailed, TurnThread
from kvchat.session.template.text_stream import Piece
from kvchat.ui.terminal.render_loop import RenderLoop
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.tui


class Window(App[None]):
    """Drains what does nothing but note that it is drained."""

    def __init__(self, interval_s: float) -> None:
        super().__init__()
        self.interval_s = interval_s
        self.num_at_once = self.most_at_once = 0
        self.drained = asyncio.Event()

    def on_mount(self) -> None:
        self.drain_turns = RenderLoop(self.screen, self.drain, self.interval_s)

    async def drain(self) -> None:
        self.num_at_once += 1
        self.most_at_once = max(self.most_at_once, self.num_at_once)
        await asyncio.sleep(0.001)
        self.num_at_once -= 1
        self.drained.set()

    async def next_drain(self) -> None:
        await asyncio.wait_for(self.drained.wait(), PATIENCE_S)
        self.drained.clear()


@pytest.mark.parametrize(
    ("interval_s", "num_wakes"), [(2 * PATIENCE_S, 1), (0.001, 50)], ids=["long before", "often"]
)
async def test_waking_it_does_not_wait_for_the_next_time_and_one_drains_after_another(
    interval_s: float, num_wakes: int
) -> None:
    window = Window(interval_s)
    async with window.run_test():
        window.drain_turns.start()
        for _ in range(10):
            threads = [Thread(target=window.drain_turns.wake) for _ in range(num_wakes)]
            for thread in threads:
                thread.start()
            await window.next_drain()
        assert window.most_at_once == 1


async def test_without_being_woken_it_drains_some_times_a_second_and_rests_when_it_is_stopped() -> None:
    window = Window(0.001)
    async with window.run_test() as pilot:
        window.drain_turns.start()
        for _ in range(3):
            await window.next_drain()
        window.drain_turns.stop()
        await pilot.pause(0.05)  # one may be under way
        window.drained.clear()
        await pilot.pause(0.05)
        assert not window.drained.is_set()


def test_a_turn_wakes_the_window_where_something_new_begins_and_not_for_every_token() -> None:
    feed, ended, num_wakes = TurnThread(), Event(), 0

    def produce() -> Iterator[Produced]:
        yield from (Piece(text="thought", reasoning=True) for _ in range(40))
        yield from (Piece(text="word") for _ in range(40))
        raise RuntimeError

    def wake() -> None:
        nonlocal num_wakes
        num_wakes += 1
        if num_wakes == 2:
            ended.set()

    feed.start(produce, wake)
    assert ended.wait(PATIENCE_S)
    taken = feed.take()
    assert [type(event) for event in taken[-2:]] == [TurnFailed, TurnEnded]
    assert len(taken) == 82
    assert num_wakes == 2


def test_a_turn_that_outlives_the_window_wakes_nobody_and_does_not_fail() -> None:
    window = Window(2 * PATIENCE_S)

    async def run() -> None:
        async with window.run_test():
            ...
        window.drain_turns.wake()
        await asyncio.sleep(0.05)
        assert not window.drained.is_set()

    asyncio.run(run())
    window.drain_turns.wake()


class Drawing(App[None]):
    """Draws into a widget that is not there: in an open window, or while it is closed or closes itself."""

    def __init__(self, state: Literal["open", "closed", "leaving"]) -> None:
        super().__init__()
        self.state = state
        self.begun = asyncio.Event()

    def on_mount(self) -> None:
        self.drain_turns = RenderLoop(self.screen, self.drain)

    async def drain(self) -> None:
        if self.state == "leaving":
            self.exit()
        self.begun.set()
        while self.state == "closed" and self.is_running:
            await asyncio.sleep(0.001)
        self.query_one("#gone")

    async def draw(self) -> None:
        async with self.run_test() as pilot:
            self.drain_turns.wake()
            await asyncio.wait_for(self.begun.wait(), PATIENCE_S)
            if self.state == "open":
                await pilot.pause()


@pytest.mark.parametrize("state", ["closed", "leaving"])
async def test_what_is_drawn_while_the_window_closes_is_let_go(state: Literal["closed", "leaving"]) -> None:
    window = Drawing(state)
    await window.draw()
    assert not window.is_running


async def test_a_widget_that_is_missing_in_an_open_window_is_a_fault() -> None:
    with pytest.raises(NoMatches):
        await Drawing("open").draw()
