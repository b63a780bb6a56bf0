"""The sessions on the left: found, folded, pinned, and many of them."""

from pathlib import Path

import pytest
from textual import events

from kvchat.app.interface_types import KvOnDisk
from kvchat.engine.api.ids import SequenceId
from kvchat.ui.screens.choices import ConfirmScreen, LineScreen
from kvchat.ui.screens.help import HelpScreen
from kvchat.ui.widgets.list_search_field import FindField
from kvchat.ui.widgets.session_list import SessionList
from tests.ui.harness import Window, window
from tests.ui.scripted import ScriptedChat
from tests.ui.scripted_engine import HeldTokens, ScriptedEngine

pytestmark = pytest.mark.tui


def three(chat: ScriptedChat) -> None:
    chat.add_session("Bergen", [("Rain?", "Yes, and the ferry is late.")])
    chat.add_session("Oslo", [("By boat?", "Yes.")])
    chat.add_session("kv notes", [("What is a tail?", "The last block.")])


def names(shown: Window) -> list[str]:
    return [line.name for line in shown.screen.query_one(SessionList).lines]


async def test_typing_in_the_field_leaves_only_titles_that_match_until_escape(tmp_path: Path) -> None:
    async with window(tmp_path, prepare=three) as shown:
        await shown.until(lambda: len(names(shown)) == 3)
        await shown.pilot.press("ctrl+f")
        await shown.type("nothing has this")
        await shown.until(lambda: names(shown) == [])
        await shown.pilot.press("escape")
        await shown.until(lambda: len(names(shown)) == 3)
        assert shown.app.focused is shown.screen.prompt
        await shown.pilot.press("ctrl+f")
        await shown.type("osl")
        await shown.until(lambda: names(shown) == ["· Oslo"])
        await shown.pilot.press("enter")
        await shown.until(lambda: shown.questions == ["By boat?"])
        await shown.until(lambda: len(names(shown)) == 3)
        assert shown.app.focused is shown.screen.prompt


async def test_words_of_a_message_find_it_and_open_its_branch_and_a_search_in_vain_says_so(
    tmp_path: Path,
) -> None:
    async with window(tmp_path, prepare=three) as shown:
        await shown.say("/search zeppelin")
        await shown.until_shown("no title and no message")
        await shown.pilot.press("down", "enter", "escape")
        await shown.until(lambda: len(names(shown)) == 3)
        await shown.say("/search ferry late")
        await shown.until_shown("“Yes, and the")
        assert names(shown)[0] == "· Bergen"
        assert "Oslo" not in shown.text
        await shown.pilot.press("down", "down", "enter")
        await shown.until(lambda: shown.questions == ["Rain?"])


async def test_branches_fold_into_their_session(tmp_path: Path) -> None:
    async with window(tmp_path, prepare=three, initial="Oslo") as shown:
        await shown.until(lambda: shown.questions == ["By boat?"])
        await shown.say("/fork by train")
        await shown.until(lambda: len(names(shown)) == 5)
        await shown.pilot.press("f2")
        listed = shown.screen.query_one(SessionList)
        listed.highlighted = names(shown).index("● Oslo")
        await shown.pilot.press("left")
        await shown.until(lambda: "● Oslo ▸2" in names(shown))
        assert len(names(shown)) == 3
        await shown.pilot.press("right")
        await shown.until(lambda: len(names(shown)) == 5)


async def test_marks_and_bytes_follow_the_engine_while_the_store_is_as_it_was(tmp_path: Path) -> None:
    async with window(tmp_path, prepare=three, size=(170, 40)) as shown:
        oslo = shown.chat.open("Oslo").session.id
        shown.engine.held["here"] = HeldTokens(owner="s1", num_tokens=300, num_shared=128)
        shown.engine.held["behind"] = HeldTokens(owner=oslo, num_tokens=0)
        await shown.until(lambda: names(shown) == ["· kv notes", "◐ Oslo", "○ Bergen"])
        [bergen] = [line for line in shown.text.splitlines() if "○ Bergen" in line]
        assert "▒" in bergen.partition("│")[0]
        await shown.say("/switch Bergen")
        await shown.until(lambda: "● Bergen" in names(shown))
        await shown.say("/fork by train")
        await shown.until(lambda: "  └ ● by train" in names(shown))
        shown.screen.turns.conversation.engine_sequence = SequenceId(0)
        shown.engine.held.clear()
        shown.engine.held["here"] = HeldTokens(owner="s1", num_tokens=600, num_shared=300)
        shown.engine.held["behind"] = HeldTokens(owner=oslo, num_tokens=300, running=True)
        await shown.until(lambda: "▸ Oslo" in names(shown))
        shown.engine.held["behind"] = HeldTokens(owner=oslo, num_tokens=300)
        await shown.until(lambda: "○ Oslo" in names(shown))
        [branch] = [line for line in shown.text.splitlines() if "└ ● by train" in line]
        assert "960K" in branch.partition("│")[0]


async def test_what_stored_sessions_have_on_disk_is_counted_also_after_an_answer(tmp_path: Path) -> None:
    async with window(tmp_path, prepare=three, size=(170, 40)) as shown:
        oslo, notes = (shown.chat.open(title).session.id for title in ("Oslo", "kv notes"))
        shown.files.stored = {oslo: KvOnDisk(own_bytes=4 << 20, shared_bytes=2 << 20)}
        await shown.until(lambda: "◌ Oslo" in names(shown))
        [line] = [line.partition("│")[0] for line in shown.text.splitlines() if "◌ Oslo" in line]
        assert line.split()[-3:-1] == ["▒2.0M", "4.0M"]
        assert {"· kv notes", "· Bergen"} < set(names(shown))
        shown.files.stored = {notes: KvOnDisk(own_bytes=1 << 20, shared_bytes=0)}
        await shown.say_and_wait("hello")
        await shown.until(lambda: {"◌ kv notes", "· Oslo"} < set(names(shown)))


async def test_own_and_shared_bytes_are_seen_beside_a_long_title(tmp_path: Path) -> None:
    def prepare(chat: ScriptedChat) -> None:
        chat.add_session("What would you see in Oslo in two days?", [("By boat?", "Yes.")])

    engine = ScriptedEngine(held={"a": HeldTokens(owner="s1", num_tokens=300, num_shared=128)})
    async with window(tmp_path, engine=engine, prepare=prepare, size=(80, 30)) as shown:
        await shown.pilot.press("f2")
        await shown.until_shown("○ What")
        [line] = [line.partition("│")[0] for line in shown.text.splitlines() if "○ What" in line]
        assert line.split()[-3:-1] == ["▒768K", "1.1M"]


async def test_a_letter_among_five_hundred_titles_lays_out_at_most_the_scrollbar(tmp_path: Path) -> None:
    def many(chat: ScriptedChat) -> None:
        for number in range(500):
            chat.add_session(f"session {number}")

    async with window(tmp_path, prepare=many) as shown:
        await shown.until(lambda: len(names(shown)) == 500)
        await shown.pilot.press("ctrl+f")
        await shown.until_at_rest()
        await shown.pilot.pause()
        layouts: list[int] = []
        shown.screen.screen_layout_refresh_signal.subscribe(
            shown.screen, lambda _: layouts.append(len(names(shown))), immediate=True
        )
        for letter, num_found, num_layouts in (("4", 176, 0), ("9", 15, 1), ("9", 1, 1)):
            await shown.type(letter)
            await shown.until(lambda num_found=num_found: len(names(shown)) == num_found)
            await shown.until_at_rest()
            await shown.pilot.pause()
            assert len(layouts) == num_layouts
        assert "session 499" in shown.text
        assert "session 498" not in shown.text


async def test_a_narrow_terminal_shows_the_list_in_place_of_the_conversation(tmp_path: Path) -> None:
    async with window(tmp_path, prepare=three, initial="Oslo", size=(50, 18)) as shown:
        await shown.until_shown("By boat?")
        await shown.pilot.press("f2")
        await shown.until_gone("By boat?")
        await shown.pilot.press("escape")
        await shown.until_shown("By boat?")
        assert shown.app.focused is shown.screen.prompt
        await shown.pilot.press("ctrl+f")
        await shown.until_shown("kv notes")
        assert isinstance(shown.app.focused, FindField)
        await shown.pilot.press("enter")
        await shown.until(lambda: shown.questions == ["What is a tail?"])
        await shown.until(lambda: shown.screen.query_one("#conversation-pane").display)


async def test_delete_on_a_line_of_a_branch_deletes_that_branch_alone(tmp_path: Path) -> None:
    """The conversation on screen, another branch of the same session, stays there."""
    async with window(tmp_path) as shown:
        await shown.say_and_wait("hello")
        await shown.say("/fork beside")
        await shown.until(lambda: len(names(shown)) == 3)
        await shown.pilot.press("f2")
        lines = shown.screen.query_one(SessionList).lines
        listed = shown.screen.query_one(SessionList)
        listed.highlighted = next(at for at, line in enumerate(lines) if line.branch == "main")
        await shown.pilot.press("delete")
        await shown.until_shown("Delete the branch “main” of “hello”?")
        assert "the blocks of main would be freed" in shown.text
        await shown.pilot.press("y")
        await shown.until(lambda: [name for _, name in shown.chat.store.paths] == ["beside"])
        assert shown.chat.store.sessions
        assert shown.questions == ["hello"]


async def list_at(shown: Window, name: str) -> SessionList:
    """Go to a line of the list."""
    await shown.until(lambda: name in names(shown))
    listed = shown.screen.query_one(SessionList)
    if not listed.has_focus:
        await shown.pilot.press("f2")
    listed.highlighted = names(shown).index(name)
    return listed


async def test_keys_in_the_list_pin_and_rename_the_line_and_not_what_is_on_screen(tmp_path: Path) -> None:
    async with window(tmp_path, prepare=three, initial="Bergen") as shown:
        await shown.until(lambda: shown.questions == ["Rain?"])
        await list_at(shown, "· Oslo")
        await shown.pilot.press("ctrl+k")
        await shown.until(lambda: names(shown)[0] == "· ★ Oslo")
        await shown.pilot.press("ctrl+r")
        await shown.until_on_top(LineScreen)
        await shown.type("Oslo by boat")
        await shown.pilot.press("enter")
        await shown.until(lambda: names(shown) == ["· ★ Oslo by boat", "· kv notes", "● Bergen"])
        assert shown.app.focused is shown.screen.query_one(SessionList)
        await shown.pilot.press("ctrl+k")
        await shown.until(lambda: names(shown) == ["· kv notes", "· Oslo by boat", "● Bergen"])
        await shown.pilot.press("ctrl+r", "escape")
        titles = [session.title for session in shown.chat.store.sessions.values()]
        assert titles == ["Bergen", "Oslo by boat", "kv notes"]


async def test_a_key_in_the_list_exports_the_chosen_branch(tmp_path: Path) -> None:
    async with window(tmp_path, prepare=three, initial="Oslo") as shown:
        await shown.until(lambda: shown.questions == ["By boat?"])
        await shown.say("/fork by train")
        await shown.until(lambda: "  └ ● by train" in names(shown))
        for name, file in (("· kv notes", "notes.md"), ("  ├ main", "oslo.md")):
            await list_at(shown, name)
            await shown.pilot.press("ctrl+e")
            await shown.until_on_top(LineScreen)
            await shown.type(file)
            await shown.pilot.press("enter")
            await shown.until_shown(f"wrote {file}")
        notes, oslo = (shown.chat.open(title).session.id for title in ("kv notes", "Oslo"))
        assert shown.files.written == {"notes.md": (notes, "main"), "oslo.md": (oslo, "main")}
        await shown.pilot.press("ctrl+e", "escape")
        assert len(shown.files.written) == 2


async def run_by_palette(shown: Window, command: str, words: str) -> None:
    await shown.pilot.press("ctrl+p")
    await shown.until_shown("/fork [name]")
    await shown.type(command)
    await shown.until_gone("/fork [name]")
    await shown.until_shown(words)
    await shown.pilot.press("enter")


async def test_commands_of_the_palette_are_meant_for_the_line_only_in_the_list(tmp_path: Path) -> None:
    pin, rename = ("/pin", "keep the conversation on top"), ("/title", "rename the conversation")
    async with window(tmp_path, prepare=three, initial="Bergen") as shown:
        await shown.until(lambda: shown.questions == ["Rain?"])
        await list_at(shown, "· Oslo")
        await run_by_palette(shown, *pin)
        await shown.until(lambda: names(shown) == ["· ★ Oslo", "· kv notes", "● Bergen"])
        await run_by_palette(shown, *rename)
        await shown.until_on_top(LineScreen)
        await shown.pilot.press("escape", "escape")
        await run_by_palette(shown, *pin)
        await shown.until(lambda: "● ★ Bergen" in names(shown))
        await run_by_palette(shown, *rename)
        await shown.until(lambda: shown.screen.prompt.text == "/title ")
        await shown.pilot.press("ctrl+u")
        await shown.say("/pin")
        await shown.until(lambda: names(shown) == ["· ★ Oslo", "· kv notes", "● Bergen"])


async def test_the_palette_offers_commands_most_used_first_and_opens_sessions_by_title(
    tmp_path: Path,
) -> None:
    def prepare(chat: ScriptedChat) -> None:
        three(chat)
        chat.add_session("[b] brackets", [("Why?", "For markup.")])

    async with window(tmp_path, prepare=prepare, initial="Bergen", size=(100, 40)) as shown:
        await shown.until(lambda: shown.questions == ["Rain?"])
        await shown.pilot.press("ctrl+p")
        await shown.until_shown("/new [title]")
        offered = [shown.text.find(usage) for usage in ("/new [title]", "/switch [name]", "/fork [name]")]
        assert -1 not in offered
        assert offered == sorted(offered)
        await shown.type("frees memory")
        await shown.until_gone("/new [title]")
        await shown.until_shown("/delete")
        for _ in "frees memory":
            await shown.pilot.press("backspace")
        await shown.type("[b")
        await shown.until_shown("open this session")
        await shown.until_gone("/new [title]")
        assert "[b] brackets" in shown.text
        await shown.pilot.press("enter")
        await shown.until(lambda: shown.questions == ["Why?"])


async def test_switch_offers_the_other_branches_here_and_the_other_titles(tmp_path: Path) -> None:
    async with window(tmp_path, prepare=three, initial="Oslo") as shown:
        await shown.until(lambda: bool(shown.questions))
        await shown.say("/fork by ferry")
        await shown.until(lambda: shown.screen.turns.conversation.branch.name == "by ferry")
        await shown.until_shown("└ ● by ferry")
        await shown.type("/switch ")
        await shown.until_shown("▸ main")
        assert "branch of this conversation" in shown.text
        await shown.type("BER")
        await shown.until_shown("▸ Bergen")
        await shown.pilot.press("enter")
        await shown.until(lambda: shown.questions == ["Rain?"])
        assert shown.screen.prompt.text == ""


def shown_id(shown: Window) -> str | None:
    conversation = shown.screen.turns.conversation
    return None if conversation is None else conversation.session.id


async def test_sessions_of_one_title_are_told_apart_by_their_ids_and_opened_so(tmp_path: Path) -> None:
    def prepare(chat: ScriptedChat) -> None:
        for question in ("First?", "Second?"):
            chat.add_session("Oslo", [(question, "Yes.")])

    async with window(tmp_path, prepare=prepare) as shown:
        await shown.until(lambda: len(shown.screen.sessions.sessions.titles) == 2)
        for session, _ in shown.screen.sessions.sessions.entries:
            await shown.type(f"/switch oslo · {session.id[:4]}")
            await shown.until_shown(f"▸ Oslo · {session.id[:4]}")
            await shown.pilot.press("enter")
            await shown.until(lambda id_=session.id: shown_id(shown) == id_)


async def test_the_tree_has_a_fork_of_a_fork_below_it_and_delete_asks_and_keeps(tmp_path: Path) -> None:
    async with window(tmp_path, prepare=three, initial="Oslo") as shown:
        await shown.until(lambda: bool(shown.questions))
        for name in ("train", "night"):
            await shown.say(f"/fork {name}")
            await shown.until(lambda name=name: shown.screen.turns.conversation.branch.name == name)
            await shown.say_and_wait(f"by {name}")
        await shown.say("/tree")
        await shown.until(lambda: "    └ ● night" in names(shown))
        assert names(shown)[-4:-1] == ["  ├ main", "  └ train", "    └ ● night"]
        await shown.pilot.press("up", "delete")
        await shown.until_on_top(ConfirmScreen)
        await shown.pilot.press("enter")
        await shown.until_back()
        assert len(shown.chat.store.paths) == 5
        await shown.pilot.press("enter")
        await shown.until(lambda: shown.screen.turns.conversation.branch.name == "train")


async def test_two_enters_in_one_burst_choose_from_the_palette_once(tmp_path: Path) -> None:
    async with window(tmp_path, prepare=three, initial="Bergen") as shown:
        await shown.until(lambda: shown.questions == ["Rain?"])
        for _ in range(3):
            await shown.pilot.press("ctrl+p")
            await shown.until_shown("/new [title]")
            await shown.type("help")
            await shown.until_gone("/new [title]")
            shown.app.post_message(events.Key("enter", None))
            shown.app.post_message(events.Key("enter", None))
            await shown.until_on_top(HelpScreen)
            await shown.pilot.press("ctrl+p")
            assert isinstance(shown.app.screen, HelpScreen), "a dialog goes first"
            await shown.pilot.press("escape")
            await shown.until_back()


async def test_a_list_that_is_opened_has_a_line_for_its_keys(tmp_path: Path) -> None:
    async with window(tmp_path, prepare=three) as shown:
        await shown.until(lambda: len(shown.screen.sessions.sessions.titles) == 3)
        await shown.pilot.press("f2", "enter")
        await shown.until(lambda: bool(shown.questions))
