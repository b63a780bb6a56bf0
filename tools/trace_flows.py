"""Module trace of the three flows: counts the modules of kvchat that a value passes through, in a real run.

    python -m tools.trace_flows              # the counts
    python -m tools.trace_flows --modules    # and the modules, in the order in which they are met

A flow is given by its milestones: functions in which the value is read, kept or handed on. A module is
counted when it is on the call stack of a milestone, in whatever thread that runs; modules that a caller
merely consults are not. Run on the starter model, on the processor.
"""

import argparse
import os
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

PACKAGE = str(Path(__file__).parent.parent / "kvchat") + os.sep
STEP = "engine/engine:Engine.step"
PROMPT = "What is a KV cache, and what is paged attention?"


class Flow(NamedTuple):
    """A flow.

    Args:
        aim: most modules.
        run: what shows it.
        start: the function from whose first call on milestones count.
        milestones: functions in which the value is read, kept or handed on.
        root: the function in which stacks of the engine's thread begin; None: with the thread.
    """

    name: str
    aim: int
    run: Callable[[Path], None]
    start: str
    milestones: frozenset[str]
    root: str | None = None


def ask(directory: Path) -> None:
    """Answer one question on the command line, with nothing cached."""
    from kvchat.cli.main import run

    os.environ["KVCHAT_HOME"] = str(directory / "home")
    run(["ask", "--quiet", "--max-tokens", "1", PROMPT])


def answer(directory: Path) -> None:
    """Compute a prompt and an answer that fill a block, and wait until they are on disk."""
    from kvchat.engine import Engine, EngineConfig, SamplingParams

    engine = Engine.load("starter", EngineConfig(device="cpu", cache_dir=directory / "cache"))
    engine.generate([[3, *range(70, 160), 1, 4]], SamplingParams(max_tokens=8))
    engine.drain_saves()
    engine.close()


FLOWS = (
    Flow(
        "prompt to first token",
        35,
        ask,
        "chat/service:Chat.send",
        frozenset(
            {
                "session/template/tokenizer:ChatTokenizer.encode",
                "engine/worker:Worker.submit",
                "engine/scheduling/scheduler:Scheduler.add",
                "engine/cache/prefix_matcher:PrefixMatcher.match",
                "engine/cache/block_pool:BlockPool.allocate",
                "engine/kernels/store_kv/reference:store_kv",
                "engine/kernels/paged_attention/native:paged_attention",
                "engine/kernels/paged_attention/torch_fallback:paged_attention",
                "engine/sampling/sampler:Sampler.sample",
                "engine/api/event_queue:EventQueue.push",
                "chat/recorder:AnswerRecorder._record",
                "cli/commands/ask/answer_writers:TextWriter.take",
            }
        ),
    ),
    Flow(
        "block to disk",
        10,
        answer,
        "engine/memory/disk/write_queue:BlockWriteQueue.submit",
        frozenset(
            {
                "engine/memory/disk/write_queue:BlockWriteQueue.submit",
                "engine/memory/disk/io:SystemFiles.write",
            }
        ),
        STEP,
    ),
    Flow(
        "disk to device",
        15,
        answer,
        "engine/memory/reader:Reader.submit",
        frozenset(
            {
                "engine/memory/reader:Reader.submit",
                "engine/kernels/read_block/native:read_block",
                "engine/memory/disk/io:SystemFiles.read",
                "engine/cache/device_tier:DeviceTier.name",
            }
        ),
        STEP,
    ),
)


class StackTrace:
    """The modules of kvchat on the stacks of a flow's milestones, outermost first."""

    def __init__(self, flow: Flow) -> None:
        self.modules: dict[str, None] = {}
        self._flow = flow
        self._has_started = False

    def __enter__(self) -> "StackTrace":
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)
        return self

    def __exit__(self, *error: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def _profile(self, frame: FrameType, event: str, argument: Any) -> None:
        if event != "call" or not (function := _function(frame)):
            return
        self._has_started |= function == self._flow.start
        if self._has_started and function in self._flow.milestones:
            self.modules.update(dict.fromkeys(self._stack(frame)))

    def _stack(self, frame: FrameType | None) -> list[str]:
        found: list[str] = []
        while frame is not None:
            if function := _function(frame):
                found.append(function.partition(":")[0])
                if function == self._flow.root:
                    break
            frame = frame.f_back
        return found[::-1]


def _function(frame: FrameType) -> str | None:
    """Return `module:qualified name` of a function of kvchat."""
    code = frame.f_code
    if not code.co_filename.startswith(PACKAGE) or code.co_name == "<module>":
        return None
    return f"{code.co_filename.removeprefix(PACKAGE).removesuffix('.py')}:{code.co_qualname}"


def trace(flow: Flow, directory: Path) -> list[str]:
    with StackTrace(flow) as found:
        flow.run(directory)
    return list(found.modules)


def main() -> None:
    parser = argparse.ArgumentParser(description="Count the modules that a value passes through.")
    parser.add_argument("--modules", action="store_true", help="name the modules")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        for flow in FLOWS:
            modules = trace(flow, Path(directory))
            print(f"{flow.name:24} {len(modules):3} modules (aim {flow.aim})")
            if options.modules:
                print("".join(f"    {module}.py\n" for module in modules), end="")


if __name__ == "__main__":
    main()
