"""What was computed behind blocks of a bundle stays with that bundle: no other conversation meets it."""

from dataclasses import replace
from pathlib import Path

import pytest

from kvchat.engine.api.request import Request
from kvchat.engine.api.sampling_params import SamplingParams
from kvchat.engine.engine import Engine
from kvchat.engine.results import Result, collect
from kvchat.errors import InvalidRequest
from tests.engine.conftest import OpenEngine, TinyModels
from tests.engine.tiny_models import reference, token_ids

pytestmark = pytest.mark.cpu

BUNDLE = "bundle:" + "7" * 64
PROMPT = tuple(token_ids(100))


def ask(engine: Engine, namespace: str, prompt: tuple[int, ...] = PROMPT) -> Result:
    return collect(engine.submit(request(namespace, prompt)))


def request(namespace: str, prompt: tuple[int, ...] = PROMPT) -> Request:
    return Request(token_ids=prompt, sampling=SamplingParams(max_tokens=4), namespace=namespace)


def test_two_namespaces_share_no_block_and_no_tail_whether_live_cached_or_stored(
    tiny: TinyModels, open_engine: OpenEngine, tmp_path: Path
) -> None:
    """Trap 28: not even a live tail of equal tokens is copied across."""
    model_dir = tiny("qwen3")
    engine = open_engine(model_dir, cache_dir=tmp_path)
    imported = ask(engine, BUNDLE)
    native = ask(engine, "")
    again = ask(engine, BUNDLE)
    assert imported.usage.cached_tokens == native.usage.cached_tokens == 0
    assert again.usage.cached_tokens == len(PROMPT) - 1
    for sequence in (*imported.sequences, *native.sequences, *again.sequences):
        engine.release(sequence)
    engine.close()
    reopened = open_engine(model_dir, cache_dir=tmp_path)
    assert ask(reopened, "bundle:" + "8" * 64).usage.cached_tokens == 0
    assert ask(reopened, BUNDLE).loaded.disk == len(PROMPT) - 1
    assert ask(reopened, "").loaded.disk == len(PROMPT) - 1
    assert native.token_ids == imported.token_ids == reference(model_dir).answer(PROMPT, 4)


def test_a_fork_and_the_answers_on_it_stay_in_the_namespace(
    tiny: TinyModels, open_engine: OpenEngine
) -> None:
    engine = open_engine(tiny("qwen3"))
    imported = ask(engine, BUNDLE)
    child = engine.fork(imported.sequences[0])
    longer = (*PROMPT, *imported.token_ids, *token_ids(40, seed=9))
    result = collect(engine.submit(replace(request(BUNDLE, longer), sequence=child)))
    assert result.usage.cached_tokens == len(PROMPT) + 3
    assert ask(engine, "", longer).usage.cached_tokens == 0
    assert ask(engine, BUNDLE, (*longer, 5)).usage.cached_tokens == len(longer)


def test_a_live_sequence_is_not_continued_in_another_namespace(
    tiny: TinyModels, open_engine: OpenEngine
) -> None:
    engine = open_engine(tiny("qwen3"))
    imported = ask(engine, BUNDLE)
    with pytest.raises(InvalidRequest, match="another namespace"):
        engine.submit(replace(request("", (*PROMPT, 1)), sequence=imported.sequences[0]))
