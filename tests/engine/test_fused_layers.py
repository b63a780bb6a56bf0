"""Which models decode by fused layers, and that nobody can tell by the answers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from kvchat.engine.api.sampling_params import SamplingParams
from kvchat.engine.formats.attention_metadata import AttentionMetadata
from kvchat.engine.forward import fused_pass
from kvchat.engine.forward.fused_check import fuse
from kvchat.engine.forward.model_route import choose_route
from kvchat.engine.kernels.cpu_dtypes import is_emulated
from kvchat.engine.kernels.decoder_layers.args import StateRows
from kvchat.engine.kernels.native.library import library
from kvchat.engine.models.load import load_model
from kvchat.engine.models.probing.decoder_structure import Unmatched
from tests.engine.conftest import OpenEngine, OpenRecorded, TinyModels
from tests.engine.test_update_weights import other_of, rewrite
from tests.engine.tiny_models import VOCAB_SIZE, answer, finish, reference, save_model, submit, token_ids

pytestmark = [pytest.mark.cpu, pytest.mark.usefixtures("native_kernels")]

PROMPTS = [token_ids(length, seed=length) for length in (50, 3, 90, 17, 64, 40, 8, 71)]
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 60,
    "intermediate_size": 90,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 1,
    "max_position_embeddings": 512,
    "initializer_range": 0.15,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
EXPERTS: dict[str, Any] = {
    **SIZES | {"hidden_size": 96},
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 64,
}
DELTA_RULES: dict[str, Any] = {
    "head_dim": 16,
    "num_attention_heads": 2,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 12,
    "linear_value_head_dim": 20,
}
CONFIGS: dict[str, Any] = {
    "biases, one key head": transformers.Qwen2Config(**SIZES),
    "biases everywhere": transformers.LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True),
    "scaled rope": transformers.LlamaConfig(
        **SIZES, rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}
    ),
    "rope that depends on the length": transformers.LlamaConfig(
        **SIZES, rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    ),
    "layers without rope": transformers.SmolLM3Config(**SIZES, no_rope_layers=[1, 0, 1]),
    "caps": transformers.Gemma2Config(**SIZES | {"head_dim": 16}, sliding_window=20),
    "no gates": transformers.ArceeConfig(**SIZES),
    "scaled residuals": transformers.GraniteConfig(
        **SIZES, residual_multiplier=0.4, logits_scaling=3.0, embedding_multiplier=5.0
    ),
    "gated delta rules": transformers.Qwen3_5TextConfig(**SIZES | DELTA_RULES),
    "short convolutions": transformers.Lfm2Config(
        **SIZES | {"num_attention_heads": 3},
        block_auto_adjust_ff_dim=False,
        full_attn_idxs=[1],
        conv_bias=True,
    ),
    "selective scans": transformers.BambaConfig(
        **SIZES, attn_layer_indices=[1], mamba_n_heads=6, mamba_d_head=20, mamba_d_state=24, mamba_n_groups=2
    ),
    "selective scans, no rope": transformers.GraniteMoeHybridConfig(
        **SIZES,
        layer_types=["mamba", "attention", "mamba"],
        num_local_experts=0,
        shared_intermediate_size=90,
        mamba_n_heads=6,
        mamba_d_head=20,
        mamba_d_state=24,
        mamba_n_groups=1,
        residual_multiplier=0.4,
        logits_scaling=3.0,
    ),
    "selective scans, attention and MLPs one by one": transformers.NemotronHConfig(
        **{name: value for name, value in SIZES.items() if name != "num_hidden_layers"},
        layer_types=["linear_attention", "mlp", "full_attention", "linear_attention", "mlp"],
        head_dim=10,
        mamba_num_heads=6,
        mamba_head_dim=20,
        ssm_state_size=24,
        n_groups=2,
        time_step_min=0.02,
    ),
    "experts": transformers.Qwen3MoeConfig(**EXPERTS | {"head_dim": 16}, norm_topk_prob=True),
    "experts and one that all share": transformers.Qwen2MoeConfig(**EXPERTS, decoder_sparse_step=2),
    "gated delta rules by key head, experts": transformers.Qwen3NextConfig(**EXPERTS | DELTA_RULES),
    "selective scans, experts beside MLPs": transformers.GraniteMoeHybridConfig(
        **EXPERTS | {"intermediate_size": 32},
        layer_types=["mamba", "attention", "mamba"],
        num_local_experts=6,
        shared_intermediate_size=64,
        mamba_n_heads=12,
        mamba_d_head=16,
        mamba_d_state=24,
        mamba_n_groups=1,
        residual_multiplier=0.4,
    ),
}
HYBRIDS = (
    "gated delta rules",
    "short convolutions",
    "selective scans",
    "selective scans, no rope",
    "selective scans, attention and MLPs one by one",
    "gated delta rules by key head, experts",
    "selective scans, experts beside MLPs",
)
SCALED_FROM_48_ON: Any = transformers.Ministral3Config(
    **SIZES | {"head_dim": 10},
    rope_parameters={
        "rope_type": "default",
        "rope_theta": 10000.0,
        "llama_4_scaling_beta": 4.0,
        "original_max_position_embeddings": 48,
    },
)
OTHERS: dict[str, tuple[Any, str]] = {
    "norms behind alone": (transformers.Olmo2Config(**SIZES), "other parts"),
    "experts chosen in another way": (
        transformers.Glm4MoeConfig(
            **EXPERTS, head_dim=16, n_routed_experts=6, n_group=1, topk_group=1, first_k_dense_replace=0
        ),
        "experts have other parts",
    ),
    "another activation": (transformers.LlamaConfig(**SIZES, hidden_act="relu"), "activation"),
    "layer norms": (transformers.CohereConfig(**SIZES | {"hidden_size": 96}), "norms"),
    "queries scaled by position": (SCALED_FROM_48_ON, "asks for positions"),
    "rope in pairs": (transformers.Ernie4_5Config(**SIZES | {"head_dim": 10}), "something else"),
}


def move_vectors(tensors: dict[str, Tensor]) -> None:
    """Norms and biases are all ones or zeros in a new model."""
    generator = torch.Generator().manual_seed(0)
    for tensor in tensors.values():
        if tensor.ndim == 1:
            tensor += torch.randn(tensor.shape, generator=generator) / 8


@pytest.mark.parametrize("name", HYBRIDS)
def test_a_model_whose_layers_leave_other_states_is_not_fused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What they give now is the same."""
    model_dir = save_model(CONFIGS[name], tmp_path / "model")
    loaded = load_model(model_dir, dtype="float32", device=torch.device("cpu"))
    groups = choose_route(loaded).groups
    own = fused_pass._state_rows

    def elsewhere(step: AttentionMetadata) -> StateRows:
        rows = own(step)
        rows.runs[:, 4] += 5
        return rows

    monkeypatch.setattr(fused_pass, "_state_rows", elsewhere)
    with pytest.raises(Unmatched, match="another state"):
        fuse(loaded, groups)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["experts", "layers without rope"])
def test_a_model_that_computes_something_else_anywhere_is_not_fused(
    name: str, dtype: str, tmp_path: Path
) -> None:
    """Also where rounding may lead rows to other experts."""
    model_dir = save_model(CONFIGS[name], tmp_path / "model")
    loaded = load_model(model_dir, dtype=dtype, device=torch.device("cpu"))
    groups, layers = choose_route(loaded).groups, loaded.module.model.layers
    changes: dict[str, tuple[nn.Module, Callable[..., Any]]] = {
        "layer 2 computes something else": (layers[2].mlp, less),
        "layer 1 computes something else": (layers[1].self_attn.o_proj, behind_a_past),
        "its logits are others": (loaded.module.lm_head, less),
    }
    for reason, (part, change) in changes.items():
        hook = part.register_forward_hook(change)
        with pytest.raises(Unmatched, match=reason):
            fuse(loaded, groups)
        hook.remove()
    before = layers[1].register_forward_pre_hook(less_before, with_kwargs=True)
    with pytest.raises(Unmatched, match="something stands between"):
        fuse(loaded, groups)
    before.remove()
    fuse(loaded, groups)


def test_a_layer_with_a_tensor_of_no_known_use_is_not_fused_and_one_that_uses_a_tensor_twice_is(
    tmp_path: Path,
) -> None:
    loaded = load_model(
        save_model(CONFIGS["layers without rope"], tmp_path / "model"), "float32", torch.device("cpu")
    )
    groups, layer = choose_route(loaded).groups, loaded.module.model.layers[1]
    layer.mlp.up_proj.weight = layer.mlp.gate_proj.weight
    fuse(loaded, groups)
    layer.register_buffer("more", torch.ones(3))
    with pytest.raises(Unmatched, match="its layers have more weights"):
        fuse(loaded, groups)


def less(_: Any, args: tuple[Any, ...], out: Tensor) -> Tensor:
    return out * 0.7


def less_before(_: Any, args: tuple[Tensor, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    return (args[0] * 0.7, *args[1:]), kwargs


def behind_a_past(_: Any, args: tuple[Tensor, ...], out: Tensor) -> Tensor:
    """Return something else for a text's rows behind others, of three texts that begin with 5 rows."""
    return torch.cat([out[:, :5], -out[:, 5:]], dim=1)


@pytest.mark.covering(1)
@pytest.mark.parametrize("kind", ["llama", "qwen3", "gemma3"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_usual_models_are_fused_in_every_dtype(
    kind: str, dtype: str, tiny: TinyModels, open_engine: OpenEngine
) -> None:
    assert open_engine(tiny(kind), dtype=dtype).info.unfused is None


@pytest.mark.covering(1)
@pytest.mark.parametrize("name", HYBRIDS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_hybrids_are_fused_in_every_dtype(
    name: str, dtype: str, tmp_path: Path, open_engine: OpenEngine
) -> None:
    model_dir = save_model(CONFIGS[name], tmp_path / "model")
    assert open_engine(model_dir, dtype=dtype).info.unfused is None


@pytest.mark.parametrize("name", CONFIGS)
def test_fused_layers_answer_as_transformers_does(name: str, tmp_path: Path, open_engine: OpenEngine) -> None:
    model_dir = rewrite(save_model(CONFIGS[name], tmp_path / "model"), move_vectors)
    engine = open_engine(model_dir)
    assert engine.info.unfused is None
    prompts = PROMPTS[:3]
    found = engine.generate(prompts, SamplingParams(max_tokens=10, temperature=0.0))
    for prompt, result in zip(prompts, found, strict=True):
        assert list(result.token_ids) == reference(model_dir).answer(prompt, 10)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_layers_without_rope_are_found_however_little_they_add(dtype: str, tmp_path: Path) -> None:
    model_dir = save_model(CONFIGS["layers without rope"], tmp_path / "model")
    loaded = load_model(rewrite(model_dir, enlarge_embedding), dtype=dtype, device=torch.device("cpu"))
    fusion = fuse(loaded, choose_route(loaded).groups)
    assert [layer.rope is None for layer in fusion.layers] == [False, True, False]


def enlarge_embedding(tensors: dict[str, Tensor]) -> None:
    tensors["model.embed_tokens.weight"] *= 1000


@pytest.mark.parametrize("name", OTHERS)
def test_other_structures_run_unmodified_and_say_why(
    name: str, tmp_path: Path, open_engine: OpenEngine
) -> None:
    config, reason = OTHERS[name]
    model_dir = save_model(config, tmp_path / "model")
    engine = open_engine(model_dir)
    assert engine.info.unfused is not None
    assert reason in engine.info.unfused
    assert answer(engine, PROMPTS[0]).token_ids == reference(model_dir).answer(PROMPTS[0], 24)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_begins_far_behind_the_first_tokens_is_seen_in_numbers(dtype: str, tmp_path: Path) -> None:
    """Trap 33, by no name of an argument: attention takes whatever it is given."""
    model_dir = save_model(SCALED_FROM_48_ON, tmp_path / "model")
    loaded = load_model(model_dir, dtype=dtype, device=torch.device("cpu"))
    for layer in loaded.module.modules():
        if hasattr(layer, "self_attn"):
            layer.self_attn.__class__ = type("Taking", (Taking, type(layer.self_attn)), {})
    with pytest.raises(Unmatched, match=r"something else .* at the end of its context"):
        fuse(loaded, choose_route(loaded).groups)


class Taking:
    """Tells nobody which arguments it uses."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return super().forward(*args, **kwargs)  # type: ignore[misc]


@pytest.mark.parametrize("cache_format", ["exact", "int8", "k=int8,v=int4; layers 1=exact"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_token_decodes_to_the_same_bits_whatever_shares_its_step(
    dtype: str, cache_format: str, tiny: TinyModels, open_recorded: OpenRecorded
) -> None:
    """Beside seven others, short ones and prompts that go through the model itself; blocks become old."""
    alone = decoded(tiny("qwen3"), open_recorded, [], dtype=dtype, cache_format=cache_format)
    beside = decoded(tiny("qwen3"), open_recorded, PROMPTS[1:], dtype=dtype, cache_format=cache_format)
    assert torch.equal(beside, alone)


@pytest.mark.covering(1)
@pytest.mark.parametrize("name", [*HYBRIDS, "experts", "experts and one that all share"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_token_of_other_layers_decodes_to_the_same_bits_whatever_shares_its_step(
    name: str, dtype: str, tmp_path: Path, open_recorded: OpenRecorded
) -> None:
    model_dir = save_model(CONFIGS[name], tmp_path / "model")
    alone = decoded(model_dir, open_recorded, [], dtype=dtype)
    assert torch.equal(decoded(model_dir, open_recorded, PROMPTS[1:], dtype=dtype), alone)


def decoded(model_dir: Path, open_recorded: OpenRecorded, others: list[list[int]], **settings: str) -> Tensor:
    """Return the logits of one request's decode steps; the others arrive when its prompt is computed."""
    engine, recorder = open_recorded(model_dir, **settings)
    assert engine.info.unfused is None
    prompt = token_ids(61, seed=9)
    handle = submit(engine, prompt, 40)
    engine.step()
    for other in others:
        submit(engine, other, 20)
        engine.step()
    finish(engine, handle)
    first = len(prompt)
    return torch.stack([recorder.row(handle.sequence, position) for position in range(first, first + 39)])


@pytest.mark.parametrize("weights", ["auto", "int8", "int4"])
def test_an_answer_that_is_read_again_has_the_bits_that_it_was_computed_with(
    weights: str, tmp_path: Path, open_recorded: OpenRecorded
) -> None:
    """Where prompts go through the fused layers too."""
    if not is_emulated(torch.bfloat16):
        pytest.skip("this processor multiplies bfloat16, and prompts are rounded")
    found = library()
    if weights != "auto" and (found is None or found.level != "avx512"):
        pytest.skip("prompts over quantised weights go through the model itself without AVX-512")
    sizes = SIZES | {"hidden_size": 96, "intermediate_size": 160}
    model_dir = save_model(transformers.LlamaConfig(**sizes), tmp_path / "model")
    settings = {"dtype": "bfloat16", "weights": weights}
    first, recorder = open_recorded(model_dir, cache_dir=tmp_path / "first", **settings)
    handle = submit(first, PROMPTS[0], 12)
    text = [*PROMPTS[0], *finish(first, handle).token_ids]
    second, again = open_recorded(model_dir, cache_dir=tmp_path / "second", **settings)
    other = submit(second, text[:-1], 1)
    assert finish(second, other).usage.computed_tokens == len(text) - 1
    assert torch.equal(again.row(other.sequence, len(text) - 2), recorder.row(handle.sequence, len(text) - 2))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_exchanged_weights_are_those_that_fused_layers_use(
    dtype: str, tiny: TinyModels, open_engine: OpenEngine, tmp_path: Path
) -> None:
    """Those of norms too."""
    second = rewrite(other_of(tiny("gemma3"), tmp_path / "second"), halve_norms)
    engine, fresh = (open_engine(where, dtype=dtype) for where in (tiny("gemma3"), second))
    before = answer(engine, PROMPTS[0]).token_ids
    engine.update_weights(second)
    assert answer(engine, PROMPTS[0]).token_ids == answer(fresh, PROMPTS[0]).token_ids != before


def halve_norms(tensors: dict[str, Tensor]) -> None:
    for name, tensor in tensors.items():
        if tensor.ndim == 1:
            tensors[name] = (tensor - 1) / 2


def test_an_engine_says_why_a_model_of_another_kind_is_not_fused(
    tiny: TinyModels, open_engine: OpenEngine
) -> None:
    assert open_engine(tiny("gpt2")).info.unfused == "its parts have other names"
