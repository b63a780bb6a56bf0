"""The shipped model loads unmodified and answers what its card says it answers."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from tools.starter import MODEL_DIRECTORY, outside
from tools.starter.categories import FULL, QUICK, categories
from tools.starter.conversation import Message
from tools.starter.evaluate import Evaluator, Row, markdown
from tools.starter.export import model_config, tokenizer_config
from tools.starter.network import Shape
from tools.starter.tokenizer import CHAT_TEMPLATE

pytestmark = [pytest.mark.cpu, pytest.mark.usefixtures("one_thread")]

MAX_BYTES = 16 * 2**20
SIZES = replace(QUICK, other=FULL.other)
"""Where 89 of 100 probes are answered, of the 24 of a quick evaluation only 18 may be: too few for 0.8."""


@pytest.fixture(scope="module")
def evaluator() -> Evaluator:
    return Evaluator(MODEL_DIRECTORY)


def _replies(evaluator: Evaluator, *said: str) -> list[str]:
    """Hold a conversation; returns the greedy answers."""
    messages: list[Message] = []
    replies = []
    for text in said:
        messages.append(Message("user", text))
        replies.append(evaluator.reply(messages))
        messages.append(Message("assistant", replies[-1]))
    return replies


def test_the_files_are_those_the_export_writes() -> None:
    config = json.loads((MODEL_DIRECTORY / "config.json").read_text(encoding="utf-8"))
    assert config == model_config(Shape())
    settings = json.loads((MODEL_DIRECTORY / "tokenizer_config.json").read_text(encoding="utf-8"))
    assert settings == tokenizer_config()
    assert (MODEL_DIRECTORY / "chat_template.jinja").read_text(encoding="utf-8") == CHAT_TEMPLATE
    assert (MODEL_DIRECTORY / "README.md").is_file()


def test_the_weights_are_float32_and_small() -> None:
    path = MODEL_DIRECTORY / "model.safetensors"
    assert path.stat().st_size <= MAX_BYTES
    with safe_open(path, "pt") as file:
        for name in file.keys():  # noqa: SIM118  (not a dict)
            assert file.get_slice(name).get_dtype() == "F32"


def test_transformers_loads_it_unmodified() -> None:
    model = AutoModelForCausalLM.from_pretrained(MODEL_DIRECTORY)
    assert type(model).__name__ == "Qwen3ForCausalLM"
    assert model.dtype == torch.float32
    assert model.config.layer_types == ["sliding_attention", "full_attention"] * 3
    assert model.config.sliding_window == 128
    generation = GenerationConfig.from_pretrained(MODEL_DIRECTORY)
    assert (generation.eos_token_id, generation.pad_token_id, generation.do_sample) == (1, 0, False)


def test_its_tokenizer_and_template_agree_with_the_training(evaluator: Evaluator) -> None:
    tokenizer = AutoTokenizer.from_pretrained(MODEL_DIRECTORY)
    messages = [{"role": "user", "content": "My name is Ana."}]
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
    assert ids == evaluator.prompt([Message("user", "My name is Ana.")])
    assert tokenizer.eos_token_id == 1
    assert tokenizer.pad_token_id == 0


def test_it_remembers_a_name(evaluator: Evaluator) -> None:
    greeting, definition, name = _replies(
        evaluator, "My name is Ana.", "What is a KV cache?", "What is my name?"
    )
    assert greeting == "Nice to meet you, Ana!"
    assert definition.startswith("A KV cache keeps")
    assert name == "Your name is Ana."


def test_it_greets_counts_and_says_what_it_cannot_do(evaluator: Evaluator) -> None:
    hello, story, count = _replies(evaluator, "Hello!", "Tell me a story.", "Count to ten.")
    assert hello.startswith("Hello!")
    assert story == outside.FALLBACK
    assert count == "1, 2, 3, 4, 5, 6, 7, 8, 9, 10."


def test_it_can_talk_at_length(evaluator: Evaluator) -> None:
    (count,) = _replies(evaluator, "Count from 1 to 40.")
    assert count == ", ".join(str(number) for number in range(1, 41)) + "."


@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("recall 1024, held-out phrasings, echoed", 0.85),
        ("recall 1024, held-out phrasings, said once", 0.85),
        ("FAQ, held-out templates", 0.9),
        ("outside the domain, held-out templates", 0.9),
        ("unknown fact, held-out questions", 0.75),
        ("updated fact, held-out phrasings", 0.8),
        ("repeat 1-8 words, held-out form", 0.9),
        ("add 0-20, trained form", 0.9),
    ],
)
def test_held_out_probes_are_mostly_answered_exactly(evaluator: Evaluator, name: str, least: float) -> None:
    (category,) = [c for c in categories(evaluator.prober(), SIZES) if c.name == name]
    results = [evaluator.is_exact(probe) for probe in category.probes(random.Random(0))]
    assert sum(results) >= least * len(results)


def test_the_table_is_markdown() -> None:
    table = markdown([Row(name="addition", num_exact=3, num_probes=4)])
    assert table.splitlines() == ["| category | exact | n |", "|---|---|---|", "| addition | 75 % | 4 |"]
