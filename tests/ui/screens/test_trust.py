"""A session whose KV came from elsewhere shows it: in the list, under its answers, in the last line."""

from dataclasses import replace
from pathlib import Path

import pytest

from kvchat.session.tree import SessionId, Verdict, Verification
from tests.ui.harness import window
from tests.ui.scripted import ScriptedChat

pytestmark = pytest.mark.tui

FOUND = Verification(verdict=Verdict.SAME, at=0.0, num_blocks=12, of_blocks=12)


def prepare(chat: ScriptedChat) -> None:
    for title in ("mine", "foreign", "proven"):
        chat.add_session(title, [("By boat?", "Yes.")])
    sessions = chat.store.sessions
    for number, namespace, found in ((2, "bundle:00", None), (3, "", FOUND)):
        key = SessionId(list(sessions)[number - 1])
        sessions[key] = replace(sessions[key], namespace=namespace, verification=found)


async def test_imported_kv_is_marked_until_it_is_verified(tmp_path: Path) -> None:
    async with window(tmp_path, prepare=prepare, initial="foreign") as shown:
        await shown.until_shown("● ? foreign")
        assert "· ✓ proven" in shown.text
        assert "· mine" in shown.text
        await shown.until(lambda: "on imported KV, not verified" in shown.conversation_text)
        await shown.until(lambda: "imported KV, not verified · ctx" in shown.text.splitlines()[-1])
        await shown.say_and_wait("And now?")
        await shown.until(lambda: shown.conversation_text.count("on imported KV, not verified") == 2)
        await shown.say("/switch proven")
        await shown.until(lambda: "KV verified · ctx" in shown.text.splitlines()[-1])
        await shown.until(lambda: "tok/s · exact" in shown.conversation_text)
        await shown.say("/switch mine")
        await shown.until(lambda: shown.text.splitlines()[-1].lstrip().startswith("ctx"))
