"""One side of the interface's measurement: `python -m benchmarks.interface_child SIDE MODEL HOME REPORT`.

The side `window` is the interface in its terminal; `plain` answers the lines of its standard input, with
nothing drawn. Both write a line of JSON to REPORT for each answer.
"""

import functools
import json
import sys
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any, cast

from kvchat.app.composition import Kvchat, opened
from kvchat.app.config import read_settings
from kvchat.app.engine_swap import EngineSwap
from kvchat.app.interface_host import InterfaceHost
from kvchat.chat.events import ChatEvent, TurnFinished
from kvchat.chat.service import Chat
from kvchat.engine.api.sampling_params import SamplingParams
from kvchat.ui.app import KvchatApp
from kvchat.ui.widgets.cache.panel import CachePanel

SAMPLING = SamplingParams(temperature=1.0, max_tokens=160, ignore_eos=True, seed=1)
STARTER_TOKENS = 1200
"""An answer of the starter is written in a quarter of a second otherwise, and no key falls into it."""
KV_BYTES = 256 * 2**20


class Redraws:
    """What drawing the cache panel takes: composing its rows, and drawing those that changed."""

    def __init__(self) -> None:
        self.num = 0
        self.seconds = 0.0

    def watch(self) -> None:
        CachePanel.show_snapshot = self._timed(CachePanel.show_snapshot, 1)  # type: ignore[method-assign]
        CachePanel.render_line = self._timed(CachePanel.render_line, 0)  # type: ignore[method-assign]

    def _timed(self, method: Callable[..., Any], counted: int) -> Callable[..., Any]:
        @functools.wraps(method)
        def timed(*arguments: Any) -> Any:
            start_s = perf_counter()
            result = method(*arguments)
            self.seconds += perf_counter() - start_s
            self.num += counted
            return result

        return timed

    def take(self) -> tuple[int, float]:
        taken = self.num, self.seconds
        self.num, self.seconds = 0, 0.0
        return taken


class ReportingChat:
    """A chat that writes down how fast each answer was."""

    def __init__(self, chat: Chat, report: Path, redraws: Redraws) -> None:
        self._chat = chat
        self._report = report
        self._redraws = redraws

    def __getattr__(self, name: str) -> Any:
        return getattr(self._chat, name)

    def send(self, conversation: Any, text: str) -> Generator[ChatEvent, None, None]:
        self._redraws.take()
        for event in self._chat.send(conversation, text):
            yield event
            if isinstance(event, TurnFinished):
                self._write(event)

    def _write(self, event: TurnFinished) -> None:
        num_redraws, redraw_s = self._redraws.take()
        line = {
            "tokens_per_s": event.answer.timings.decode_tokens_per_s,
            "num_tokens": event.answer.usage.completion_tokens,
            "num_redraws": num_redraws,
            "redraw_s": redraw_s,
        }
        with self._report.open("a") as file:
            file.write(json.dumps(line) + "\n")


def main(side: str, model: str, home: Path, report: Path) -> None:
    settings = read_settings(environ={"KVCHAT_HOME": str(home)}, cwd=home)
    sampling = replace(SAMPLING, max_tokens=STARTER_TOKENS) if model == "starter" else SAMPLING
    settings = replace(
        settings, sampling=sampling, engine=replace(settings.engine, device_bytes=KV_BYTES, cache_dir=None)
    )
    engine, redraws = EngineSwap(), Redraws()
    with opened(settings, engine) as kvchat:
        chat = ReportingChat(kvchat.load(None, model), report, redraws)
        if side == "plain":
            engine.start()
            _answer_lines(chat, kvchat)
            return
        redraws.watch()
        host = InterfaceHost(settings, kvchat, cast(Chat, chat), engine)
        log = home / "log"
        KvchatApp(
            cast(Chat, chat), kvchat.engine, host, None, log_path=log, on_first_frame=engine.start
        ).run_in_terminal()


def _answer_lines(chat: ReportingChat, kvchat: Kvchat) -> None:
    kvchat.engine.info()
    print("ready", flush=True)
    for line in sys.stdin:
        conversation = chat.create()
        with closing(chat.send(conversation, line.strip())) as events:
            for _ in events:
                pass
        chat.close(conversation)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4]))
