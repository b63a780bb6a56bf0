"""The interface on a scripted engine in a real terminal: `python -m tests.ui.run_scripted LOG_PATH`.

The engine takes a moment to load, or where `SCRIPTED_LEAVE` names a file, until that is there. Its answers
come with the noise that native libraries make.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Thread, Timer
from time import sleep

from kvchat.chat.conversation import Conversation
from kvchat.chat.events import ChatEvent
from kvchat.engine.api.engine_phase import EnginePhase
from kvchat.ui.app import KvchatApp
from tests.ui.scripted import Answer, ScriptedChat
from tests.ui.scripted_engine import ScriptedEngine
from tests.ui.scripted_files import ScriptedFiles


class NoisyChat(ScriptedChat):
    def send(self, conversation: Conversation, text: str) -> Iterator[ChatEvent]:
        for event in super().send(conversation, text):
            os.write(2, b"NATIVE NOISE\n")
            os.write(1, b"NATIVE NOISE\n")
            print("PYTHON NOISE", file=sys.stderr)
            yield event


def main() -> int:
    engine = ScriptedEngine(phase=EnginePhase.LOADING, detail="slowly")

    def loaded() -> None:
        engine.phase = EnginePhase.READY

    def load_with_leave() -> None:
        while not leave.exists():
            sleep(0.01)
        loaded()

    leave = Path(os.environ.get("SCRIPTED_LEAVE", ""))
    waiting = Thread(target=load_with_leave, daemon=True) if leave.name else Timer(0.5, loaded)
    chat = NoisyChat(engine, [Answer(text="By **train**, and then " + "onwards " * 30, pace_s=0.01)])
    app = KvchatApp(chat, engine, ScriptedFiles(), log_path=Path(sys.argv[1]), on_first_frame=waiting.start)
    return app.run_in_terminal()


if __name__ == "__main__":
    sys.exit(main())
