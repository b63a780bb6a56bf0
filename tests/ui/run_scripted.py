"""The interface on a scripted engine in a real terminal: `python -m tests.ui.run_scripted LOG_PATH`.

The engine takes a moment to load, and its answers come with the noise that native libraries make.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Timer

from kvchat.chat import ChatEvent
from kvchat.engine.api.status import EnginePhase
from kvchat.ui.app import KvchatApp
from tests.ui.scripted import Answer, ScriptedChat, ScriptedConversation
from tests.ui.scripted_engine import ScriptedEngine
from tests.ui.scripted_files import ScriptedFiles


class NoisyChat(ScriptedChat):
    def send(self, conversation: ScriptedConversation, text: str) -> Iterator[ChatEvent]:
        for event in super().send(conversation, text):
            os.write(2, b"NATIVE NOISE\n")
            os.write(1, b"NATIVE NOISE\n")
            print("PYTHON NOISE", file=sys.stderr)
            yield event


def main() -> int:
    engine = ScriptedEngine(phase=EnginePhase.LOADING, detail="slowly")

    def loaded() -> None:
        engine.phase = EnginePhase.READY

    chat = NoisyChat(engine, [Answer(text="By **train**, and then " + "onwards " * 30, pace_s=0.01)])
    app = KvchatApp(
        chat,
        engine,
        ScriptedFiles(),
        log_path=Path(sys.argv[1]),
        on_first_frame=lambda: Timer(0.5, loaded).start(),
    )
    return app.run_in_terminal()


if __name__ == "__main__":
    sys.exit(main())
