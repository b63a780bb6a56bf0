"""A pass that walks through decoder layers by itself computes what the model does."""

from pathlib import Path
from typing import Any

import pytest
import torch

from kvchat.engine.api.config import EngineConfig
from kvchat.engine.forward.compile_choice import choose, fingerprint_of
from kvchat.engine.forward.decode_graphs import DecodeGraphRunner, compute_anew
from kvchat.engine.forward.layerwise_check import walk_through, walking_pass
from kvchat.engine.forward.layerwise_pass import LayerwisePass
from kvchat.engine.memory.device_pool import DevicePool
from kvchat.engine.models.probing.decoder_structure import Unmatched
from kvchat.engine.models.weights_setting import WeightSource
from kvchat.engine.startup.gpu import limits_of, why_not
from kvchat.engine.startup.weights import Candidate, load_candidate
from tests.engine.conftest import TinyModels
from tests.engine.latent_models import model_of
from tests.engine.overlapped_engines import open_ahead
from tests.engine.test_fused_layers import CONFIGS
from tests.engine.tiny_models import reference, save_model, submit, token_ids

pytestmark = pytest.mark.cpu

WALKED = ("llama", "qwen3", "gemma3")
CPU = torch.device("cpu")


def load(model_dir: Path, dtype: str = "float32", **settings: Any) -> Candidate:
    return load_candidate(WeightSource(model_dir=model_dir), EngineConfig(dtype=dtype, **settings), CPU)


def pool_of(candidate: Candidate, block_size: int = 16) -> DevicePool:
    groups = candidate.served.groups
    return DevicePool(groups, {group.id: 40 for group in groups}, block_size, CPU)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", WALKED)
def test_layers_are_walked_through(kind: str, dtype: str, tiny: TinyModels) -> None:
    """Also with windows, norms of heads and behind parts, and a rotary embedding for each kind of layer."""
    candidate = load(tiny(kind), dtype)
    forward, reason = walking_pass(candidate.loaded, candidate.served, pool_of(candidate))
    assert reason is None
    assert why_not(forward, candidate.served.groups) is None


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["no gates", "scaled residuals"])
def test_layers_of_rarer_structures_are_walked_through(name: str, dtype: str, tmp_path: Path) -> None:
    candidate = load(save_model(CONFIGS[name], tmp_path / "model"), dtype)
    _, reason = walking_pass(candidate.loaded, candidate.served, pool_of(candidate))
    assert reason is None


def test_models_of_another_structure_run_as_they_are(tiny: TinyModels, tmp_path: Path) -> None:
    for candidate, words in (
        (load(tiny("gpt2")), "parts"),
        (load(model_of("V2", tmp_path)), "latent"),
        (load(tiny("llama"), cache_format="int8"), "recent"),
    ):
        forward, reason = walking_pass(candidate.loaded, candidate.served, pool_of(candidate, 64))
        assert reason is not None
        assert words in reason
        assert not isinstance(forward, LayerwisePass)


def test_a_layer_that_computes_something_else_is_noticed(tiny: TinyModels) -> None:
    candidate = load(tiny("llama"))
    module: Any = candidate.loaded.module
    attention = module.model.layers[2].self_attn
    attention.o_proj.register_forward_hook(lambda layer, args, out: out * 1.01)
    with pytest.raises(Unmatched, match="layer 2"):
        walk_through(candidate.loaded, candidate.served)


@pytest.mark.parametrize("kind", WALKED)
def test_answers_are_transformers_own_in_steps_that_can_be_recorded(kind: str, tiny: TinyModels) -> None:
    """Prompts of several chunks beside answers, steps in static buffers, and those handed in ahead."""
    model_dir = tiny(kind)
    engine, runner = open_ahead(model_dir, walks=True, max_batch_tokens=40)
    assert isinstance(runner._inner._forward, LayerwisePass)
    prompts = [token_ids(length, seed=1) for length in (5, 63, 90)]
    handles = [submit(engine, prompt, 30) for prompt in prompts]
    while engine.has_work:
        engine.step()
        engine.check_integrity()
    for prompt, handle in zip(prompts, handles, strict=True):
        wanted = reference(model_dir).answer(prompt, 30)
        assert engine._manager.sequences[handle.sequence].token_ids[len(prompt) :] == wanted
    assert len(runner.ahead) > 20
    engine.close()


def compile_by(backend: str) -> Any:
    return lambda between: torch.compile(between, backend=backend, fullgraph=True)


def steps_of(candidate: Candidate) -> tuple[LayerwisePass, DecodeGraphRunner]:
    pool, groups = pool_of(candidate), candidate.served.groups
    for layer in pool.layers.values():
        layer.keys.zero_()
        layer.values.zero_()
    forward, _ = walking_pass(candidate.loaded, candidate.served, pool)
    assert isinstance(forward, LayerwisePass)
    return forward, DecodeGraphRunner(forward, groups, limits_of(groups, pool, 128), compute_anew, (2,))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_what_lies_between_calls_of_attention_is_compiled_once_for_equal_layers(
    backend: str, tiny: TinyModels
) -> None:
    """In one graph, also where they reach differently far, and with the same logits."""
    for kind in ("llama", "gemma3"):
        forward, steps = steps_of(load(tiny(kind)))
        _, wanted = steps.time_smallest()
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        forward.use(compile_by(backend))
        _, found = steps.time_smallest()
        assert torch.allclose(found, wanted, atol=1e-5, rtol=1e-5)
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


@pytest.mark.filterwarnings("ignore")
def test_the_faster_way_is_chosen_once_and_remembered(
    tiny: TinyModels, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    forward, steps = steps_of(load(tiny("llama")))
    _, logits = steps.time_smallest()

    def never() -> tuple[float, torch.Tensor]:
        raise AssertionError("it was measured again")

    def measure(name: str, seconds: tuple[float, float], compiled_logits: torch.Tensor) -> bool:
        times = iter(((seconds[0], logits), (seconds[1], compiled_logits)))
        chosen = choose(forward, lambda: next(times), tmp_path / name, compile=compile_by("eager"))
        assert choose(forward, never, tmp_path / name, compile=compile_by("eager")) == chosen
        return chosen

    assert measure("faster", (0.010, 0.008), logits)
    assert not measure("hardly", (0.010, 0.0099), logits)
    assert not measure("slower", (0.010, 0.012), logits)
    assert not measure("other numbers", (0.010, 0.005), 1.1 * logits)
    assert "other logits" in caplog.text


@pytest.mark.filterwarnings("ignore")
def test_layers_that_cannot_be_compiled_are_computed_as_they_are(tiny: TinyModels, tmp_path: Path) -> None:
    forward, steps = steps_of(load(tiny("llama")))
    told: list[str] = []

    def fails(between: Any) -> Any:
        raise RuntimeError("no compiler")

    assert not choose(forward, steps.time_smallest, tmp_path, told.append, fails)
    assert told[-1] == "compiling failed"
    assert steps.time_smallest()[0] > 0


@pytest.mark.filterwarnings("ignore")
def test_a_remembered_choice_that_fails_is_not_made_again(
    tiny: TinyModels, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The engine goes on as layers are, with one warning, and so does the next start."""
    forward, steps = steps_of(load(tiny("llama")))
    _, wanted = steps.time_smallest()
    times = iter(((0.010, wanted), (0.001, wanted)))
    assert choose(forward, lambda: next(times), tmp_path, compile=compile_by("eager"))

    def fails(between: Any) -> Any:
        def compiled(*_: Any) -> Any:
            raise RuntimeError("ptxas was not found")

        return compiled

    assert choose(forward, steps.time_smallest, tmp_path, compile=fails)
    assert torch.equal(steps.time_smallest()[1], wanted)
    assert "not compiled any more, which may be slower: ptxas was not found" in caplog.text
    assert not choose(forward, steps.time_smallest, tmp_path, compile=fails)
    assert torch.equal(steps.time_smallest()[1], wanted)
    assert caplog.text.count("not compiled any more") == 1


def test_a_choice_is_of_one_shape_type_and_version(tiny: TinyModels, monkeypatch: pytest.MonkeyPatch) -> None:
    names = set()
    for changes, dtype in (({}, "float32"), ({}, "bfloat16"), ({"intermediate_size": 96}, "float32")):
        candidate = load(tiny("llama", **changes), dtype)
        forward, _ = steps_of(candidate)
        names.add(fingerprint_of(forward, CPU))
    names.add(fingerprint_of(forward, torch.device("mps")))
    monkeypatch.setattr("kvchat.engine.forward.compile_choice.version", lambda package: "0")
    names.add(fingerprint_of(forward, CPU))
    assert len(names) == 5
