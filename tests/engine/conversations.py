"""Random life of an engine: questions, forks, cancelled answers, retries, pressure and restarts.

A trace follows from its seed alone. What every request answered is compared with an engine that has computed
nothing else, on pools that hold all it needs.
"""

import random
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from torch import Tensor

from kvchat.engine.api.events import TokenEmitted
from kvchat.engine.api.ids import BranchId
from kvchat.engine.api.request import Request
from kvchat.engine.api.sampling_params import SamplingParams
from kvchat.engine.engine import Engine
from kvchat.engine.handle import Handle
from tests.engine.tiny_models import VOCAB_SIZE, RecordingRunner, open_recorded

MAX_TEXT = 120
GREEDY = SamplingParams()
SEVERAL = SamplingParams(n=2, temperature=0.9, seed=7)
BEAMS = SamplingParams(beam_width=3)
TOKEN_BYTES = {"float32": 1024, "bfloat16": 512}
"""Bytes of one token in four layers of a tiny model."""


@dataclass(slots=True)
class Asked:
    """A request of a trace and what came of it. `tokens`: by number of the answer."""

    prompt: tuple[int, ...]
    sampling: SamplingParams
    handle: Handle
    tokens: dict[int, list[int]] = field(default_factory=dict)
    may_be_cut: bool = False

    @property
    def is_open(self) -> bool:
        return self.handle.result is None

    @property
    def text(self) -> list[int]:
        """The conversation up to where its first answer has got."""
        return [*self.prompt, *self.tokens.get(0, ())]


@dataclass(frozen=True, slots=True)
class Cold:
    """What an engine without a past answers, and the logits behind each token of its first answer."""

    tokens: dict[int, list[int]]
    rows: list[Tensor]


@cache
def cold(model_dir: Path, prompt: tuple[int, ...], sampling: SamplingParams, dtype: str = "float32") -> Cold:
    """Compute one request in an engine of its own."""
    engine, recorder = open_recorded(model_dir, dtype=dtype)
    asked = Asked(prompt, sampling, engine.submit(Request(token_ids=prompt, sampling=sampling)))
    branch = asked.handle.branch
    collect(engine, [asked])
    engine.close()
    positions = range(len(prompt) - 1, len(prompt) + len(asked.tokens[0]) - 1)
    return Cold(
        asked.tokens, [recorder.rows[branch, at] for at in positions if (branch, at) in recorder.rows]
    )


def collect(engine: Engine, requests: list[Asked], num_steps: int | None = None) -> None:
    """Step, to the end if nothing else is said, and give every token to its request."""
    known = {asked.handle.request_id: asked for asked in requests if asked.is_open}
    while engine.has_work and num_steps != 0:
        num_steps = None if num_steps is None else num_steps - 1
        for event in engine.step():
            if isinstance(event, TokenEmitted):
                known[event.request_id].tokens.setdefault(event.sample, []).append(event.token_id)
        engine.check_integrity()


class Life:
    """One engine after another on one cache directory, and all that is asked of them."""

    def __init__(
        self, model_dir: Path, cache_dir: Path, seed: int, *samplings: SamplingParams, dtype: str = "float32"
    ) -> None:
        """`samplings`: how answers may be chosen, greedily unless told otherwise."""
        self.model_dir, self.cache_dir, self.dtype = model_dir, cache_dir, dtype
        self.samplings = samplings or (GREEDY,)
        self.random = random.Random(seed)
        self.requests: list[Asked] = []
        self.branches: dict[BranchId, list[int]] = {}
        """Live branches on which nothing runs, with the text that they stand for."""
        self.engine, self.recorder = self._open()

    def run(self, num_actions: int) -> None:
        actions = [self.ask, self.ask, self.ask_again, self.go_on, self.fork, self.cancel, self.release]
        for number in range(num_actions):
            self.random.choice(actions)()
            self.step(self.random.choice((0, 1, 3, 10)))
            if number == num_actions * 2 // 3:
                self.restart()
        self.step(None)
        self._close()

    # Actions

    def ask(self) -> None:
        """Ask with the beginning of any text so far, so that conversations share and diverge."""
        known = self.random.choice([[], *(asked.text for asked in self.requests)])
        keep = known[: self.random.randrange(len(known) + 1)]
        self._submit((keep + self._words(5, 60))[:MAX_TEXT])

    def ask_again(self) -> None:
        """Retry: the very same prompt, while the first answer lives, runs or is gone."""
        if self.requests:
            self._submit(list(self.random.choice(self.requests).prompt))

    def go_on(self) -> None:
        if self.branches:
            branch = self.random.choice(list(self.branches))
            text = self.branches.pop(branch) + self._words(1, 25)
            self._submit(text[:MAX_TEXT], branch)

    def fork(self) -> None:
        """Fork an idle branch, or one that is being written."""
        running = {
            asked.handle.branch: asked
            for asked in self.requests
            if asked.is_open and asked.sampling.beam_width is None  # a search lets go of beams by itself
        }
        live = [*self.branches, *running]
        if live:
            branch = self.random.choice(live)
            text = self.branches[branch] if branch in self.branches else running[branch].text
            self.branches[self.engine.fork(branch)] = list(text)

    def cancel(self) -> None:
        open_now = [asked for asked in self.requests if asked.is_open]
        if open_now:
            asked = self.random.choice(open_now)
            asked.may_be_cut = True
            asked.handle.cancel()
            if self.random.random() < 0.5:
                self.step(1)
                self.release()

    def release(self) -> None:
        if self.branches:
            branch = self.random.choice(list(self.branches))
            del self.branches[branch]
            self.engine.release(branch)

    def step(self, num_steps: int | None) -> None:
        before = [asked for asked in self.requests if asked.is_open]
        collect(self.engine, self.requests, num_steps)
        for asked in before:
            if asked.handle.result is not None:
                for end in asked.handle.result.samples:
                    self.branches[end.branch] = [*asked.prompt, *asked.tokens.get(end.sample, ())]

    def restart(self) -> None:
        self._close()
        self.engine, self.recorder = self._open()

    # Parts of the above

    def _open(self) -> tuple[Engine, RecordingRunner]:
        token_bytes = TOKEN_BYTES[self.dtype]
        return open_recorded(
            self.model_dir,
            dtype=self.dtype,
            cache_dir=self.cache_dir,
            device_bytes=self.random.randrange(260, 420) * token_bytes,
            host_bytes=self.random.choice((0, 200, 2000)) * token_bytes,
            max_batch_tokens=self.random.choice((13, 40, 100)),
        )

    def _close(self) -> None:
        for asked in self.requests:
            asked.may_be_cut |= asked.is_open
            asked.handle.cancel()
        self.step(1)
        assert not self.engine.has_work
        for branch in [usage.branch for usage in self.engine.snapshot().branches]:
            self.engine.release(branch)
        self.branches.clear()
        snapshot = self.engine.snapshot()
        assert [group.used_blocks for group in snapshot.groups] == [0] * len(snapshot.groups)
        self.engine.check_integrity()
        self.engine.close()

    def _submit(self, prompt: list[int], branch: BranchId | None = None) -> None:
        sampling = replace(self.random.choice(self.samplings), max_tokens=self.random.choice((3, 8, 16)))
        request = Request(
            token_ids=tuple(prompt), sampling=sampling, priority=self.random.randrange(2), branch=branch
        )
        self.requests.append(Asked(request.token_ids, sampling, self.engine.submit(request)))

    def _words(self, least: int, most: int) -> list[int]:
        return [self.random.randrange(1, VOCAB_SIZE) for _ in range(self.random.randint(least, most))]
