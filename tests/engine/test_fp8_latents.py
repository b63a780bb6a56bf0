"""Latents in 8-bit records: a format of its own, whose KV follows from the tokens alone."""

from pathlib import Path

import pytest
import torch

from kvchat.engine.api.events import Loaded
from kvchat.engine.api.ids import GroupId
from kvchat.errors import ConfigError
from tests.engine.conftest import OpenEngine
from tests.engine.latent_models import model_of
from tests.engine.tiny_models import answer, finish, open_recorded, submit, token_ids

pytestmark = pytest.mark.cpu

KIND = "V3, YaRN"
BLOCK_SIZE = 16
RECORD_BYTES = 16 + 4 + 2 * 8
"""Of rank 16 and 8 rope numbers: one tile."""


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    return model_of(KIND, tmp_path)


def test_answers_do_not_depend_on_how_a_prompt_was_cut(model_dir: Path, open_engine: OpenEngine) -> None:
    """Trap 32. Nor on what was reused: what a query sees is stored before it is read, itself included."""
    prompt = token_ids(70)
    answers = [
        answer(open_engine(model_dir, cache_format="fp8", max_batch_tokens=size), prompt, 12).token_ids
        for size in (1, 7, 33, 512)
    ]
    assert answers.count(answers[0]) == len(answers)
    engine = open_engine(model_dir, cache_format="fp8", max_batch_tokens=512)
    answer(engine, prompt[:41] + token_ids(9, seed=1), 4)
    again = answer(engine, prompt, 12)
    assert (again.usage.cached_tokens, again.token_ids) == (41, answers[0])


def test_a_session_comes_back_from_disk_with_the_same_answer(
    model_dir: Path, tmp_path: Path, open_engine: OpenEngine
) -> None:
    prompt = token_ids(100)
    first = open_engine(model_dir, cache_format="fp8", cache_dir=tmp_path / "cache")
    longer = prompt + answer(first, prompt, 6).token_ids
    wanted = answer(open_engine(model_dir, cache_format="fp8"), longer, 8).token_ids
    first.close()
    second = open_engine(model_dir, cache_format="fp8", cache_dir=tmp_path / "cache")
    result = answer(second, longer, 8)
    assert (result.loaded, result.token_ids) == (Loaded(disk=len(longer) - 1), wanted)


def test_no_format_finds_the_blocks_of_the_other(
    model_dir: Path, tmp_path: Path, open_engine: OpenEngine
) -> None:
    """Trap 5: another format is another name."""
    prompt = token_ids(100)
    fingerprints = set()
    for cache_format in ("exact", "fp8"):
        engine = open_engine(model_dir, cache_format=cache_format, cache_dir=tmp_path / "cache")
        assert answer(engine, prompt, 4).usage.cached_tokens == 0
        fingerprints.add(engine.info.fingerprint)
        engine.close()
    assert len(fingerprints) == 2


def test_a_token_takes_one_record_per_layer(model_dir: Path, open_engine: OpenEngine) -> None:
    engine = open_engine(model_dir, cache_format="fp8")
    (group,) = engine.snapshot().groups
    assert (group.kind, group.block_bytes) == ("latent fp8", 3 * RECORD_BYTES * BLOCK_SIZE)
    exact = open_engine(model_dir)
    assert exact.snapshot().groups[0].block_bytes == 3 * (16 + 8) * 4 * BLOCK_SIZE
    assert (exact.info.is_exact, engine.info.is_exact) == (True, False)


def test_a_full_block_never_changes_again(model_dir: Path) -> None:
    engine, recorder = open_recorded(model_dir, cache_format="fp8")
    handle = submit(engine, token_ids(40), 3)
    finish(engine, handle)
    table = recorder.batches[0].changes[0].block_ids
    full = table[: 40 // BLOCK_SIZE]

    def contents() -> list[bytes]:
        return [recorder.device_pool.read_block(GroupId(0), block, BLOCK_SIZE) for block in full]

    before = contents()
    finish(engine, submit(engine, token_ids(40) + token_ids(60, seed=2), 20))
    assert contents() == before
    engine.close()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_logits_are_near_those_of_the_exact_format_and_not_the_same(model_dir: Path, dtype: str) -> None:
    rows = []
    for cache_format in ("exact", "fp8"):
        engine, recorder = open_recorded(
            model_dir, cache_format=cache_format, dtype=dtype, max_batch_tokens=20
        )
        handle = submit(engine, token_ids(70), 1)
        finish(engine, handle)
        rows.append(recorder.row(handle.sequence, 69).float())
        engine.close()
    distance = float((rows[0] - rows[1]).norm() / rows[0].norm())
    assert 1e-3 < distance < 0.15
    assert torch.isfinite(rows[1]).all()


@pytest.mark.parametrize("cache_format", ["int8", "int4", "int2", "k=fp8,v=int8"])
def test_other_codes_are_refused_with_the_reason(
    model_dir: Path, cache_format: str, open_engine: OpenEngine
) -> None:
    with pytest.raises(ConfigError, match=r"no form for latents \(MLA\), which layer 0 .* fp8 or exact"):
        open_engine(model_dir, cache_format=cache_format)


def test_an_unknown_format_is_refused_by_name(model_dir: Path, open_engine: OpenEngine) -> None:
    with pytest.raises(ConfigError, match="'int3' is unknown; use exact, fp8, int8, int4, int2"):
        open_engine(model_dir, cache_format="int3")
