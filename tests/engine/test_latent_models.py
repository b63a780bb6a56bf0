"""DeepSeek's models keep latents, never expand a whole context, and answer as transformers does."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from kvchat.engine.activation import peak_bytes
from kvchat.engine.api.ids import BlockId, BranchId, RequestId
from kvchat.engine.batch import Batch, Chunk
from kvchat.engine.cache.plan import TableChange
from kvchat.engine.cache.spec import LatentSpec
from kvchat.engine.kernels.latent_attention import torch_ops
from kvchat.engine.memory.device_pool import DevicePool
from kvchat.engine.models.hook import set_implementation
from kvchat.engine.models.load import load_model
from kvchat.engine.models.rope_layout import FIRSTS_THEN_SECONDS
from kvchat.engine.route import Route, choose_route
from kvchat.engine.runner import Runner
from tests.engine.conftest import OpenEngine
from tests.engine.tiny_models import answer, reference, save_model, token_ids

pytestmark = pytest.mark.cpu

BLOCK_SIZE = 16
SIZES: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 96,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 2,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 12,
    "v_head_dim": 20,
    "max_position_embeddings": 512,
    "eos_token_id": None,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "mscale": 0.7,
    "mscale_all_dim": 0.7,
    "original_max_position_embeddings": 64,
}
KINDS = {
    "V2": (transformers.DeepseekV2Config, {"q_lora_rank": None}),
    "V2, queries compressed, YaRN": (
        transformers.DeepseekV2Config,
        {"q_lora_rank": 24, "rope_parameters": YARN},
    ),
    "V3": (transformers.DeepseekV3Config, {"q_lora_rank": 24}),
    "V3, YaRN": (transformers.DeepseekV3Config, {"q_lora_rank": None, "rope_parameters": YARN}),
}
kinds = pytest.mark.parametrize("kind", KINDS)


def model_of(kind: str, tmp_path: Path, **changes: Any) -> Path:
    config, fields = KINDS[kind]
    return save_model(config(**SIZES | fields | changes), tmp_path / "model")


def cached_logits(module: nn.Module, served: Any, ids: list[int], cuts: list[int]) -> Tensor:
    """Return the logits behind each cut, computed chunk by chunk on permuted blocks [cuts, V]."""
    num_blocks = -(-len(ids) // BLOCK_SIZE)
    pool = DevicePool(
        served.groups, {group.id: num_blocks for group in served.groups}, BLOCK_SIZE, torch.device("cpu")
    )
    runner = Runner(served.make_pass(pool), served.groups, BLOCK_SIZE)
    order = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(0)).tolist()
    changes = tuple(
        TableChange(BranchId(1), group.id, 0, tuple(map(BlockId, order))) for group in served.groups
    )
    rows = []
    for start, end in zip([0, *cuts], [*cuts, len(ids)], strict=True):
        chunk = Chunk(RequestId(1), BranchId(1), start, tuple(ids[start:end]), samples=True)
        rows.append(runner.run(Batch(chunks=(chunk,), moves=(), changes=changes, dropped=())))
        changes = ()
    return torch.cat(rows)


@kinds
@pytest.mark.parametrize("fewest", [1, 192], ids=["expanded", "absorbed"])
@pytest.mark.parametrize("cuts", [[], [7, 8, 33], [1, 2, 3, 60]], ids=["whole", "chunks", "steps"])
def test_logits_equal_those_of_transformers(
    kind: str, fewest: int, cuts: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_ops, "FEWEST_TO_EXPAND", fewest)
    loaded = load_model(model_of(kind, tmp_path), "float32", torch.device("cpu"))
    ids = token_ids(70)
    set_implementation(loaded.module, "eager")
    with torch.inference_mode():
        wanted = loaded.module(torch.tensor([ids]), use_cache=False).logits[0]
    served = choose_route(loaded)
    assert served.route is Route.LATENT
    ends = [*cuts, len(ids)]
    found = cached_logits(loaded.module, served, ids, cuts)
    scale = float(wanted.abs().max())
    assert float((found - wanted[[end - 1 for end in ends]]).abs().max()) <= 1e-5 * scale


@kinds
def test_answers_equal_those_of_generate_also_behind_a_prefix(
    kind: str, tmp_path: Path, open_engine: OpenEngine
) -> None:
    model_dir = model_of(kind, tmp_path)
    engine = open_engine(model_dir, max_batch_tokens=30)
    assert answer(engine, token_ids(50), 12).token_ids == reference(model_dir).answer(token_ids(50), 12)
    again = token_ids(50)[:37] + token_ids(20, seed=1)
    result = answer(engine, again, 12)
    assert result.usage.cached_tokens == 37
    assert result.token_ids == reference(model_dir).answer(again, 12)


def test_a_token_takes_one_latent_and_one_rope_key_per_layer(tmp_path: Path, open_engine: OpenEngine) -> None:
    engine = open_engine(model_of("V3", tmp_path))
    (group,) = engine.snapshot().groups
    assert group.kind == "latent"
    loaded = load_model(tmp_path / "model", "float32", torch.device("cpu"))
    (served,) = choose_route(loaded).groups
    assert served.spec == LatentSpec(
        num_kv_heads=1,
        head_dim_k=24,
        head_dim_v=0,
        dtype="F32",
        rank=16,
        rope_dim=8,
        rope_layout=FIRSTS_THEN_SECONDS,
    )
    assert served.block_bytes(1) == 3 * (16 + 8) * 4


def test_a_session_of_latents_comes_back_from_disk(tmp_path: Path, open_engine: OpenEngine) -> None:
    model_dir = model_of("V3, YaRN", tmp_path)
    first = open_engine(model_dir, cache_dir=tmp_path / "cache")
    prompt = token_ids(100)
    answer(first, prompt, 4)
    first.close()
    second = open_engine(model_dir, cache_dir=tmp_path / "cache")
    longer = prompt + token_ids(5, seed=3)
    result = answer(second, longer, 8)
    assert result.usage.cached_tokens == 100
    assert result.token_ids == reference(model_dir).answer(longer, 8)


@pytest.mark.parametrize("wrong", ["scale", "projections", "norm"])
def test_a_wrong_scale_projection_or_norm_would_show(
    wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative controls: what is easily mistaken in latent attention changes the logits."""
    loaded = load_model(model_of("V3, YaRN", tmp_path), "float32", torch.device("cpu"))
    ids = token_ids(40)
    served = choose_route(loaded)
    right = cached_logits(loaded.module, served, ids, [])
    if wrong == "scale":
        for layer in loaded.module.model.layers:
            layer.self_attn.scaling = 24**-0.5
    elif wrong == "projections":
        for layer in loaded.module.model.layers:
            layer.self_attn.kv_b_proj.weight.data = layer.self_attn.kv_b_proj.weight.data.flip(0)
        served = choose_route(loaded)
    else:
        for layer in loaded.module.model.layers:
            layer.self_attn.kv_a_layernorm = nn.Identity()
    distance = (cached_logits(loaded.module, served, ids, []) - right).abs().max()
    assert float(distance) > 50 * 1e-5 * float(right.abs().max())


def test_a_decode_step_never_expands_the_context(tmp_path: Path) -> None:
    """Against keys and values of all heads, which transformers makes in every layer of every step."""
    changes = {
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "max_position_embeddings": 8192,
        "kv_lora_rank": 64,
    }
    loaded = load_model(model_of("V3", tmp_path, **changes), "float32", torch.device("cpu"))
    served = choose_route(loaded)
    length = 16_384
    pool = DevicePool(
        served.groups,
        {group.id: length // BLOCK_SIZE for group in served.groups},
        BLOCK_SIZE,
        torch.device("cpu"),
    )
    for layer in pool.layers.values():
        layer.keys.normal_()
    runner = Runner(served.make_pass(pool), served.groups, BLOCK_SIZE)
    table = tuple(map(BlockId, range(length // BLOCK_SIZE)))
    changes_of = tuple(TableChange(BranchId(1), group.id, 0, table) for group in served.groups)
    chunk = Chunk(RequestId(1), BranchId(1), length - 1, (5,), samples=True)
    batch = Batch(chunks=(chunk,), moves=(), changes=changes_of, dropped=())
    expanded = length * 32 * (12 + 8 + 20) * 4
    assert peak_bytes(lambda: runner.run(batch)) < 0.02 * expanded
