"""Random lives of conversations over views, on an engine with little room: answers are a fresh engine's."""

from dataclasses import dataclass
from random import Random

import pytest

from kvchat.engine.api.request import Request
from kvchat.engine.api.sampling_params import SamplingParams
from kvchat.engine.engine import Engine
from kvchat.engine.results import Handle
from tests.engine.conftest import OpenEngine, TinyModels
from tests.engine.namespaced import ask, name
from tests.engine.tiny_models import finish, token_ids

pytestmark = pytest.mark.cpu


@dataclass
class Talk:
    """A conversation: what was said, and where answers began."""

    owner: str
    ids: list[int]
    starts: tuple[int, ...] = ()

    def fork(self) -> "Talk":
        return Talk(self.owner, list(self.ids), self.starts)

    def ask(self, engine: Engine, question: list[int], num_tokens: int) -> Handle:
        self.ids += question
        self.starts = (*self.starts, len(self.ids))
        namespace = name(self.owner, *self.starts)
        sampling = SamplingParams(max_tokens=num_tokens)
        return engine.submit(Request(token_ids=tuple(self.ids), sampling=sampling, namespace=namespace))


def live(engine: Engine, judge: Engine, random: Random, num_turns: int) -> None:
    talks = [Talk(f"s{number}", []) for number in range(3)]
    sequences: list[int] = []
    for turn in range(num_turns):
        chosen = random.sample(talks, random.randint(1, 2))
        asked = []
        for talk in chosen:
            if random.random() < 0.3 and talk.ids:
                talk = talk.fork()
                talks.append(talk)
            if len(talk.ids) > 320:
                talk.ids, talk.starts = [], ()
            question = token_ids(random.choice([3, 20, 90, 150]), seed=100 * turn + len(asked))
            asked.append((talk, talk.ask(engine, question, random.randint(1, 12))))
        if random.random() < 0.3:
            for _ in range(random.randint(0, 3)):
                engine.step()
            asked[0][1].cancel()
        for talk, handle in asked:
            found = finish(engine, handle).token_ids
            engine.check_integrity()
            if found:
                fresh = name(f"fresh{turn}{talk.owner}", *talk.starts)
                assert found == ask(judge, talk.ids, fresh, len(found)).token_ids
            talk.ids += found
            sequences.append(handle.sequence)
        while len(sequences) > random.randint(0, 4):
            sequence = sequences.pop(0)
            if random.random() < 0.5:
                engine.demote(sequence)
                engine.check_integrity()
            engine.release(sequence)
        engine.check_integrity()


@pytest.mark.parametrize(
    ("cache_format", "seed", "num_turns"),
    [
        ("window:32", 1, 6),
        ("snapkv:48", 2, 6),
        # It chooses all there is, so it makes no difference which queries choose together.
        ("shadow:640:forced", 7, 6),
        *(
            pytest.param(text, seed, 40, marks=pytest.mark.slow)
            for text in ("window:32", "keydiff:48", "snapkv:48:pyramid")
            for seed in range(3, 7)
        ),
    ],
)
def test_after_any_life_each_answer_is_that_of_an_engine_without_a_past(
    cache_format: str, seed: int, num_turns: int, tiny: TinyModels, open_engine: OpenEngine
) -> None:
    """Traps 8, 11, 23 and 28."""
    judge = open_engine(tiny("qwen3"), cache_format=cache_format)
    whole = sum(group.block_bytes for group in judge.snapshot().groups)
    engine = open_engine(
        tiny("qwen3"),
        cache_format=cache_format,
        device_bytes=45 * whole,
        host_bytes=60 * whole,
        max_batch_tokens=48,
        max_context=520,
    )
    live(engine, judge, Random(seed), num_turns)
