"""Plain transformers code on kvchat's blocks, of one text or several: what `generate` gives, what it reuses,
and what outlives it.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

import kvchat
from kvchat.engine.models.locate import locate_model
from kvchat.errors import InvalidRequest, PoolExhausted, UnsupportedModel
from tests.engine.recurrent_models import save_recurrent
from tests.engine.tiny_models import VOCAB_SIZE, make_config

pytestmark = pytest.mark.cpu

ROOT = Path(__file__).parents[3]
DEVICE_BYTES = 1 << 24


@pytest.fixture(params=["gemma3", "gpt2"])
def model(request: pytest.FixtureRequest) -> Any:
    return make_model(request.param)


@pytest.fixture
def llama() -> Any:
    return make_model("llama")


@pytest.fixture
def blocks(llama: Any) -> Iterator[kvchat.HFBlocks]:
    with kvchat.HFBlocks(llama, device_bytes=DEVICE_BYTES) as blocks:
        yield blocks
        blocks.check_integrity()


def make_model(kind: str, attention: str = "sdpa") -> Any:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(make_config(kind), attn_implementation=attention).eval()


def text(length: int, seed: int = 0) -> Tensor:
    return torch.randint(1, VOCAB_SIZE, (1, length), generator=torch.Generator().manual_seed(seed))


def generated(model: Any, token_ids: Tensor, cache: Any = None, num_tokens: int = 20) -> Tensor:
    found: Tensor = model.generate(
        token_ids, past_key_values=cache, max_new_tokens=num_tokens, do_sample=False
    )
    return found


def longer(token_ids: Tensor, num_tokens: int = 7) -> Tensor:
    return torch.cat([token_ids, text(num_tokens, seed=9)], 1)


def test_greedy_tokens_are_those_of_transformers_own_cache(model: Any, tmp_path: Path) -> None:
    """Cold, behind a known beginning, and from disk; 150 tokens are past the sliding window of 40."""
    question = text(150)
    answer = generated(model, question)
    follow_up = longer(answer)
    expected = generated(model, follow_up)
    with kvchat.HFBlocks(model, cache_dir=tmp_path, device_bytes=DEVICE_BYTES) as blocks:
        first = kvchat.HFCache(blocks)
        assert torch.equal(generated(model, question, first), answer)
        assert first.cached_tokens == 0
        second = kvchat.HFCache(blocks)
        assert torch.equal(generated(model, follow_up, second), expected)
        # The last token that was sampled was never computed.
        assert second.cached_tokens == answer.shape[1] - 1
        blocks.check_integrity()
    with kvchat.HFBlocks(model, cache_dir=tmp_path, device_bytes=DEVICE_BYTES) as blocks:
        third = kvchat.HFCache(blocks)
        assert torch.equal(generated(model, follow_up, third), expected)
        assert third.cached_tokens == follow_up.shape[1] - 1


def test_texts_that_part_share_what_they_have_in_common_and_write_on_none_of_it(
    llama: Any, blocks: kvchat.HFBlocks
) -> None:
    """Trap 11: both are open at once, part inside a block, and go on by turns."""
    question = text(100)
    caches = [kvchat.HFCache(blocks), kvchat.HFCache(blocks)]
    texts = [longer(question), torch.cat([question, text(7, seed=5)], 1)]
    for _ in range(2):
        for number, cache in enumerate(caches):
            expected = generated(llama, texts[number])
            texts[number] = generated(llama, texts[number], cache)
            assert torch.equal(texts[number], expected)
    assert caches[1].cached_tokens == 100


def test_other_weights_of_one_name_find_nothing(tmp_path: Path) -> None:
    """Trap 1: one weight differs."""
    question, model = text(100), make_model("llama")
    with kvchat.HFBlocks(model, cache_dir=tmp_path, device_bytes=DEVICE_BYTES) as blocks:
        generated(model, question, kvchat.HFCache(blocks))
    for attention in ("sdpa", "eager"):
        other = make_model("llama", attention)
        with torch.no_grad():
            other.lm_head.weight[0, 0] += attention == "sdpa"
        with kvchat.HFBlocks(other, cache_dir=tmp_path, device_bytes=DEVICE_BYTES) as blocks:
            cache = kvchat.HFCache(blocks)
            generated(other, question, cache)
            assert cache.cached_tokens == 0


def test_weights_that_change_in_place_are_noticed(llama: Any, blocks: kvchat.HFBlocks) -> None:
    """Trap 1: an update of the weights, and blocks of the old ones."""
    generated(llama, text(100), kvchat.HFCache(blocks))
    with torch.no_grad():
        llama.model.layers[0].mlp.up_proj.weight.add_(1)
    with pytest.raises(InvalidRequest, match="changed"):
        generated(llama, text(100), kvchat.HFCache(blocks))


def test_what_a_cache_cannot_hold_is_refused_with_what_to_do(llama: Any, blocks: kvchat.HFBlocks) -> None:
    pair = text(10).repeat(2, 1)
    with pytest.raises(InvalidRequest, match="one text, not 2"):
        generated(llama, pair, kvchat.HFCache(blocks))
    with pytest.raises(InvalidRequest, match="one text, not 2"):
        llama.generate(text(10), past_key_values=kvchat.HFCache(blocks), num_beams=2, max_new_tokens=4)
    mask, cache = torch.tensor([[0, *[1] * 9]]), kvchat.HFCache(blocks)
    with pytest.raises(InvalidRequest, match="padding"):
        llama.generate(text(10), attention_mask=mask, past_key_values=cache, max_new_tokens=4)
    embeddings = llama.get_input_embeddings()(text(10))
    with pytest.raises(InvalidRequest, match="input_ids"):
        llama(inputs_embeds=embeddings, past_key_values=kvchat.HFCache(blocks))


def test_a_model_that_keeps_a_state_beside_keys_and_values_is_refused(tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(save_recurrent("Inkling", tmp_path))
    with pytest.raises(UnsupportedModel, match="keeps a state"):
        kvchat.HFBlocks(model)


def test_a_pass_that_fails_leaves_nothing_behind(llama: Any, blocks: kvchat.HFBlocks) -> None:
    """Trap 7: the last layer fails, when the others have written."""
    question = text(100)
    cache = kvchat.HFCache(blocks)

    def fail(*_: object) -> None:
        raise RuntimeError("a layer that fails")

    hook = llama.model.layers[-1].register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="fails"):
        generated(llama, question, cache)
    hook.remove()
    blocks.check_integrity()
    fresh = kvchat.HFCache(blocks)
    assert torch.equal(generated(llama, question, fresh), generated(llama, question))
    assert fresh.cached_tokens == 0


def test_a_text_that_does_not_fit_is_refused_and_room_comes_from_texts_let_go(llama: Any) -> None:
    with kvchat.HFBlocks(llama, device_bytes=6 * 64 * 1024 * 4) as blocks:
        room = 64 * next(iter(blocks.pool.layers.values())).keys.shape[0]
        with pytest.raises(PoolExhausted, match="device_bytes"):
            generated(llama, text(room), kvchat.HFCache(blocks))
        for seed in range(5):
            cache = kvchat.HFCache(blocks)
            assert torch.equal(
                generated(llama, text(room - 64, seed), cache), generated(llama, text(room - 64, seed))
            )
            cache.close()
            blocks.check_integrity()


def test_a_real_model_answers_as_with_its_own_cache_and_reuses_a_document() -> None:
    model = AutoModelForCausalLM.from_pretrained(locate_model("starter").path, dtype=torch.float32)
    document = text(300)
    with kvchat.HFBlocks(model) as blocks:
        for seed in (1, 2, 3):
            question = torch.cat([document, text(9, seed)], 1)
            cache = kvchat.HFCache(blocks)
            assert torch.equal(generated(model, question, cache), generated(model, question))
            assert cache.cached_tokens == (300 if seed > 1 else 0)


def numbers_in(printed: str) -> list[list[int]]:
    return [[int(word) for word in line.split() if word.isdigit()] for line in printed.splitlines()]


def check_two_runs(first: str, again: str) -> None:
    """The second question finds the document, and a second run all but one token of each question."""
    cold, warm = numbers_in(first)
    assert cold[0] == 0
    assert warm[0] > warm[1] - 12, "all but the question"
    assert [known for known, _ in numbers_in(again)] == [length - 1 for _, length in numbers_in(again)]


def example() -> str:
    """Return the lines of Python on the page."""
    page = (ROOT / "docs" / "transformers.md").read_text()
    (found,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    return str(found)


def test_the_example_of_the_page_runs_and_a_second_run_finds_what_the_first_has_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    printed = []
    for _ in range(2):
        exec(compile(example(), "transformers.md", "exec"), {})
        printed.append(capsys.readouterr().out)
    check_two_runs(*printed)


# Several texts in one call: padded, shared and exact

PAD = 0
LENGTHS = (150, 63, 64)
"""Of texts in one call; the first is past the sliding window of 40, the padding of the others as well."""


def padded(texts: list[Tensor]) -> dict[str, Tensor]:
    """Return texts [1, T] as rows, padded on the left, with their mask."""
    width = max(one.shape[1] for one in texts)
    rows = [torch.nn.functional.pad(one, (width - one.shape[1], 0), value=PAD) for one in texts]
    masks = [torch.arange(width)[None] >= width - one.shape[1] for one in texts]
    return {"input_ids": torch.cat(rows), "attention_mask": torch.cat(masks).long()}


def answered(model: Any, texts: list[Tensor], cache: Any = None, **options: Any) -> Tensor:
    chosen = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": PAD} | options
    found: Tensor = model.generate(**padded(texts), past_key_values=cache, **chosen)
    return found


def some_texts() -> list[Tensor]:
    return [text(length, seed) for seed, length in enumerate(LENGTHS)]


def test_greedy_tokens_of_padded_texts_are_those_of_transformers_own_cache(
    model: Any, tmp_path: Path
) -> None:
    """Cold, behind beginnings of which each text knows another part, and from disk."""
    texts = some_texts()
    answers = answered(model, texts)
    follow_ups = [longer(one) for one in texts]
    follow_ups[1] = text(40, seed=8)  # nothing of this one is known
    expected = answered(model, follow_ups)
    with kvchat.HFBlocks(model, cache_dir=tmp_path, device_bytes=DEVICE_BYTES) as blocks:
        first = kvchat.HFCache(blocks, num_texts=3)
        assert torch.equal(answered(model, texts, first), answers)
        assert first.cached_tokens == 0
        second = kvchat.HFCache(blocks, num_texts=3)
        assert torch.equal(answered(model, follow_ups, second), expected)
        assert second.cached_tokens == LENGTHS[0] + LENGTHS[2]
        blocks.check_integrity()
    with kvchat.HFBlocks(model, cache_dir=tmp_path, device_bytes=DEVICE_BYTES) as blocks:
        third = kvchat.HFCache(blocks, num_texts=3)
        assert torch.equal(answered(model, follow_ups, third), expected)
        assert third.cached_tokens == sum(one.shape[1] - 1 for one in follow_ups)
        blocks.check_integrity()


def test_texts_that_end_early_and_cache_that_goes_on_are_those_of_transformers(llama: Any) -> None:
    texts = some_texts()
    plain = answered(llama, texts)
    ends = int(plain[1, LENGTHS[0] + 3])  # one row ends here, and is filled up with padding
    with kvchat.HFBlocks(llama, device_bytes=DEVICE_BYTES) as blocks:
        cache = kvchat.HFCache(blocks, num_texts=3)
        found = answered(llama, texts, cache, eos_token_id=ends)
        assert torch.equal(found, answered(llama, texts, eos_token_id=ends))
        assert PAD in found[1, LENGTHS[0] :]
        again = kvchat.HFCache(blocks, num_texts=3)
        inputs = padded(texts)
        out = llama.generate(**inputs, past_key_values=again, max_new_tokens=5, do_sample=False)
        more = torch.cat([out, text(3, seed=5).repeat(3, 1)], 1)
        mask = torch.cat([inputs["attention_mask"], torch.ones(3, 8, dtype=torch.long)], 1)
        wanted = llama.generate(more, attention_mask=mask, max_new_tokens=5, do_sample=False)
        went_on = llama.generate(
            more, attention_mask=mask, past_key_values=again, max_new_tokens=5, do_sample=False
        )
        assert torch.equal(went_on, wanted)
        blocks.check_integrity()


def test_several_answers_to_one_text_share_it_and_differ(llama: Any) -> None:
    with kvchat.HFBlocks(llama, device_bytes=DEVICE_BYTES) as blocks:
        generated(llama, text(130), kvchat.HFCache(blocks))
        cache = kvchat.HFCache(blocks, num_texts=3)
        torch.manual_seed(1)
        found = llama.generate(
            text(130), past_key_values=cache, do_sample=True, num_return_sequences=3, max_new_tokens=8
        )
        torch.manual_seed(1)
        wanted = llama.generate(text(130), do_sample=True, num_return_sequences=3, max_new_tokens=8)
        assert torch.equal(found, wanted)
        assert len({tuple(row.tolist()) for row in found}) > 1
        assert cache.cached_tokens == 3 * 129


def test_what_would_be_wrong_in_blocks_is_refused_with_what_to_do(llama: Any) -> None:
    """Positions that count padding would give other texts the wrong keys."""
    inputs = padded(some_texts())
    with kvchat.HFBlocks(llama, device_bytes=DEVICE_BYTES) as blocks:

        def refuse(words: str, num_texts: int | None = 3, **given: Any) -> None:
            cache = kvchat.HFCache(blocks, num_texts)
            with pytest.raises(InvalidRequest, match=words):
                llama(**inputs | given, past_key_values=cache, use_cache=True)
            cache.close()
            blocks.check_integrity()

        refuse("padded on the left", attention_mask=inputs["attention_mask"].flip(1))
        refuse("padded on the left", attention_mask=torch.zeros_like(inputs["attention_mask"]))
        refuse("need position_ids")
        refuse("begin at 0", position_ids=torch.arange(LENGTHS[0])[None])
        refuse("mask", attention_mask=torch.ones(3, 1, LENGTHS[0], LENGTHS[0]))
        refuse("num_texts=2, and was given 3", num_texts=2)
        refuse("HFCache\\(blocks, num_texts=3\\)", num_texts=None)
        with pytest.raises(InvalidRequest, match="at least 1"):
            kvchat.HFCache(blocks, num_texts=0)
        shifted = {"input_ids": text(20), "position_ids": torch.arange(5, 25)[None]}
        with pytest.raises(InvalidRequest, match="begin at 0"):
            llama(**shifted, past_key_values=kvchat.HFCache(blocks))
        with pytest.raises(InvalidRequest, match="beam search"):
            llama.generate(
                text(20),
                past_key_values=kvchat.HFCache(blocks, num_texts=2),
                num_beams=2,
                do_sample=False,
                max_new_tokens=4,
            )


def test_a_pass_of_several_texts_that_fails_leaves_them_as_they_were(llama: Any) -> None:
    """The last layer fails once, when the others have written; the same cache goes on."""
    texts = some_texts()
    with kvchat.HFBlocks(llama, device_bytes=DEVICE_BYTES) as blocks:
        generated(llama, texts[1], kvchat.HFCache(blocks))
        cache = kvchat.HFCache(blocks, num_texts=3)

        def fail(*_: object) -> None:
            raise RuntimeError("a layer that fails")

        hook = llama.model.layers[-1].register_forward_pre_hook(fail)
        with pytest.raises(RuntimeError, match="fails"):
            answered(llama, texts, cache)
        hook.remove()
        blocks.check_integrity()
        assert torch.equal(answered(llama, texts, cache), answered(llama, texts))
    with kvchat.HFBlocks(llama, device_bytes=6 * 64 * 1024 * 4) as blocks:
        room = 64 * next(iter(blocks.pool.layers.values())).keys.shape[0]
        many = [text(room // 2, seed) for seed in range(3)]
        with pytest.raises(PoolExhausted, match="device_bytes"):
            answered(llama, many, kvchat.HFCache(blocks, num_texts=3))
        blocks.check_integrity()
