"""What makes no sense is refused with the reason, costs nobody else anything, and never ends the engine."""

import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvchat.engine.api.events import FinishReason
from kvchat.engine.api.request import Request
from kvchat.engine.api.sampling_params import SamplingParams
from kvchat.engine.engine import Engine
from kvchat.errors import ContextOverflow, InvalidRequest, ModelError
from tests.engine.conftest import OpenEngine, TinyModels
from tests.engine.tiny_models import answer, edit_json, edit_tensors, finish, reference, submit, token_ids

pytestmark = pytest.mark.cpu

PROMPT = tuple(token_ids(40))
SMALL_POOL = {"device_bytes": 300_000, "max_context": 256}


def ask(token_ids: Any = PROMPT, **sampling: Any) -> Request:
    return Request(token_ids=token_ids, sampling=SamplingParams(**{"max_tokens": 4} | sampling))


BAD_REQUESTS: list[tuple[type[Exception], Callable[[], Request]]] = [
    (InvalidRequest, lambda: ask(())),
    (InvalidRequest, lambda: ask((1, 512))),
    (InvalidRequest, lambda: ask((1, -1))),
    (InvalidRequest, lambda: ask((1, 2**40))),
    (InvalidRequest, lambda: ask((1, 2.0))),
    (InvalidRequest, lambda: ask((1, None))),
    (InvalidRequest, lambda: ask((1, True))),
    (InvalidRequest, lambda: ask("abc")),
    (InvalidRequest, lambda: Request(token_ids=PROMPT, priority=None)),  # type: ignore[arg-type]
    (InvalidRequest, lambda: Request(token_ids=PROMPT, sequence=99)),  # type: ignore[arg-type]
    (InvalidRequest, lambda: Request(token_ids=PROMPT, namespace="\ud800")),
    (InvalidRequest, lambda: Request(token_ids=PROMPT, namespace=None)),  # type: ignore[arg-type]
    (InvalidRequest, lambda: Request(token_ids=PROMPT, namespace=b"x")),  # type: ignore[arg-type]
    (ContextOverflow, lambda: ask(tuple(token_ids(256)))),
    (ContextOverflow, lambda: ask(tuple(token_ids(5000)))),
    (InvalidRequest, lambda: ask(max_tokens=0)),
    (InvalidRequest, lambda: ask(max_tokens=2.5)),
    (InvalidRequest, lambda: ask(max_tokens="many")),
    (InvalidRequest, lambda: ask(temperature=math.nan)),
    (InvalidRequest, lambda: ask(temperature="hot")),
    (InvalidRequest, lambda: ask(temperature=-1)),
    (InvalidRequest, lambda: ask(temperature=1.0, top_k=2.5)),
    (InvalidRequest, lambda: ask(temperature=1.0, top_k=0)),
    (InvalidRequest, lambda: ask(temperature=1.0, top_p=0)),
    (InvalidRequest, lambda: ask(temperature=1.0, min_p=math.nan)),
    (InvalidRequest, lambda: ask(temperature=1.0, seed=1.5)),
    (InvalidRequest, lambda: ask(logprobs=1.5)),
    (InvalidRequest, lambda: ask(repetition_penalty=math.inf)),
    (InvalidRequest, lambda: ask(stop_token_ids=("a",))),
    (InvalidRequest, lambda: ask(n=None)),
    (InvalidRequest, lambda: ask(n=0)),
    (InvalidRequest, lambda: ask(n=2)),
    (InvalidRequest, lambda: ask(temperature=1.0, n=3, best_of=2)),
    (InvalidRequest, lambda: ask(temperature=1.0, beam_width=2)),
    (InvalidRequest, lambda: ask(beam_width=2, n=3)),
    (InvalidRequest, lambda: ask(beam_width=2, best_of=2)),
    (InvalidRequest, lambda: ask(beam_width=2, length_penalty=math.nan)),
    (InvalidRequest, lambda: ask(beam_width=2, length_penalty=1e308)),
]


def test_every_bad_request_is_refused_with_its_reason_and_the_others_go_on(
    tiny: TinyModels, open_engine: OpenEngine
) -> None:
    engine = open_engine(tiny("llama"), **SMALL_POOL)
    running = submit(engine, PROMPT, 40)
    for error, make in BAD_REQUESTS:
        engine.step()
        with pytest.raises(error):
            engine.submit(make())
        engine.check_integrity()
    assert finish(engine, running).token_ids == reference(tiny("llama")).answer(PROMPT, 40)
    assert not engine.has_work


EXTREMES = [
    {"temperature": 1.0, "repetition_penalty": 1e-45},
    {"temperature": 1.0, "repetition_penalty": 1e300},
    {"repetition_penalty": 1e-320},
    {"temperature": 1e-300},
    {"temperature": 1e300},
    {"temperature": 1.0, "top_p": 1e-300},
    {"temperature": 1.0, "top_k": 10**12},
    {"logprobs": 10**9},
    {"stop_token_ids": (-5, 10**9)},
    {"beam_width": 3, "length_penalty": -10.0},
]


def test_parameters_that_are_extreme_and_allowed_are_answered(
    tiny: TinyModels, open_engine: OpenEngine
) -> None:
    engine = open_engine(tiny("llama"), **SMALL_POOL)
    for sampling in EXTREMES:
        handle = engine.submit(ask(**sampling))
        list(handle)
        assert handle.result is not None
        assert (handle.result.reason, handle.result.error) == (FinishReason.LENGTH, None), sampling


def _with_embedding(model_dir: Path, copy_dir: Path, token: int, value: float) -> Path:
    """Return a copy of a model for which a token is nothing but `value`."""
    shutil.copytree(model_dir, copy_dir)
    name = "model.embed_tokens.weight"
    edit_tensors(copy_dir / "model.safetensors", lambda weights: weights[name][token].fill_(value))
    return copy_dir


def test_answers_that_end_before_their_first_token_leave_no_sequence(
    tiny: TinyModels, open_engine: OpenEngine, tmp_path: Path
) -> None:
    engine = open_engine(_with_embedding(tiny("llama"), tmp_path / "model", 7, math.nan))
    (result,) = engine.generate([[3, 7, 5]], SamplingParams(max_tokens=4, temperature=1.0, n=3))
    assert [sample.finish_reason for sample in result.samples] == [FinishReason.ERROR] * 3
    assert not engine.snapshot().sequences


class BrokenMatcher:
    """Raises with the token of this number, or when it is forked."""

    def __init__(self, at: int) -> None:
        self._at = at

    def feed(self, token_id: int) -> bool:
        self._at -= 1
        if not self._at:
            raise KeyError(token_id)
        return False

    def fork(self) -> "BrokenMatcher":
        raise TypeError("no fork")


def test_a_stop_matcher_that_raises_ends_its_request_alone(tiny: TinyModels, open_engine: OpenEngine) -> None:
    engine = open_engine(tiny("llama"), **SMALL_POOL)
    running = submit(engine, PROMPT, 12)
    request = Request(token_ids=PROMPT, sampling=SamplingParams(max_tokens=9), stop=BrokenMatcher(3))
    result = finish(engine, engine.submit(request))
    assert (result.finish_reason, len(result.token_ids)) == (FinishReason.ERROR, 3)
    assert "KeyError" in str(result.error)
    assert finish(engine, running).token_ids == reference(tiny("llama")).answer(PROMPT, 12)


@pytest.mark.parametrize("namespace", ["\ud800", None])
def test_a_namespace_that_is_no_text_is_refused_wherever_it_is_asked_about(
    namespace: Any, tiny: TinyModels, open_engine: OpenEngine
) -> None:
    engine = open_engine(tiny("llama"))
    with pytest.raises(InvalidRequest, match="namespace"):
        engine.reusable_len(PROMPT, namespace)
    with pytest.raises(InvalidRequest, match="namespace"):
        engine.prefetch(PROMPT, namespace=namespace)


@pytest.mark.parametrize("ids", [(-1,) * 40, (2**40,) * 40])
def test_ids_outside_the_vocabulary_are_refused_wherever_they_are_asked_about(
    ids: tuple[int, ...], tiny: TinyModels, open_engine: OpenEngine
) -> None:
    engine = open_engine(tiny("llama"))
    with pytest.raises(InvalidRequest, match="vocabulary"):
        engine.reusable_len(ids)
    with pytest.raises(InvalidRequest, match="vocabulary"):
        engine.prefetch(PROMPT, beside=ids)


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_token_that_makes_everything_nan_ends_its_requests_alone(
    kind: str, bad: float, tiny: TinyModels, open_engine: OpenEngine, tmp_path: Path
) -> None:
    """Its blocks are handed on to others, who mask what they have not written yet, and must not see it."""
    model_dir = _with_embedding(tiny(kind), tmp_path / "model", 7, bad)
    engine = open_engine(model_dir, **SMALL_POOL)
    for seed in range(3):
        clean = [[token for token in token_ids(length, seed) if token != 7] for length in (60, 45)]
        beside = [submit(engine, prompt, 12) for prompt in clean]
        poisoned = submit(engine, [*token_ids(50, seed), 7, *token_ids(20, seed)], 12)
        result = finish(engine, poisoned)
        assert (result.finish_reason, result.token_ids) == (FinishReason.ERROR, [])
        assert "not a number" in str(result.error)
        for handle, prompt in zip(beside, clean, strict=True):
            assert finish(engine, handle).token_ids == reference(tiny(kind)).answer(prompt, 12)
        _release_all(engine)


def _release_all(engine: Engine) -> None:
    for usage in engine.snapshot().sequences:
        engine.release(usage.sequence)


SLIDING, FULL = "sliding_attention", "full_attention"


@pytest.mark.parametrize(
    ("kind", "lie"),
    [
        ("llama", {"num_hidden_layers": 2}),
        ("llama", {"num_hidden_layers": 6}),
        ("llama", {"num_hidden_layers": 0}),
        ("llama", {"num_hidden_layers": -1}),
        ("llama", {"num_hidden_layers": "4"}),
        ("llama", {"num_attention_heads": 0}),
        ("llama", {"num_attention_heads": 3}),
        ("llama", {"num_attention_heads": 8, "num_key_value_heads": 4}),
        ("llama", {"num_key_value_heads": 3}),
        ("llama", {"head_dim": -16}),
        ("llama", {"vocab_size": 600}),
        ("llama", {"max_position_embeddings": "many"}),
        ("llama", {"rope_parameters": {"rope_type": "yarn"}}),
        ("qwen3", {"layer_types": [SLIDING, FULL]}),
        ("qwen3", {"layer_types": [SLIDING, FULL] * 3}),
        ("qwen3", {"layer_types": ["linear_attention"] * 4}),
        ("qwen3", {"layer_types": ["chunked_attention"] * 4}),
        ("qwen3", {"layer_types": ["nonsense"] * 4}),
        ("qwen3", {"sliding_window": 1}),
        ("qwen3", {"sliding_window": 0}),
        ("qwen3", {"sliding_window": -3}),
        ("qwen3", {"sliding_window": "40"}),
        ("qwen3", {"sliding_window": None}),
    ],
)
def test_a_config_that_lies_about_its_layers_is_refused_at_load(
    kind: str, lie: dict[str, Any], tiny: TinyModels, open_engine: OpenEngine, tmp_path: Path
) -> None:
    with pytest.raises(ModelError):
        open_engine(lying(tiny(kind), tmp_path, lie))


@pytest.mark.parametrize(
    ("kind", "lie"),
    [
        ("llama", {"max_position_embeddings": 10**12}),
        ("llama", {"max_position_embeddings": -5}),
        ("qwen3", {"sliding_window": 10**9}),
        ("qwen3", {"layer_types": [SLIDING] * 4}),
        ("qwen3", {"max_window_layers": -7}),
    ],
)
def test_a_config_that_can_be_taken_at_its_word_is_served_as_transformers_does(
    kind: str, lie: dict[str, Any], tiny: TinyModels, open_engine: OpenEngine, tmp_path: Path
) -> None:
    model_dir = lying(tiny(kind), tmp_path, lie)
    engine = open_engine(model_dir, max_context=1024)
    assert answer(engine, PROMPT, 8).token_ids == reference(model_dir).answer(PROMPT, 8)


def lying(model_dir: Path, tmp_path: Path, lie: dict[str, Any]) -> Path:
    """Return a copy of a model whose config says something else of it."""
    copy = Path(shutil.copytree(model_dir, tmp_path / "model"))
    edit_json(copy / "config.json", **lie)
    return copy
