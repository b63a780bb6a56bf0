"""Several texts in one call of transformers' own `generate`, on kvchat's blocks: padded, shared and exact."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import kvchat
from kvchat.errors import InvalidRequest, PoolExhausted
from tests.engine.hf.test_cache import DEVICE_BYTES, generated, make_model, text
from tests.engine.tiny_models import KINDS

pytestmark = pytest.mark.cpu

PAD = 0
LENGTHS = (150, 63, 64)
"""Of texts in one call; the first is past the sliding window of 40, the padding of the others as well."""


@pytest.fixture(params=KINDS)
def model(request: pytest.FixtureRequest) -> Any:
    return make_model(request.param)


@pytest.fixture
def llama() -> Any:
    return make_model("llama")


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
    longer = [torch.cat([one, text(7, seed=9)], 1) for one in texts]
    longer[1] = text(40, seed=8)  # nothing of this one is known
    expected = answered(model, longer)
    with kvchat.HFBlocks(model, cache_dir=tmp_path, device_bytes=DEVICE_BYTES) as blocks:
        first = kvchat.HFCache(blocks, num_texts=3)
        assert torch.equal(answered(model, texts, first), answers)
        assert first.cached_tokens == 0
        second = kvchat.HFCache(blocks, num_texts=3)
        assert torch.equal(answered(model, longer, second), expected)
        assert second.cached_tokens == LENGTHS[0] + LENGTHS[2]
        blocks.check_integrity()
    with kvchat.HFBlocks(model, cache_dir=tmp_path, device_bytes=DEVICE_BYTES) as blocks:
        third = kvchat.HFCache(blocks, num_texts=3)
        assert torch.equal(answered(model, longer, third), expected)
        assert third.cached_tokens == sum(one.shape[1] - 1 for one in longer)
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
