"""The interface in a real terminal: its first frame, keys while a model decodes, what it takes from decoding.

Pairs: one process decodes with the interface on its terminal, another without one, in turns; the ratio is of
each pair. Keys: letters go into the prompt while an answer streams, and each counts until the terminal has
received it. Models of random weights speak the starter's 2,560 tokens, which makes their last layer small and
decoding the faster. Long sessions are opened and scrolled without an engine.
"""

import json
import os
import random
import string
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from benchmarks.bytecode import kept_bytecode
from benchmarks.interface_sessions import measure_sessions
from benchmarks.pseudo_terminal import PseudoTerminal, pseudo_terminal
from benchmarks.table import Row

NUM_PAIRS = 10
NUM_FRAMES = 10
NUM_KEYS = 150
KEY_PAUSE_S = 0.11
QUESTION = "go on"
CLEAR = "\x15"
SHAPES = ("starter", "100m", "360m")
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")

_WRITE = "import sys; from pathlib import Path; from benchmarks.interface import write_shape; "


def measure(*, quick: bool = False) -> list[Row]:
    num_pairs, num_frames, num_keys = (2, 3, 40) if quick else (NUM_PAIRS, NUM_FRAMES, NUM_KEYS)
    with TemporaryDirectory(prefix="kvchat-bench-") as directory:
        home = Path(directory)
        rows = _first_frames(home / "frames", num_frames)
        for name in SHAPES:
            rows += _measure_model(home / name, name, num_pairs, num_keys)
        return rows + measure_sessions(home / "sessions", num_rounds=2 if quick else 5)


def write_shape(directory: Path, name: str) -> None:
    """Write a shape with random weights in bfloat16 and the starter's tokens."""
    import shutil

    import torch
    import transformers

    from benchmarks.cpu.shapes import SHAPES as ALL_SHAPES
    from tools.starter import MODEL_DIRECTORY

    shape = ALL_SHAPES[name]
    config = transformers.LlamaConfig(
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        vocab_size=2560,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    transformers.utils.logging.disable_progress_bar()
    transformers.LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(directory)
    for file in TOKENIZER_FILES:
        shutil.copyfile(MODEL_DIRECTORY / file, directory / file)


def _first_frames(home: Path, num_frames: int) -> list[Row]:
    home.mkdir(parents=True)
    variables = {"KVCHAT_HOME": str(home), **kept_bytecode(home)}
    times, spent = [], []
    for _ in range(num_frames + 1):
        start_s = perf_counter()
        with pseudo_terminal(["-m", "kvchat"], variables) as shown:
            shown.wait_for("Ask anything", "You can type already.")
            times.append(perf_counter() - start_s)
            spent.append(_spent(shown.process.pid))
    return [
        Row.of("first frame, from launch", "s", times[1:], "below 0.5 s; starter"),
        Row.of("  of it the processor's", "s", spent[1:]),
    ]


def _spent(pid: int) -> float:
    """Return the processor time that a running process has used, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _measure_model(home: Path, name: str, num_pairs: int, num_keys: int) -> list[Row]:
    home.mkdir(parents=True)
    model = "starter"
    if name != "starter":
        model = str(home / "model")
        command = [sys.executable, "-c", f"{_WRITE}write_shape(Path(sys.argv[1]), {name!r})", model]
        subprocess.run(command, cwd=Path(__file__).parent.parent, check=True)
    with _window(home / "window", model) as window, _plain(home / "plain", model) as plain:
        window.answer()
        plain.answer()
        pairs = []
        redraws: list[float] = []
        for number in range(num_pairs):
            first, second = (window, plain) if number % 2 else (plain, window)
            told = {first: first.answer(), second: second.answer()}
            pairs.append((told[window]["tokens_per_s"], told[plain]["tokens_per_s"]))
            redraws.append(1e3 * told[window]["redraw_s"] / max(1, told[window]["num_redraws"]))
        keys = _key_times(window, num_keys)
    keys.sort()
    slowest = keys[min(len(keys) - 1, round(0.99 * len(keys)))]
    return [
        Row.of(f"{name}: decode without the interface", "tok/s", [one[1] for one in pairs]),
        Row.of(f"{name}: decode with it", "tok/s", [one[0] for one in pairs]),
        Row.of(f"{name}: with, of without", "x", [a / b for a, b in pairs], "at least 0.9"),
        Row.of(f"{name}: redraw of the cache panel", "ms", redraws, "at most 5 ms, averages of answers"),
        Row.of(f"{name}: key to screen while decoding", "ms", keys, f"{len(keys)} keys"),
        Row.of(f"{name}: key to screen, 99th percentile", "ms", [slowest], "below 50 ms"),
    ]


class _Window:
    """The interface, asked through its prompt."""

    def __init__(self, shown: PseudoTerminal, report: Path) -> None:
        self.shown = shown
        self._report = report

    @property
    def num_answers(self) -> int:
        return len(self._report.read_text().splitlines()) if self._report.exists() else 0

    def ask(self) -> None:
        self.shown.type("/new\r")
        self.shown.drain(0.5)
        self.shown.type(f"{QUESTION}\r")

    def answer(self) -> dict[str, float]:
        num_before = self.num_answers
        self.ask()
        while self.num_answers == num_before:
            self.shown.drain(0.1)
        self.shown.drain(0.5)
        return _last(self._report)


class _Plain:
    """The same without anything drawn."""

    def __init__(self, process: "subprocess.Popen[str]", report: Path) -> None:
        self._process = process
        self._report = report

    def answer(self) -> dict[str, float]:
        assert self._process.stdin is not None
        num_before = len(self._report.read_text().splitlines()) if self._report.exists() else 0
        self._process.stdin.write(f"{QUESTION}\n")
        self._process.stdin.flush()
        end_s = perf_counter() + 180
        while perf_counter() < end_s:
            if self._report.exists() and len(self._report.read_text().splitlines()) > num_before:
                return _last(self._report)
            self._process.poll()
            time.sleep(0.1)
        raise TimeoutError("waited in vain for an answer")


def _last(report: Path) -> dict[str, float]:
    told: dict[str, float] = json.loads(report.read_text().splitlines()[-1])
    return told


@contextmanager
def _window(home: Path, model: str) -> Iterator[_Window]:
    home.mkdir()
    report = home / "report"
    arguments = ["-m", "benchmarks.interface_child", "window", model, str(home), str(report)]
    with pseudo_terminal(arguments, {}) as shown:
        shown.wait_for("room for")
        yield _Window(shown, report)


@contextmanager
def _plain(home: Path, model: str) -> Iterator[_Plain]:
    home.mkdir()
    report = home / "report"
    command = [sys.executable, "-m", "benchmarks.interface_child", "plain", model, str(home), str(report)]
    with subprocess.Popen(
        command,
        cwd=Path(__file__).parent.parent,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=dict(os.environ),
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield _Plain(process, report)
        finally:
            process.terminate()


def _key_times(window: _Window, num_keys: int) -> list[float]:
    """Return for each key in milliseconds how long it took to the terminal, while answers stream."""
    chosen = random.Random(0)
    times: list[float] = []
    while len(times) < num_keys:
        num_before = window.num_answers
        window.ask()
        window.shown.drain(0.3)
        typed = ""
        while window.num_answers == num_before and len(times) < num_keys:
            if len(typed) >= 40:
                window.shown.type(CLEAR)
                typed = ""
                window.shown.drain(KEY_PAUSE_S)
            typed += chosen.choice(string.ascii_lowercase)
            window.shown.drain(KEY_PAUSE_S * chosen.uniform(0.7, 1.3))
            window.shown.type(typed[-1])
            times.append(1e3 * window.shown.wait_for(typed[-5:], patience_s=10))
        window.shown.type(CLEAR)
        while window.num_answers == num_before:
            window.shown.drain(0.1)
        window.shown.drain(0.5)
    return times
