"""Every kernel against its definition, on numbers that no run had before: parts of the allowed error."""

from collections.abc import Callable, Iterator
from functools import partial

import torch

from benchmarks.gpu.problems import Heads, attention_of
from benchmarks.gpu.stage import Figure, Stage
from kvchat.engine.kernels.attention_shapes import AttentionSizes, ShadowSizes
from kvchat.engine.kernels.health import HEALTH
from kvchat.engine.kernels.kernel_checks import TOLERANCES, TRIALS, trials_of
from kvchat.engine.kernels.paged_attention import paged_attention
from kvchat.engine.kernels.paged_attention.reference import paged_attention as definition
from kvchat.engine.kernels.quantized_record import Code
from kvchat.engine.kernels.shadow_checks import shadow_trials

CODES = ((Code.FP8, Code.INT4), (Code.INT8, Code.INT8), (Code.INT4, Code.INT2), (Code.INT2, Code.FP8))
"""Every code, of keys and of values."""
QUANTIZED_TRIALS = trials_of([AttentionSizes(codes=codes) for codes in CODES])
EVERY_TRIAL = QUANTIZED_TRIALS | TRIALS | shadow_trials((ShadowSizes(),))
SEEDS = 100
"""A trial takes so many numbers from its own on for seeds."""
LENGTHS = (1, 63, 64, 65, 130)
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
SCORES: dict[str, dict[str, object]] = {
    "full": {},
    "window": {"window": 37},
    "chunks": {"chunk": 37},
    "soft cap": {"softcap": 2.0},
}


def measure(stage: Stage) -> Iterator[Figure]:
    for name, dtype, error_of in checks(stage):
        yield _figure(name, dtype, error_of())
    if HEALTH.problems:
        raise AssertionError(f"kernels were refused: {HEALTH.problems}")


def checks(stage: Stage) -> Iterator[tuple[str, torch.dtype, Callable[[], float]]]:
    """Yield what is checked: a name, a dtype, and what returns the error."""
    # The interpreter computes bfloat16 wrongly.
    for dtype in DTYPES[1:] if stage.is_dry else DTYPES:
        for name, trial in EVERY_TRIAL.items():
            yield name, dtype, partial(trial, stage.device, dtype, stage.seed)
            stage.seed += SEEDS
        heads = Heads(4, 2, 16) if stage.is_dry else Heads(32, 8, 128)
        for name, scores in SCORES.items():
            for words, num_new in (("decode", 1), ("prompts", 5)):
                error_of = partial(_attention_error, stage, heads, num_new, dtype, scores)
                yield f"{words}, {name}, {heads.query}/{heads.kv} x {heads.dim}", dtype, error_of
        yield "decode, sinks", dtype, partial(_sinks_error, stage, heads, dtype)


def _attention_error(
    stage: Stage, heads: Heads, num_new: int, dtype: torch.dtype, scores: dict[str, object]
) -> float:
    lengths = LENGTHS[:3] if stage.is_dry else (*LENGTHS, 1500)
    case = attention_of(stage, heads, lengths, num_new, dtype, **scores)
    there = case.on_cpu()
    wanted = definition(there.query, there.k_pool, there.v_pool, there.args)
    got = paged_attention(case.query, case.k_pool, case.v_pool, case.args).cpu()
    return float((got.double() - wanted.double()).abs().max())


def _sinks_error(stage: Stage, heads: Heads, dtype: torch.dtype) -> float:
    return _attention_error(stage, heads, 1, dtype, {"sinks": stage.random(heads.query, dtype=dtype)})


def _figure(name: str, dtype: torch.dtype, error: float) -> Figure:
    part = error / TOLERANCES[dtype]
    words = f"{name}, {str(dtype).removeprefix('torch.')}"
    figure = Figure(name=words, unit="of limit", value=part, low=part, high=part, target="at most 1")
    if not part <= 1:
        raise AssertionError(f"{words}: the error is {part:.3g} times what is allowed")
    return figure
