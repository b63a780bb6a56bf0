"""Random life of an engine: questions, forks, cancelled answers, retries, pressure and restarts.

A trace follows from its seed alone. What every request answered is compared with an engine that has computed
nothing else, on pools that hold all it needs.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from torch import Tensor

from kvchat.engine.api.config import EngineConfig
from kvchat.engine.api.events import FinishReason, TokenEmitted
from kvchat.engine.api.ids import SequenceId
from kvchat.engine.api.request import Request
from kvchat.engine.api.sampling_params import SamplingParams
from kvchat.engine.engine import Engine
from kvchat.engine.results import Handle
from kvchat.engine.scheduling.scheduler import Drafter
from kvchat.engine.startup.weights import Candidate
from tests.engine.tiny_models import VOCAB_SIZE, RecordingRunner, load, open_recorded

MAX_TEXT = 120
GREEDY = SamplingParams()
SEVERAL = SamplingParams(n=2, temperature=0.9, seed=7)
BEAMS = SamplingParams(beam_width=3)
TOKEN_BYTES = {"float32": 1024, "bfloat16": 512, "float16": 512}
"""Bytes of one token in four layers of a tiny model."""


@dataclass(slots=True)
class Asked:
    """A request of a trace and what came of it. `tokens`: by number of the answer."""

    prompt: tuple[int, ...]
    sampling: SamplingParams
    handle: Handle
    tokens: dict[int, list[int]] = field(default_factory=dict)
    rows: list[Tensor] = field(default_factory=list)
    """The logits that chose each token of the first answer, kept where answers are greedy."""
    may_be_cut: bool = False

    @property
    def is_open(self) -> bool:
        return self.handle.result is None

    @property
    def text(self) -> list[int]:
        """The conversation up to where its first answer has got."""
        return [*self.prompt, *self.tokens.get(0, ())]


@cache
def cold(model_dir: Path, prompt: tuple[int, ...], sampling: SamplingParams, dtype: str = "float32") -> Asked:
    """Answer a request in an engine that computes nothing else, on weights that others had before it."""
    engine, recorder = open_recorded(model_dir, candidate=_weights(model_dir, dtype), dtype=dtype)
    asked = Asked(prompt, sampling, engine.submit(Request(token_ids=prompt, sampling=sampling)))
    collect(engine, [asked])
    keep_rows(asked, recorder)
    engine.close()
    return asked


@cache
def _weights(model_dir: Path, dtype: str) -> Candidate:
    return load(model_dir, EngineConfig(device="cpu", dtype=dtype))


def keep_rows(asked: Asked, recorder: RecordingRunner) -> None:
    """Keep the logits of a greedy request that has ended."""
    if asked.sampling == replace(GREEDY, max_tokens=asked.sampling.max_tokens):
        first = len(asked.prompt) - 1
        asked.rows = [
            recorder.row(asked.handle.sequence, first + at) for at in range(len(asked.tokens.get(0, ())))
        ]


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
        self,
        model_dir: Path,
        cache_dir: Path,
        seed: int,
        *samplings: SamplingParams,
        dtype: str = "float32",
        drafter: Drafter | None = None,
    ) -> None:
        """Args:
        samplings: how answers may be chosen, greedily unless told otherwise.
        drafter: guesses their tokens.
        """
        self.drafter = drafter
        self.model_dir, self.cache_dir, self.dtype = model_dir, cache_dir, dtype
        self.samplings = samplings or (GREEDY,)
        self.seed, self.random = seed, random.Random(seed)
        self.requests: list[Asked] = []
        self.sequences: dict[SequenceId, list[int]] = {}
        """Live sequences on which nothing runs, with the text that they stand for."""
        self.engine, self.recorder = self._open()

    def run(self, num_actions: int) -> None:
        """Do so many things, with some steps after each."""
        for number in range(num_actions):
            action = self.random.choice(self._possible()) if number > 2 else self.ask
            action()
            self.step(self.random.choice((0, 0, 1, 3, 8)))
            if number == num_actions * 2 // 3:
                self.step(self.random.choice((0, None)))  # some restarts cut answers off
                self.restart()
        self.step(None)
        self._close()

    def _possible(self) -> list[Callable[[], None]]:
        actions = [self.ask, self.ask, self.ask_again, self.ask_again]
        if self.sequences:
            actions += [self.go_on, self.go_on, self.fork, self.release]
        if any(asked.is_open for asked in self.requests):
            actions += [self.fork, self.cancel]
        return actions

    # Actions

    def ask(self) -> None:
        """Ask with the beginning of any text so far, so that conversations share and diverge."""
        known = self.random.choice([[], *(asked.text for asked in self.requests)])
        keep = known[: self.random.randrange(len(known) + 1)]
        self._submit((keep + self._words(10, 90))[:MAX_TEXT])

    def ask_again(self) -> None:
        """Retry: the very same prompt, while the first answer lives, runs or is gone."""
        self._submit(list(self.random.choice(self.requests).prompt))

    def go_on(self) -> None:
        sequence = self.random.choice(list(self.sequences))
        text = self.sequences.pop(sequence) + self._words(1, 25)
        if len(text) <= MAX_TEXT:
            self._submit(text, sequence)
        else:
            self.engine.release(sequence)

    def fork(self) -> None:
        """Fork an idle sequence, or one that is being written."""
        running = {
            asked.handle.sequence: asked
            for asked in self.requests
            if asked.is_open and asked.sampling.beam_width is None  # a search lets go of beams by itself
        }
        live = [*self.sequences, *running]
        if live:
            sequence = self.random.choice(live)
            text = self.sequences[sequence] if sequence in self.sequences else running[sequence].text
            self.sequences[self.engine.fork(sequence)] = list(text)

    def cancel(self) -> None:
        asked = self.random.choice([asked for asked in self.requests if asked.is_open])
        asked.may_be_cut = True
        asked.handle.cancel()
        if self.random.random() < 0.5:
            self.step(1)
            self.release()

    def release(self) -> None:
        if self.sequences:
            sequence = self.random.choice(list(self.sequences))
            del self.sequences[sequence]
            self.engine.release(sequence)

    def step(self, num_steps: int | None) -> None:
        before = [asked for asked in self.requests if asked.is_open]
        collect(self.engine, self.requests, num_steps)
        for asked in before:
            if asked.handle.result is not None:
                keep_rows(asked, self.recorder)
                for end in asked.handle.result.samples:
                    self.sequences[end.sequence] = [*asked.prompt, *asked.tokens.get(end.sample, ())]
                    if len(asked.tokens.get(end.sample, ())) < end.completion_tokens:
                        del self.sequences[end.sequence]  # a search that was given up has told nothing
                        self.engine.release(end.sequence)

    def restart(self) -> None:
        self._close()
        self.engine, self.recorder = self._open()

    # Parts of the above

    def _open(self) -> tuple[Engine, RecordingRunner]:
        token_bytes = TOKEN_BYTES[self.dtype]
        return self._opened(
            cache_dir=self.cache_dir,
            device_bytes=self.random.randrange(230, 320) * token_bytes,
            host_bytes=self.random.choice((0, 200, 2000)) * token_bytes,
            max_batch_tokens=self.random.choice((13, 40, 100)),
        )

    def _opened(self, **settings: object) -> tuple[Engine, RecordingRunner]:
        return open_recorded(self.model_dir, self.drafter, dtype=self.dtype, **settings)

    def _close(self) -> None:
        for asked in self.requests:
            asked.may_be_cut |= asked.is_open
            asked.handle.cancel()
        self.step(1)
        assert not self.engine.has_work
        for sequence in [usage.sequence for usage in self.engine.snapshot().sequences]:
            self.engine.release(sequence)
        self.sequences.clear()
        snapshot = self.engine.snapshot()
        assert [group.used_blocks for group in snapshot.groups] == [0] * len(snapshot.groups)
        self.engine.check_integrity()
        self.engine.close()

    def _submit(self, prompt: list[int], sequence: SequenceId | None = None) -> None:
        sampling = replace(self.random.choice(self.samplings), max_tokens=self.random.choice((4, 12, 24)))
        request = Request(
            token_ids=tuple(prompt), sampling=sampling, priority=self.random.randrange(2), sequence=sequence
        )
        self.requests.append(Asked(request.token_ids, sampling, self.engine.submit(request)))

    def _words(self, least: int, most: int) -> list[int]:
        return [self.random.randrange(1, VOCAB_SIZE) for _ in range(self.random.randint(least, most))]


def live(life: Life, num_actions: int) -> None:
    """Run a life, and hold each of its answers to that of an engine without a past."""
    life.run(num_actions)
    assert life.requests
    for number, asked in enumerate(life.requests):
        _expect_cold(life.model_dir, asked, f"request {number} of seed {life.seed}")


def _expect_cold(model_dir: Path, asked: Asked, name: str) -> None:
    result = asked.handle.result
    assert result is not None
    reasons = {sample.reason for sample in result.samples}
    assert reasons <= {FinishReason.LENGTH} | ({FinishReason.CANCELLED} if asked.may_be_cut else set())
    wanted = cold(model_dir, asked.prompt, asked.sampling).tokens
    if reasons == {FinishReason.LENGTH}:
        assert asked.tokens == wanted, name
    elif asked.sampling.beam_width is not None:
        return  # a search that is cut short tells its best beam so far, which another may overtake later
    for sample, tokens in asked.tokens.items():
        assert tokens == wanted[sample][: len(tokens)], name
