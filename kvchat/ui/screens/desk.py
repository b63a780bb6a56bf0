"""What commands, courses and sessions ask of the screen they work on, whatever it shows."""

from typing import Any

from textual.screen import ModalScreen, Screen

from kvchat.ui.desk import Work
from kvchat.ui.screens.confirm import ConfirmScreen
from kvchat.ui.screens.note import NoteScreen


class DeskScreen(Screen[None]):
    """A screen that tells, asks, and runs what may wait."""

    def tell(self, message: str, *, title: str = "") -> None:
        self.notify(message, title=title, timeout=6, markup=False)

    def warn(self, message: str) -> None:
        self.notify(message, severity="warning", timeout=8, markup=False)

    def fail(self, message: str, *, title: str = "") -> None:
        self.notify(message, title=title, severity="error", timeout=15, markup=False)

    async def confirm(self, question: str, consequence: str) -> bool:
        """Ask, and wait for the answer; inside a worker."""
        return await self.app.push_screen_wait(ConfirmScreen(question, consequence))

    async def ask(self, screen: ModalScreen[Any]) -> Any:
        """Show a screen and wait for what it is dismissed with; inside a worker."""
        return await self.app.push_screen_wait(screen)

    def note(self, title: str, text: str) -> None:
        self.app.push_screen(NoteScreen(title, text))

    def begin(self, work: Work, *, group: str = "") -> None:
        """Run something that may wait. Work of a group replaces what runs in it."""
        self.run_worker(work, group=group or "course", exclusive=bool(group))  # type: ignore[arg-type]
