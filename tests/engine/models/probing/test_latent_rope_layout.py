"""In which order a rope key stands is seen, counts for the names of blocks, and is refused where unknown."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.models.deepseek_v3 import modeling_deepseek_v3

from kvchat.engine.formats.latent.spec import LatentSpec
from kvchat.engine.forward.model_route import ModelPlan, Route, choose_route
from kvchat.engine.models.load import load_model
from kvchat.engine.models.probing.latent_rope_layout import FIRSTS_THEN_SECONDS, HALVES, INTERLEAVED
from tests.engine.conftest import OpenEngine
from tests.engine.latent_models import model_of
from tests.engine.tiny_models import answer, token_ids

pytestmark = pytest.mark.cpu

Rotate = Any
PUBLISHED: Rotate = modeling_deepseek_v3.apply_rotary_pos_emb_interleave


def served(model_dir: Path, dtype: str = "float32") -> ModelPlan:
    return choose_route(load_model(model_dir, dtype, torch.device("cpu")))


def layouts(model_dir: Path, dtype: str = "float32") -> set[str]:
    specs = [group.spec for group in served(model_dir, dtype).groups]
    return {spec.rope_layout for spec in specs if isinstance(spec, LatentSpec)}


def reordered(order: Any) -> Rotate:
    """Return DeepSeek-V3's rotation with its results in another order, for queries and keys alike."""

    def rotate(q: Tensor, k: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        turned_q, turned_k = PUBLISHED(q, k, *args, **kwargs)
        return order(turned_q), order(turned_k)

    return rotate


def neighbours(turned: Tensor) -> Tensor:
    """Return [all firsts | all seconds] as pairs."""
    return torch.stack(turned.chunk(2, dim=-1), dim=-1).flatten(-2)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("kind", "changes", "layout"),
    [
        ("V2, YaRN", {}, INTERLEAVED),
        ("V3, YaRN", {}, FIRSTS_THEN_SECONDS),
        ("V3", {"rope_interleave": False}, HALVES),
    ],
)
def test_the_order_of_every_implementation_is_told_apart(
    kind: str, changes: dict[str, Any], layout: str, dtype: str, tmp_path: Path
) -> None:
    assert layouts(model_of(kind, tmp_path, **changes), dtype) == {layout}


def test_the_same_model_in_another_order_is_given_other_names(
    tmp_path: Path, open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trap 5, as after an update of transformers: same weights, same config, same answers, other bytes."""
    model_dir, prompt = model_of("V3, YaRN", tmp_path), token_ids(60)
    first = open_engine(model_dir, cache_dir=tmp_path / "cache")
    wanted = answer(first, prompt, 12).token_ids
    first.close()
    monkeypatch.setattr(modeling_deepseek_v3, "apply_rotary_pos_emb_interleave", reordered(neighbours))
    assert layouts(model_dir) == {INTERLEAVED}
    second = open_engine(model_dir, cache_dir=tmp_path / "cache")
    assert second.info.fingerprint != first.info.fingerprint
    result = answer(second, prompt, 12)
    assert (result.usage.cached_tokens, result.token_ids) == (0, wanted)
    second.close()
    monkeypatch.undo()
    third = open_engine(model_dir, cache_dir=tmp_path / "cache")
    assert third.info.fingerprint == first.info.fingerprint
    assert answer(third, prompt, 4).usage.cached_tokens == len(prompt) - 1


def test_keys_in_an_unknown_order_are_expanded_and_not_kept_as_latents(
    tmp_path: Path, open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    model_dir, prompt = model_of("V3", tmp_path), token_ids(60)
    wanted = answer(open_engine(model_dir), prompt, 12).token_ids
    backwards = reordered(lambda turned: turned.flip(-1))
    monkeypatch.setattr(modeling_deepseek_v3, "apply_rotary_pos_emb_interleave", backwards)
    engine = open_engine(model_dir)
    assert engine.info.route == Route.ATTENTION
    assert answer(engine, prompt, 12).token_ids == wanted
