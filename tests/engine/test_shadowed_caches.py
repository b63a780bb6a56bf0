"""A long context is looked at through a shadow once it has been read: each step chooses what it sees."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers

import kvchat
from kvchat.engine.api.snapshot import ShadowUsage
from kvchat.engine.api.view import parse_view
from kvchat.engine.engine import Engine
from kvchat.engine.formats.shadow.settings import settings_for
from kvchat.engine.formats.shadow.spec import ShadowSpec
from kvchat.errors import ConfigError, PoolExhausted, UnsupportedModel
from tests.engine.conftest import OpenEngine, OpenRecorded, TinyModels
from tests.engine.formats.conformance import Conversation
from tests.engine.namespaced import ask, name
from tests.engine.shadowed import Shadowed
from tests.engine.tiny_models import finish, reference, save_model, submit, token_ids
from tools.starter.recall_suite import SuiteGenerator, SuiteSize

pytestmark = pytest.mark.cpu

BLOCK = 16
ALL = "shadow:640:forced"
"""Chooses every chunk of every context here."""
SOME = "shadow:64:forced"
"""Chooses 8 chunks of 8 tokens, and sees 2 besides, and 4 local ones."""
PROMPT = 203
QUERY_BLOCK = 64
STARTER = Path(kvchat.__file__).parent / "starter" / "model"


def shadows(engine: Engine) -> list[ShadowUsage]:
    return [layer.shadow for layer in engine.snapshot().layers if layer.shadow is not None]


Opened = Callable[..., Engine]


@pytest.fixture
def opened(tiny: TinyModels, open_engine: OpenEngine) -> Opened:
    return lambda **settings: open_engine(tiny("llama"), **{"cache_format": SOME} | settings)


# What is computed


@pytest.mark.parametrize(("kind", "num_layers"), [("llama", 4), ("qwen3", 2), ("gemma3", 1)])
def test_a_budget_that_sees_all_is_the_exact_format(
    kind: str, num_layers: int, tiny: TinyModels, open_engine: OpenEngine
) -> None:
    """A long prompt, its answer, and a long follow-up with its own: greedy tokens are the model's."""
    prompt = token_ids(303)
    engine = open_engine(tiny(kind), cache_format=ALL)
    handle = submit(engine, prompt, 12)
    text = prompt + finish(engine, handle).token_ids
    assert text[303:] == reference(tiny(kind)).answer(prompt, 12)
    text += token_ids(150, seed=1)
    found = finish(engine, submit(engine, text, 12, handle.sequence)).token_ids
    assert found == reference(tiny(kind)).answer(text, 12)
    assert [usage.wanted_chunks > 0 for usage in shadows(engine)] == [True] * num_layers


def query_blocks(start: int, end: int) -> list[int]:
    """Return where positions [start, end) are cut when they are computed as a prompt."""
    return [start, *range((start // QUERY_BLOCK + 1) * QUERY_BLOCK, end, QUERY_BLOCK)]


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_an_answer_is_dense_attention_over_what_each_step_chooses(
    kind: str, tiny: TinyModels, open_recorded: OpenRecorded
) -> None:
    """Token by token, and a follow-up block by block; the prompt itself is computed exactly."""
    prompt = token_ids(PROMPT)
    engine, recorder = open_recorded(tiny(kind), cache_format=SOME, max_batch_tokens=100)
    handle = submit(engine, prompt, 12)
    text = prompt + finish(engine, handle).token_ids + token_ids(150, seed=1)
    found = finish(engine, submit(engine, text, 8, handle.sequence)).token_ids
    text += found
    first, follow = PROMPT + 11, len(text) - 8
    cuts = [*range(PROMPT, first), *query_blocks(first, follow), *range(follow, len(text) + 1)]
    judge = Shadowed(tiny(kind), settings_for(parse_view(SOME), PROMPT))
    wanted = judge.logits(text, cuts)
    for position in [*range(PROMPT - 1, first), *range(follow - 1, len(text) - 1)]:
        row = recorder.row(handle.sequence, position)
        assert torch.allclose(row, wanted[position], atol=1e-3), position
    exact = reference(tiny(kind)).logits(text)
    assert torch.allclose(wanted[PROMPT - 1], exact[PROMPT - 1], atol=1e-4)
    assert not torch.allclose(wanted[-2], exact[-2], atol=0.05)


def made(engine: Engine) -> list[int]:
    """Return of how many tokens each layer's shadows were made."""
    return [usage.made_tokens for usage in shadows(engine)]


def test_what_was_made_of_a_prompt_is_made_once_for_all_who_begin_with_it(opened: Opened) -> None:
    """A fork, another conversation that says the same, and one after all of them have been let go of."""
    engine, prompt = opened(), token_ids(PROMPT)
    handle = submit(engine, prompt, 8)
    said = finish(engine, handle).token_ids
    assert made(engine) == [PROMPT] * 4
    child = engine.fork(handle.sequence)
    finish(engine, submit(engine, [*prompt, *said, *token_ids(20, seed=1)], 6, child))
    assert made(engine) == [PROMPT] * 4
    turn = [*prompt, *said, *token_ids(9, seed=2)]
    ask(engine, turn, name("c", PROMPT, len(turn)), 4)
    for sequence in (handle.sequence, child):
        engine.release(sequence)
    again = ask(engine, prompt, name("b", PROMPT), 8)
    assert again.token_ids == said
    assert made(engine) == [PROMPT] * 4
    ask(engine, token_ids(PROMPT, seed=3), "", 2)
    assert made(engine) == [2 * PROMPT] * 4


def test_a_session_that_is_taken_up_has_its_prompts_shadow_made_once_and_nothing_computed(
    opened: Opened, tmp_path: Path
) -> None:
    prompt = token_ids(PROMPT)
    engine = opened(cache_dir=tmp_path)
    text = [*prompt, *ask(engine, prompt, name("a", PROMPT), 20).token_ids]
    engine.close()
    engine = opened(cache_dir=tmp_path)
    for seed in (5, 6):
        text += token_ids(20, seed=seed)
        result = ask(engine, text, name("a", PROMPT, len(text)), 4)
        assert result.usage.computed_tokens == 21, "the last token, which was never fed, and the message"
        assert made(engine) == [PROMPT] * 4
        text += result.token_ids


def test_a_conversation_that_goes_on_on_anothers_sequence_is_looked_at_through_its_own_shadow(
    opened: Opened,
) -> None:
    """Both are of one session, equally long and computed equally far; only the text tells them apart."""
    texts = [token_ids(PROMPT), token_ids(PROMPT, seed=1)]
    alone, moved = Conversation(opened()), Conversation(opened())
    for one in (alone, moved):
        one.say(texts[1], 8)
    wanted = alone.say(token_ids(20, seed=3), 8).token_ids
    engine, other = moved.engine, Conversation(moved.engine)
    assert moved.sequence is not None
    engine.release(moved.sequence)
    other.say(texts[0], 8)
    assert other.sequence is not None
    engine.demote(other.sequence)
    moved.sequence = other.sequence
    found = moved.say(token_ids(20, seed=3), 8)
    assert found.usage.cached_tokens == PROMPT + 7
    assert found.token_ids == wanted


# What it takes


def test_shadows_that_nobody_uses_make_room_and_are_made_again(opened: Opened) -> None:
    """With room for one of two conversations, both go on by turns as each alone."""
    spec = ShadowSpec(num_kv_heads=2, head_dim_k=16, head_dim_v=16, dtype="F32", view=parse_view(SOME))
    needed = 4 * spec.beside_bytes(PROMPT + 60, in_host_memory=False)
    engine = opened(host_bytes=needed)
    texts = [token_ids(PROMPT, seed) for seed in (1, 2)]
    alone = [opened() for _ in texts]
    sequences, others = [], []
    for place, (text, other) in enumerate(zip(texts, alone, strict=True)):
        handle, beside = submit(engine, text, 6), submit(other, text, 6)
        texts[place] = text + finish(engine, handle).token_ids
        finish(other, beside)
        sequences.append(handle.sequence)
        others.append(beside.sequence)
    for place in (0, 1, 0, 1):
        texts[place] = texts[place] + token_ids(7, seed=place)
        found = finish(engine, submit(engine, texts[place], 4, sequences[place])).token_ids
        wanted = finish(alone[place], submit(alone[place], texts[place], 4, others[place])).token_ids
        assert found == wanted
        held = sum(usage.device_bytes for usage in shadows(engine))
        assert 0 < held <= needed
        texts[place] = texts[place] + found


def test_a_conversation_whose_shadow_does_not_fit_is_refused_with_the_numbers(opened: Opened) -> None:
    engine = opened(host_bytes=2**17)
    with pytest.raises(PoolExhausted, match=r"of 203 tokens may take 0\.\d MiB.* and 0\.1 are allowed"):
        ask(engine, token_ids(PROMPT), "")
    assert ask(engine, token_ids(40), "").token_ids


def test_what_a_shadow_holds_and_finds_at_hand_is_told_by_layer(opened: Opened) -> None:
    engine = opened()
    assert [usage.wanted_chunks for usage in shadows(engine)] == [0] * 4
    handle = submit(engine, token_ids(PROMPT), 12)
    finish(engine, handle)
    for usage in shadows(engine):
        assert usage.device_bytes > 0
        assert usage.wanted_chunks == 11 * 2 * 8
        assert 0 < usage.fetched_chunks < usage.wanted_chunks
    held = [usage.device_bytes for usage in shadows(engine)]
    engine.release(handle.sequence)
    ask(engine, token_ids(20), "")
    left = [usage.device_bytes for usage in shadows(engine)]
    assert all(0 < kept < before for kept, before in zip(left, held, strict=True)), "the prompt's alone"


# What is refused


def test_a_model_that_gains_nothing_is_refused_with_the_numbers(
    tiny: TinyModels, open_engine: OpenEngine
) -> None:
    with pytest.raises(ConfigError, match=r"keys of 2 x 16 = 32 numbers in layer 0 .* more than 256"):
        open_engine(tiny("llama"), cache_format="shadow:64")


def test_a_model_that_turns_its_keys_in_no_known_way_is_refused(
    tiny: TinyModels, open_engine: OpenEngine
) -> None:
    with pytest.raises(UnsupportedModel, match="turns its keys in a way that is unknown"):
        open_engine(tiny("gpt2"), cache_format=SOME)


def test_layers_that_bound_their_scores_are_refused(open_engine: OpenEngine, tmp_path: Path) -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "head_dim": 16}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 1024}
    config = transformers.Gemma2Config(vocab_size=512, **sizes, **heads)
    with pytest.raises(UnsupportedModel, match="layer 1 of Gemma2ForCausalLM bounds its scores"):
        open_engine(save_model(config, tmp_path), cache_format=SOME)


# What is found


def test_a_needle_is_found_through_a_shadow_and_not_where_it_is_out_of_sight(open_engine: OpenEngine) -> None:
    """Facts at several depths of a document; each is asked for behind the document's shadow."""
    (item,) = SuiteGenerator(STARTER).items(SuiteSize(num_conversations=0, num_documents=1, length=700))
    start = len(item.token_ids)
    found: dict[str, list[bool]] = {}
    for cache_format in ("exact", "shadow:25%:forced", "window:64"):
        engine = open_engine(STARTER, cache_format=cache_format)
        found[cache_format] = []
        for number, question in enumerate(item.questions):
            prompt = [*item.token_ids, *question.token_ids]
            starts = name(f"{number}", start, len(prompt))
            wanted = list(question.answer_ids[:-1])  # without its end
            answer = ask(engine, prompt, starts, len(wanted))
            found[cache_format].append(list(answer.token_ids) == wanted)
        if cache_format.startswith("shadow"):
            seen = {usage.seen_tokens for usage in shadows(engine)}
            assert max(seen) < start / 3
        engine.close()
    assert found["exact"] == found["shadow:25%:forced"]
    assert sum(found["exact"]) >= 2
    assert sum(found["window:64"]) < sum(found["exact"])
