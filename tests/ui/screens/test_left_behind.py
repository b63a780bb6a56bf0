"""What an earlier run has left: a damaged database, an answer that was never ended."""

import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from kvchat.session.database.silent_damage import damage_mark
from kvchat.session.store import SessionStore
from kvchat.session.template.chat_template import ChatTemplate
from kvchat.session.tree import MAIN
from kvchat.ui.widgets.session_list import SessionList
from tests.session.turns import exchange
from tests.ui.harness import Window
from tests.ui.stored import window_on

pytestmark = pytest.mark.tui

PAGE = 4096
ROOT = Path(__file__).parents[3]
WRITER = """
import sys
from pathlib import Path
from kvchat.session.store import SessionStore
from kvchat.session.tree import MAIN
from tests.session.turns import begin_answer

store = SessionStore(Path(sys.argv[1]))
_, answer = begin_answer(store, store.branch(store.create_session(title="Oslo").id, MAIN), "By boat?")
store.append_to_answer(answer.id, [1, 2], "By tra")
print("written", flush=True)
sys.stdin.read()
"""


def store_three(path: Path) -> None:
    with closing(SessionStore(path)) as store:
        for title in ("one", "two", "three"):
            branch = store.branch(store.create_session(title=title).id, MAIN)
            for number in range(8):
                branch = exchange(store, branch, f"{title} {number}" * 40, f"reply {number}" * 40)


def lose_a_page(path: Path) -> None:
    """Lose the page of the first messages, which the list is read from."""
    data = path.read_bytes()
    start = data.index(b"reply 0") // PAGE * PAGE
    path.write_bytes(data[:start] + bytes(PAGE) + data[start + PAGE :])


def mark_damage(path: Path) -> None:
    """Leave what a run leaves that has met damage."""
    lose_a_page(path)
    damage_mark(path).touch()


@pytest.mark.parametrize("damage", [lose_a_page, mark_damage])
async def test_a_damaged_database_is_restored_at_once_and_that_stays_on_the_screen(
    tmp_path: Path, template: ChatTemplate, damage: Callable[[Path], None]
) -> None:
    store_three(tmp_path / "sessions.db")
    damage(tmp_path / "sessions.db")
    async with window_on(tmp_path, template) as shown:
        await shown.until_shown("! sessions.db was damaged: 3 sessions and")
        await shown.until_shown("sessions.db.damaged-1")
        assert {line.name for line in shown.screen.query_one(SessionList).lines} == {
            "· one",
            "· two",
            "· three",
        }
        assert (tmp_path / "sessions.db.damaged-1").exists()
        shown.app.clear_notifications()
        await shown.pilot.press("f10")
        await shown.until_shown("warning sessions.db was damaged")
        await shown.pilot.press("escape")
        await shown.until_gone("was damaged")


def begin_and_kill(path: Path) -> None:
    command = [sys.executable, "-c", WRITER, str(path)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"written\n"
        process.kill()


async def until_mentioned(shown: Window) -> None:
    await shown.until_shown("! Interrupted: Oslo · f5 opens it · f10 dismisses")


async def test_a_killed_answer_is_mentioned_until_its_session_is_opened(
    tmp_path: Path, template: ChatTemplate
) -> None:
    begin_and_kill(tmp_path / "sessions.db")
    async with window_on(tmp_path, template) as shown:
        await until_mentioned(shown)
        await shown.pilot.press("f5")
        await shown.until(lambda: shown.questions == ["By boat?"])
        await shown.until_gone("Interrupted:")
        await shown.until_shown("interrupted · f5")
    async with window_on(tmp_path, template) as shown:
        await shown.until(lambda: bool(shown.screen.sessions.sessions.entries))
        await shown.until_at_rest()
        assert "Interrupted" not in shown.text


async def test_a_killed_answer_is_not_mentioned_where_its_session_is_opened_anyway(
    tmp_path: Path, template: ChatTemplate
) -> None:
    begin_and_kill(tmp_path / "sessions.db")
    with closing(SessionStore(tmp_path / "sessions.db")) as store:
        [session] = store.interrupted()
    async with window_on(tmp_path, template, session.id) as shown:
        await shown.until(lambda: shown.questions == ["By boat?"])
        await shown.until_at_rest()
        assert "Interrupted:" not in shown.screen.notices.text()


async def test_an_answer_that_another_window_writes_is_no_interrupted_one(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITER, str(tmp_path / "sessions.db")]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"written\n"
        with closing(SessionStore(tmp_path / "sessions.db")) as store:
            assert store.interrupted() == ()
        process.kill()
