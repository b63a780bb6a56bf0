"""What engines are held to is transformers' own greedy answer, whatever an engine has said."""

import pytest

from tests.engine.conftest import TinyModels
from tests.engine.tiny_models import SAID, Reference, token_ids

pytestmark = pytest.mark.cpu


@pytest.fixture
def prompt() -> list[int]:
    return token_ids(61, seed=77)


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_the_answer_is_that_of_generate_whatever_was_said(
    kind: str, tiny: TinyModels, prompt: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Reference(tiny(kind))
    wanted = model.generate(prompt, 20)
    wrong = [*wanted[:12], (wanted[12] + 1) % 512, *wanted[13:]]
    for said in ([], wanted, wanted[:7], [*wanted, 1, 2], wrong):
        monkeypatch.setitem(SAID, tuple(prompt), said)
        assert model.answer(prompt, 20) == wanted


def test_what_an_engine_said_rightly_is_not_generated_again(
    tiny: TinyModels, prompt: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Reference(tiny("gemma3"))
    monkeypatch.setitem(SAID, tuple(prompt), model.generate(prompt, 20))
    monkeypatch.setattr(model, "generate", None)
    assert model.answer(prompt, 13) == SAID[tuple(prompt)][:13]


def test_what_depends_on_how_long_the_text_is_or_ends_it_is_always_generated(
    tiny: TinyModels, prompt: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for model_dir in (
        tiny("llama", eos_token_id=[7]),
        tiny("llama", rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}),
    ):
        model = Reference(model_dir)
        monkeypatch.setitem(SAID, tuple(prompt), model.generate(prompt, 5))
        monkeypatch.setattr(model, "generate", lambda prompt, num_tokens: ["generated"])
        assert model.answer(prompt, 5) == ["generated"]
