"""A LoRA answers as transformers and peft do, is part of what blocks are named by, and is refused with the
reason where it does not fit.
"""

import shutil
import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from kvchat.engine.models.locate import locate_model
from kvchat.errors import ModelError, ModelNotFound, ModelUnreadable, UnsupportedModel
from tests.engine.conftest import OpenEngine, TinyModels
from tests.engine.tiny_models import answer, edit_json, edit_tensors, reference, token_ids

pytest.importorskip("peft", reason="LoRA adapters are an extra: pip install 'kvchat[lora]'")
WITH_PEFT = [
    pytest.mark.cpu,
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"),
]
pytestmark = WITH_PEFT

PROMPT = token_ids(60)
TARGETS = {"llama": ["q_proj", "k_proj", "v_proj", "down_proj"], "gpt2": ["c_attn", "c_proj"]}


def load(model_dir: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)


def save_adapter(
    model_dir: Path, adapter_dir: Path, kind: str = "llama", seed: int = 1, **changes: Any
) -> Path:
    """Write an adapter with random weights that change what the model says."""
    import peft

    torch.manual_seed(seed)
    settings = {
        "r": 4,
        "lora_alpha": 8,
        "target_modules": TARGETS[kind],
        "task_type": "CAUSAL_LM",
        "init_lora_weights": False,
        "fan_in_fan_out": kind == "gpt2",
    }
    model = peft.get_peft_model(load(model_dir), peft.LoraConfig(**settings | changes))
    model.save_pretrained(adapter_dir)
    return adapter_dir


def peft_answer(model_dir: Path, adapter_dir: Path, num_tokens: int) -> list[int]:
    """Return the prompt's greedy continuation by peft, which computes an adapter beside the weights."""
    import peft

    model = peft.PeftModel.from_pretrained(load(model_dir), adapter_dir).eval()
    ids = torch.tensor([PROMPT])
    with torch.inference_mode():
        out = model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=num_tokens, do_sample=False
        )
    return out[0, len(PROMPT) :].tolist()


@pytest.fixture
def base(tiny: TinyModels) -> Path:
    return tiny("llama")


@pytest.fixture
def adapter(base: Path, tmp_path: Path) -> Path:
    return save_adapter(base, tmp_path / "adapter")


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("llama", {}),
        ("gpt2", {}),
        ("llama", {"use_rslora": True, "use_dora": True, "modules_to_save": ["lm_head"]}),
        ("llama", {"target_modules": ["q_proj", "embed_tokens"], "rank_pattern": {"q_proj": 2}}),
    ],
)
def test_an_adapter_answers_as_transformers_and_peft_do(
    kind: str, changes: dict[str, Any], tiny: TinyModels, open_engine: OpenEngine, tmp_path: Path
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # peft says which embeddings it saves
        adapter = save_adapter(tiny(kind), tmp_path / "adapter", kind, **changes)
        expected = peft_answer(tiny(kind), adapter, 24)
    assert expected != reference(tiny(kind)).answer(PROMPT, 24)
    engine = open_engine(tiny(kind), adapter=adapter)
    assert answer(engine, PROMPT).token_ids == expected
    assert engine.info.adapter == str(adapter)


def test_another_adapter_of_the_same_name_meets_no_block_of_the_first(
    base: Path, adapter: Path, open_engine: OpenEngine, tmp_path: Path
) -> None:
    """Trap 2: without an adapter, with one, and with another one in its place."""
    other = save_adapter(base, tmp_path / "other", seed=2)
    expected = [
        reference(base).answer(PROMPT, 12),
        peft_answer(base, adapter, 12),
        peft_answer(base, other, 12),
    ]
    for wanted in expected:
        chosen = None if wanted == expected[0] else adapter
        if wanted == expected[2]:
            shutil.rmtree(adapter)
            other.rename(adapter)
        engine = open_engine(base, adapter=chosen, cache_dir=tmp_path / "cache")
        result = answer(engine, PROMPT, 12)
        assert (result.usage.cached_tokens, result.token_ids) == (0, wanted)
        engine.close()


def test_an_update_takes_an_adapter_and_leaves_it_again(
    base: Path, adapter: Path, open_engine: OpenEngine
) -> None:
    engine = open_engine(base)
    plain = engine.info
    info = engine.update_weights(adapter)
    assert (info.model, info.model_dir, info.adapter) == (plain.model, plain.model_dir, str(adapter))
    assert info.fingerprint == open_engine(base, adapter=adapter).info.fingerprint
    assert answer(engine, PROMPT, 12).token_ids == peft_answer(base, adapter, 12)
    assert engine.update_weights(base).fingerprint == plain.fingerprint
    assert answer(engine, PROMPT, 12).token_ids == reference(base).answer(PROMPT, 12)


# What is refused


def edit(adapter_dir: Path, **changes: object) -> None:
    edit_json(adapter_dir / "adapter_config.json", **changes)


def rewrite(adapter_dir: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    edit_tensors(adapter_dir / "adapter_model.safetensors", change)


def cut_short(adapter_dir: Path) -> None:
    path = adapter_dir / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])


MORE = {"base_model.model.model.layers.9.self_attn.q_proj.lora_A.weight": torch.zeros(4, 64)}
DAMAGES: dict[str, tuple[Callable[[Path], object], type[ModelError], str]] = {
    "no directory": (shutil.rmtree, ModelNotFound, "no adapter directory"),
    "no config": (
        lambda adapter: (adapter / "adapter_config.json").unlink(),
        ModelUnreadable,
        "no adapter_config.json",
    ),
    "cut short": (cut_short, ModelUnreadable, "not a whole safetensors file"),
    "a pickle": (
        lambda adapter: (adapter / "adapter_model.safetensors").rename(adapter / "adapter_model.bin"),
        ModelUnreadable,
        "pickle",
    ),
    "another kind": (partial(edit, peft_type="PREFIX_TUNING"), UnsupportedModel, "PREFIX_TUNING"),
    "some tokens alone": (partial(edit, alora_invocation_tokens=[5]), UnsupportedModel, "certain tokens"),
    "other modules": (partial(edit, target_modules=["in_proj"]), UnsupportedModel, "does not fit"),
    "another rank": (partial(edit, r=8), UnsupportedModel, "does not fit"),
    "a weight less": (
        partial(rewrite, change=lambda tensors: tensors.pop(min(tensors))),
        UnsupportedModel,
        "lacks",
    ),
    "a weight more": (
        partial(rewrite, change=lambda tensors: tensors.update(MORE)),
        UnsupportedModel,
        "no place for",
    ),
    "NaN": (
        partial(rewrite, change=lambda tensors: tensors[min(tensors)].fill_(float("nan"))),
        UnsupportedModel,
        "does not fit",
    ),
}


@pytest.mark.parametrize(("damage", "error", "says"), DAMAGES.values(), ids=DAMAGES.keys())
def test_an_adapter_that_cannot_be_used_is_refused_with_the_reason(
    damage: Callable[[Path], object],
    error: type[ModelError],
    says: str,
    base: Path,
    adapter: Path,
    open_engine: OpenEngine,
) -> None:
    damage(adapter)
    with pytest.raises(error, match=says):
        open_engine(base, adapter=adapter)


def test_without_peft_an_adapter_is_refused_with_what_to_install(
    base: Path, adapter: Path, open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)  # as if it could not be found
    with pytest.raises(UnsupportedModel, match=r"pip install 'kvchat\[lora\]'"):
        open_engine(base, adapter=adapter)
    assert answer(open_engine(base), PROMPT, 4).token_ids == reference(base).answer(PROMPT, 4)


def test_a_model_with_an_adapter_beside_its_weights_is_refused(
    base: Path, adapter: Path, open_engine: OpenEngine, tmp_path: Path
) -> None:
    """Trap 2: transformers would merge it unasked, and no fingerprint would know."""
    mixed = Path(shutil.copytree(base, tmp_path / "mixed"))
    for path in adapter.glob("adapter_*"):
        shutil.copy(path, mixed)
    with pytest.raises(ModelUnreadable, match="--adapter"):
        locate_model(str(mixed))
    with pytest.raises(ModelUnreadable, match="--adapter"):
        locate_model(str(adapter))
    engine = open_engine(base)
    with pytest.raises(ModelUnreadable, match="--adapter"):
        engine.update_weights(mixed)
