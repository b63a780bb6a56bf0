"""One request of many is cancelled before every step in turn, on a model.

The others' answers must stay what they are without any neighbour, and the cancelled request, asked again,
gets its own.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from kvchat.engine.api.ids import SequenceId
from kvchat.engine.api.request import Request
from kvchat.engine.api.sampling_params import SamplingParams
from tests.engine.conftest import TinyModels
from tests.engine.conversations import BEAMS, GREEDY, SEVERAL, Asked, cold, collect
from tests.engine.tiny_models import open_engine, token_ids

pytestmark = pytest.mark.cpu

NUM_REQUESTS = 6
SCRIPT_STEPS = 6
CHUNK = 31
"""One token short of two blocks: who names a block too early names one that is not whole."""


class Script:
    """Some sessions on one small engine: a shared beginning, a retry, a fork, several answers, a search."""

    def __init__(self, model_dir: Path) -> None:
        self.model_dir = model_dir
        self.requests: list[Asked] = []
        self.engine = open_engine(
            model_dir, device_bytes=230 * 1024, host_bytes=100 * 1024, max_batch_tokens=CHUNK
        )

    def begin(self, number: int) -> None:
        """Ask what is due before this step."""
        text = token_ids(70, seed=90)
        if number == 0:
            self.ask(text[:60], GREEDY, 8, priority=1)
            self.ask(text[:30] + token_ids(25, seed=91), GREEDY, 6, priority=1)
        elif number == 3:
            self.ask(text[:60], GREEDY, 4)
            first = self.requests[0]
            sequence = self.engine.fork(first.handle.sequence)
            self.ask(first.text + token_ids(9, seed=92), GREEDY, 6, sequence=sequence)
        elif number == 5:
            self.ask(text, SEVERAL, 5)
            self.ask(text[:50], BEAMS, 4, priority=2)

    def ask(
        self,
        prompt: list[int],
        sampling: SamplingParams,
        max_tokens: int,
        *,
        priority: int = 0,
        sequence: SequenceId | None = None,
    ) -> None:
        request = Request(
            token_ids=tuple(prompt),
            sampling=replace(sampling, max_tokens=max_tokens),
            priority=priority,
            sequence=sequence,
        )
        self.requests.append(Asked(request.token_ids, request.sampling, self.engine.submit(request)))

    def run(self, which: int | None = None, cancelled_at: int | None = None) -> int:
        """Run to the end, cancel one request before one step, and return the number of steps."""
        number = 0
        while number < SCRIPT_STEPS or self.engine.has_work:
            self.begin(number)
            if number == cancelled_at and which is not None and which < len(self.requests):
                self.requests[which].may_be_cut = True
                self.requests[which].handle.cancel()
            collect(self.engine, self.requests, 1)
            number += 1
        return number

    def expect_cold(self) -> None:
        """Every answer, as far as it came, is that of an engine that computes nothing else. A search that is
        cut gives what was best by then, which the whole search may have left.
        """
        for asked in self.requests:
            if asked.may_be_cut and asked.sampling.beam_width is not None:
                continue
            wanted = cold(self.model_dir, asked.prompt, asked.sampling).tokens
            for sample, tokens in asked.tokens.items():
                assert tokens == (wanted[sample][: len(tokens)] if asked.may_be_cut else wanted[sample])
            assert asked.may_be_cut or asked.tokens.keys() == wanted.keys()

    def close(self) -> None:
        """Ask once more what was cut; then let go of everything, which leaves nothing held."""
        for asked in [asked for asked in self.requests if asked.may_be_cut]:
            again = self.engine.generate([asked.prompt], asked.sampling)[0]
            wanted = cold(self.model_dir, asked.prompt, asked.sampling).tokens
            assert [sample.token_ids for sample in again.samples] == [wanted[n] for n in sorted(wanted)]
        for usage in self.engine.snapshot().sequences:
            self.engine.release(usage.sequence)
        assert {group.used_blocks for group in self.engine.snapshot().groups} == {0}
        self.engine.check_integrity()
        self.engine.close()


def cancel_at_each_step(model_dir: Path, points: Callable[[int], Iterable[tuple[int, int]]]) -> None:
    """Run the script once for each of the points (request, step), of all steps there are."""
    script = Script(model_dir)
    num_steps = script.run()
    script.expect_cold()
    script.close()
    for which, cancelled_at in points(num_steps):
        script = Script(model_dir)
        script.run(which, cancelled_at)
        script.expect_cold()
        script.close()


def test_others_answer_the_same_whenever_one_is_cancelled(tiny: TinyModels) -> None:
    """Traps 7, 12 and 28: each request at some steps, so that every step has its turn."""
    cancel_at_each_step(
        tiny("qwen3"), lambda num_steps: [(0, 1), *((at % NUM_REQUESTS, at) for at in range(num_steps))]
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["llama", "qwen3", "gemma3"])
def test_others_answer_the_same_whenever_any_one_is_cancelled(kind: str, tiny: TinyModels) -> None:
    cancel_at_each_step(tiny(kind), lambda num_steps: product(range(NUM_REQUESTS), range(num_steps)))
