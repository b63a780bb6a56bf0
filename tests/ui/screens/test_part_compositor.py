"""What is drawn, of a change or of all, is what Textual would draw, and asks no widget for what is hidden."""

import random

import pyte
import pytest
from textual._compositor import Compositor, CompositorUpdate
from textual.app import App, ComposeResult
from textual.geometry import Region
from textual.screen import Screen
from textual.strip import Strip
from textual.widgets import Static

from kvchat.ui.screens.part_compositor import PartCompositor

pytestmark = pytest.mark.tui

SIZE = (60, 20)
LETTERS = "abc déf \n"
PLACES = {
    "left": "width: 20; height: 8;",
    "right": "width: 31; height: 9; offset: 25 2; border: round red;",
    "over": "width: 24; height: 6; offset: 11 5; background: blue; layer: above;",
    "edge": "width: 20; height: 7; offset: 50 16; background: green 40%;",
    "above": "width: 13; height: 12; offset: 30 -4; border: solid yellow; layer: above;",
    "low": "width: 60; height: 3; offset: 0 17; color: red;",
}


class Box(Static):
    """A widget that notes which of its lines it is asked for."""

    asked: list[Region]

    def on_mount(self) -> None:
        self.asked = []

    def render_lines(self, crop: Region) -> list[Strip]:
        self.asked = [*getattr(self, "asked", []), crop]
        return super().render_lines(crop)


class Parts(Screen[None]):
    CSS = "Parts { layers: base above; overflow: hidden; } " + " ".join(
        f"#{name} {{ position: absolute; {style} }}" for name, style in PLACES.items()
    )

    def __init__(self) -> None:
        super().__init__()
        self._compositor = PartCompositor()

    def compose(self) -> ComposeResult:
        for name in PLACES:
            yield Box(name * 40, id=name)


class Shown(App[None]):
    """Feeds a terminal what its screen says has changed."""

    terminal: pyte.Screen

    def on_mount(self) -> None:
        self.push_screen(Parts())

    def watch_display(self) -> None:
        """From now on, beginning with all of it as Textual draws it."""
        self.clear()
        self.feed(Compositor.render_full_update(self.screen._compositor))

    def clear(self) -> None:
        self.terminal = pyte.Screen(*SIZE)
        self.stream = pyte.Stream(self.terminal)

    def feed(self, update: CompositorUpdate) -> None:
        self.stream.feed(update.render_segments(self.console).replace("\n", "\r\n"))

    def drawn(self) -> list[list[pyte.screens.Char]]:
        return [[self.terminal.buffer[y][x] for x in range(SIZE[0])] for y in range(SIZE[1])]


@pytest.mark.parametrize("seed", range(6))
async def test_what_is_drawn_of_changes_is_what_drawing_everything_shows(seed: int) -> None:
    chosen = random.Random(seed)
    app = Shown()
    async with app.run_test(size=SIZE) as pilot:
        await pilot.pause()
        app.watch_display()
        compositor = app.screen._compositor
        for _ in range(20):
            boxes = [app.screen.query_one(f"#{name}", Box) for name in PLACES]
            changed = chosen.sample(boxes, chosen.randrange(1, 4))
            for box in changed:
                words = "".join(chosen.choices(LETTERS, k=chosen.randrange(200)))
                box.update(words, layout=False)
                left, top = chosen.randrange(20), chosen.randrange(8)
                box.refresh(Region(left, top, chosen.randrange(1, 20), chosen.randrange(1, 5)))
            compositor.update_widgets(set(changed))
            update = compositor.render_partial_update()
            assert update is not None
            app.feed(update)
        parts = app.drawn()
        app.watch_display()
        assert parts == app.drawn()


async def test_all_of_the_screen_is_what_textual_draws_and_what_lies_behind_is_not_asked() -> None:
    app = Shown()
    async with app.run_test(size=SIZE) as pilot:
        await pilot.pause()
        boxes = {name: app.screen.query_one(f"#{name}", Box) for name in PLACES}
        boxes["over"].styles.offset = (0, 0)
        for height, in_front in ((6, set(PLACES) - {"left"}), (20, {"over", "above"})):
            boxes["over"].styles.width, boxes["over"].styles.height = 40 if height == 6 else 60, height
            boxes["left"].styles.height = 6
            await pilot.pause()
            app.watch_display()
            expected = app.drawn()
            for box in boxes.values():
                box.asked = []
            app.clear()
            app.feed(app.screen._compositor.render_full_update())
            assert app.drawn() == expected
            assert {name for name, box in boxes.items() if box.asked} == in_front


async def test_a_line_that_changes_asks_the_widget_in_front_for_it_and_no_other() -> None:
    app = Shown()
    async with app.run_test(size=SIZE) as pilot:
        await pilot.pause()
        app.watch_display()
        boxes = {name: app.screen.query_one(f"#{name}", Box) for name in PLACES}
        for box in boxes.values():
            box.asked = []
        compositor = app.screen._compositor
        compositor._dirty_regions = {Region(12, 6, 4, 1), Region(0, 19, 9, 1)}
        assert compositor.render_partial_update() is not None
        assert {name: box.asked for name, box in boxes.items() if box.asked} == {
            "over": [Region(0, 1, 24, 1)],
            "low": [Region(0, 2, 60, 1)],
        }


async def test_what_lies_outside_the_screen_draws_nothing() -> None:
    app = Shown()
    async with app.run_test(size=SIZE) as pilot:
        await pilot.pause()
        compositor = app.screen._compositor
        compositor._dirty_regions = {Region(70, 2, 5, 5), Region(3, 25, 9, 1)}
        assert compositor.render_partial_update() is None
