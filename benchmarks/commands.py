"""How long commands take that run no model, and what a borrowed engine adds to a first token.

Commands are whole processes, measured in turn with a bare interpreter; `cpu` is their processor time, which a
busy machine stretches less. A list has 100 sessions. A borrowed engine's overhead is the time
from before the socket is connected to the first token, less the engine's own.
"""

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter

from benchmarks.bytecode import kept_bytecode
from benchmarks.table import Row
from kvchat.app.ipc.client import borrow
from kvchat.app.ipc.server import EngineServer
from kvchat.engine.api.config import EngineConfig
from kvchat.engine.api.events import RequestFinished, TokenEmitted
from kvchat.engine.api.request import Request
from kvchat.engine.api.sampling_params import SamplingParams
from kvchat.engine.models.locate import locate_model
from kvchat.engine.worker import Worker
from kvchat.session.store import SessionStore
from kvchat.session.template.chat_template import ChatTemplate

NUM_SESSIONS = 100
COMMANDS = ("--help", "ask --help", "sessions list", "config show")
_BARE = (sys.executable, "-c", "pass")


def measure(*, quick: bool = False) -> list[Row]:
    rounds = 5 if quick else 15
    return [*_commands(rounds), *_borrowed(rounds * 2)]


def _commands(rounds: int) -> Iterator[Row]:
    with TemporaryDirectory() as home:
        (Path(home) / "data").mkdir(mode=0o700)
        with closing(SessionStore(Path(home) / "data" / "sessions.db")) as store:
            for number in range(NUM_SESSIONS):
                store.create_session(title=f"session {number}", model="starter")
        environ = os.environ | {"KVCHAT_HOME": home} | kept_bytecode(Path(home))
        for words in COMMANDS:
            command = (sys.executable, "-m", "kvchat", *words.split())
            _cost(command, environ)  # compiles what it imports
            costs = [(_cost(command, environ), _cost(_BARE, environ)) for _ in range(rounds)]
            walls = [1e3 * own[0] for own, _ in costs]
            cpus = [1e3 * own[1] for own, _ in costs]
            bare = median(1e3 * other[0] for _, other in costs)
            ratio = min(own[0] for own, _ in costs) / min(other[0] for _, other in costs)
            note = f"bare interpreter {bare:.3g} ms; best against best {ratio:.1f}x"
            yield Row.of(f"kvchat {words}", "ms", walls, note)
            yield Row.of(f"kvchat {words}: cpu", "ms", cpus)


def _cost(command: tuple[str, ...], environ: dict[str, str]) -> tuple[float, float]:
    """Return wall and processor seconds of a process."""
    before, start_s = resource.getrusage(resource.RUSAGE_CHILDREN), perf_counter()
    subprocess.run(command, env=environ, stdin=subprocess.DEVNULL, capture_output=True, check=True)
    wall_s, after = perf_counter() - start_s, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall_s, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _borrowed(rounds: int) -> Iterator[Row]:
    with _lent() as path:
        overheads, firsts = [], []
        for number in range(rounds):
            first_s, own_s = _first_token(path, number)
            overheads.append(1e3 * (first_s - own_s))
            firsts.append(1e3 * own_s)
    yield Row.of("first token of a borrowed engine, over its own", "ms", overheads, "from before connecting")
    yield Row.of("the engine's own", "ms", firsts, "prompt of 33 tokens, starter")


@contextmanager
def _lent() -> Iterator[Path]:
    location = locate_model("starter", cache_dir=None)
    worker = Worker("starter", location.path, EngineConfig(device="cpu"))
    worker.start()
    with TemporaryDirectory(prefix="kvchat-") as directory, closing(worker):
        path = Path(directory) / "run" / "engine.sock"
        lender = EngineServer(worker, ChatTemplate.from_dir(location.path), path, "benchmark")
        lender.start()
        worker.info()
        with closing(lender):
            yield path


def _first_token(path: Path, number: int) -> tuple[float, float]:
    """Return the seconds to a first token as a borrower and as the engine sees them."""
    start_s = perf_counter()
    engine = borrow(path, "benchmark")
    assert engine is not None
    with closing(engine):
        engine.info()
        ids = tuple(range(10 + number, 43 + number))
        handle = engine.submit(Request(token_ids=ids, sampling=SamplingParams(max_tokens=4, ignore_eos=True)))
        first_s = None
        while True:
            for event in handle.take_events(10.0):
                if isinstance(event, TokenEmitted) and first_s is None:
                    first_s = perf_counter() - start_s
                if isinstance(event, RequestFinished):
                    assert first_s is not None
                    return first_s, event.timings.ttft_s or 0.0
