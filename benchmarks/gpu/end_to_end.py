"""Tokens a second of whole models, beside transformers on the same weights and the same prompts."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from inspect import signature
from logging import ERROR, getLogger
from time import perf_counter
from typing import Any

import torch
import transformers

from benchmarks.gpu import ceilings
from benchmarks.gpu.models import Model, make_model, open_engine
from benchmarks.gpu.stage import Figure, Stage
from kvchat.engine.api.request import Request
from kvchat.engine.api.sampling_params import SamplingParams
from kvchat.engine.engine import Engine
from kvchat.engine.forward.compile_choice import measured_gain
from kvchat.engine.forward.layerwise_pass import LayerwisePass

COMPILE_S = 90.0
"""About what compiling a model takes; without so much time left it is left out."""
PAGE_SIZE = 64
"""Of transformers' continuous batching."""
Prompts = list[list[int]]


class Sizes:
    """Tokens of prompts and answers, and conversations at once."""

    def __init__(self, stage: Stage) -> None:
        self.prompt_len, self.num_tokens, self.batch = (12, 6, 2) if stage.is_dry else (512, 128, 16)

    def prompts(self, stage: Stage, count: int, vocab_size: int) -> Prompts:
        """Return prompts that no round had before, so that nothing is reused."""
        generator = torch.Generator().manual_seed(stage.seed)
        stage.seed += 1
        return torch.randint(5, vocab_size, (count, self.prompt_len), generator=generator).tolist()


def one_b(stage: Stage) -> Iterator[Figure]:
    yield from _measure(stage, "1B")


def eight_b(stage: Stage) -> Iterator[Figure]:
    yield from _measure(stage, "8B")


def _measure(stage: Stage, name: str) -> Iterator[Figure]:
    transformers.utils.logging.set_verbosity_error()
    getLogger("ContinuousBatchingLogger").setLevel(ERROR)
    model, sizes = make_model(stage, name), Sizes(stage)
    found: dict[str, Figure] = {}
    try:
        problem: Exception | None = None
        try:
            yield from _noted(_kvchat(stage, model, sizes), found)
        except Exception as error:  # the others are measured all the same
            problem = error
        yield from _noted(_peers(stage, model, sizes), found)
        yield from _beside(found, f"{name}, kvchat generate, 1", f"{name}, transformers generate, 1")
        if problem is not None:
            raise problem
    finally:
        del model
        if stage.device.type == "cuda":
            torch.cuda.empty_cache()


def _noted(figures: Iterator[Figure], found: dict[str, Figure]) -> Iterator[Figure]:
    """Yield figures, and keep each under its name."""
    for figure in figures:
        found[figure.name] = figure
        yield figure


def _beside(found: dict[str, Figure], own: str, other: str) -> Iterator[Figure]:
    """Yield how many times as fast one way is as the other, at once each; nothing where one is missing."""
    ours, theirs = found.get(f"{own} at once"), found.get(f"{other} at once")
    if ours is not None and theirs is not None:
        yield Figure(
            name=f"{own} beside {other} at once",
            unit="times",
            value=ours.value / theirs.value,
            low=ours.low / theirs.high,
            high=ours.high / theirs.low,
            target="at least 2",
        )


def _kvchat(stage: Stage, model: Model, sizes: Sizes) -> Iterator[Figure]:
    engine = open_engine(stage, model, 2 * sizes.batch * (sizes.prompt_len + sizes.num_tokens))
    try:
        for count in (1, sizes.batch):
            num_rounds = 2 if stage.is_dry else 4
            rounds = [_decode(stage, engine, model, sizes, count) for _ in range(num_rounds)][1:]
            yield from _decode_figures(stage, model, sizes, count, rounds)
            yield _ahead_figure(engine, f"{model.name}, kvchat decodes {count} at once")

            def answer(prompts: Prompts) -> object:
                sampling = SamplingParams(max_tokens=sizes.num_tokens, ignore_eos=True)
                return engine.generate(prompts, sampling)

            seconds = [_time(stage, model, sizes, count, answer) for _ in range(1 if stage.is_dry else 3)]
            words = f"{model.name}, kvchat generate, {count} at once"
            yield stage.rate(words, seconds, count * sizes.num_tokens, "tokens/s")
        yield from _compiled_figures(stage, model, engine)
    finally:
        engine.close()


def _decode_figures(
    stage: Stage, model: Model, sizes: Sizes, count: int, rounds: list[tuple[float, float]]
) -> Iterator[Figure]:
    step_s = [seconds for seconds, _ in rounds]
    mean_len = sizes.prompt_len + sizes.num_tokens / 2
    num_bytes = model.read_bytes + count * mean_len * model.kv_token_bytes
    words = f"{model.name}, kvchat decodes {count} at once"
    yield stage.rate(words, step_s, count, "tokens/s")
    target = "at least 75 %" if count == 1 else ""
    yield stage.rate(f"{words}, bytes read", step_s, num_bytes, "GB/s", ceiling=ceilings.COPY, target=target)
    idle = sorted(part for _, part in rounds)
    yield Figure(
        name=f"{words}, time between forward calls",
        unit="of a step",
        value=idle[len(idle) // 2],
        low=idle[0],
        high=idle[-1],
        target="under 0.05",
    )


def _compiled_figures(stage: Stage, model: Model, engine: Engine) -> Iterator[Figure]:
    """Yield what compiling the layers brings and costs; the figures above are of layers as they are."""
    runner: Any = engine._runner
    forward, steps = runner._forward, runner._short
    words = f"{model.name}, layers compiled"
    if not isinstance(forward, LayerwisePass) or steps is None:
        print(f"  {words}: left out, the model runs by its own layers", flush=True)
        return
    if not stage.is_dry and stage.spare_s < 2 * COMPILE_S:  # transformers' compiled way comes after it
        print(f"  {words}: left out, {stage.spare_s:.0f} s are to spare", flush=True)
        return
    trace = partial(torch.compile, backend="eager", fullgraph=True) if stage.is_dry else torch.compile
    start_s = perf_counter()
    gain = measured_gain(forward, steps.time_smallest, trace)
    seconds = perf_counter() - start_s
    forward.use(None)
    if not gain:
        raise AssertionError(f"{words}: compiling failed")
    for name, unit, value in (("a step", "times as fast", gain), ("once", "s", seconds)):
        yield Figure(name=f"{words}, {name}", unit=unit, value=value, low=value, high=value)


def _ahead_figure(engine: Engine, words: str) -> Figure:
    """Return how many steps were handed in before the tokens of the last were read, in all rounds so far."""
    number = engine._overlapped.num_steps if engine._overlapped is not None else 0
    if not number:
        raise AssertionError(f"{words}: every step waited for the tokens of the last")
    return Figure(name=f"{words}, handed in ahead", unit="steps", value=number, low=number, high=number)


def _decode(stage: Stage, engine: Engine, model: Model, sizes: Sizes, count: int) -> tuple[float, float]:
    """Answer prompts, and return the seconds of a step that only decodes, and which part of it is spent
    between two forward passes.
    """
    sampling = SamplingParams(max_tokens=sizes.num_tokens, ignore_eos=True)
    handles = [
        engine.submit(Request(token_ids=tuple(prompt), sampling=sampling))
        for prompt in sizes.prompts(stage, count, model.module.config.vocab_size)
    ]
    clock = _ForwardClock(stage, engine)
    most_prefill = -(-count * sizes.prompt_len // (64 if stage.is_dry else 2048)) + 1
    for _ in range(most_prefill):
        engine.step()
    clock.marks.clear()
    stage.synchronize()
    start_s, num_steps = perf_counter(), 0
    for _ in range(max(1, sizes.num_tokens - most_prefill - 2)):
        engine.step()
        num_steps += 1
    stage.synchronize()
    seconds = perf_counter() - start_s
    between = clock.between()
    clock.remove()
    while engine.has_work:
        engine.step()
    for handle in handles:
        engine.release(handle.sequence)
    return seconds / num_steps, between


class _ForwardClock:
    """Notes on the device when forward passes begin and end."""

    def __init__(self, stage: Stage, engine: Engine) -> None:
        self._stage = stage
        self._runner: Any = engine._runner
        self.marks: list[tuple[Any, Any]] = []
        for name in ("run", "run_ahead"):
            setattr(self._runner, name, partial(self._timed, getattr(self._runner, name)))

    def remove(self) -> None:
        del self._runner.run, self._runner.run_ahead

    def _timed(self, run: Callable[..., Any], *batch: Any) -> Any:
        begun = self._mark()
        out = run(*batch)
        if out is not None:
            self.marks.append((begun, self._mark()))
        return out

    def _mark(self) -> Any:
        if self._stage.device.type != "cuda":
            return perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between(self) -> float:
        """Return which part of the time lies between the end of a pass and the begin of the next."""
        if len(self.marks) < 2:
            return 0.0
        self._stage.synchronize()
        pairs = zip(self.marks, self.marks[1:], strict=False)
        gaps = sum(self._seconds(end, begun) for (_, end), (begun, _) in pairs)
        return gaps / max(1e-9, self._seconds(self.marks[0][0], self.marks[-1][1]))

    def _seconds(self, begun: Any, ended: Any) -> float:
        if self._stage.device.type != "cuda":
            return float(ended - begun)
        return float(begun.elapsed_time(ended)) / 1000


def _peers(stage: Stage, model: Model, sizes: Sizes) -> Iterator[Figure]:
    """Yield what transformers does; a way of it that fails leaves the others."""
    model.module.set_attn_implementation("sdpa")
    ways: dict[str, tuple[int, Callable[[Prompts], object], float]] = {
        "generate": (1, lambda prompts: _generate(stage, model, sizes, prompts), 0.0),
        "generate, padded batch": (sizes.batch, lambda prompts: _generate(stage, model, sizes, prompts), 0.0),
        "continuous batching": (sizes.batch, lambda prompts: _generate_batch(model, sizes, prompts), 20.0),
        "generate, static cache, compiled": (
            1,
            lambda prompts: _generate(stage, model, sizes, prompts, cache_implementation="static"),
            COMPILE_S,
        ),
    }
    for name, (count, run, least_s) in ways.items():
        words = f"{model.name}, transformers {name}, {count} at once"
        if not stage.is_dry and stage.spare_s < least_s:
            print(f"  {words}: left out, {stage.spare_s:.0f} s are to spare", flush=True)
            continue
        try:
            model.module.set_attn_implementation("sdpa")  # continuous batching leaves its own
            seconds = [_time(stage, model, sizes, count, run) for _ in range(2 if stage.is_dry else 3)][1:]
        except Exception as error:  # a peer's failure is a finding of its own
            print(f"  {words}: failed: {type(error).__name__}: {str(error)[:300]}", flush=True)
            continue
        yield stage.rate(words, seconds, count * sizes.num_tokens, "tokens/s")
    with suppress(Exception):  # it says that it does not run, though it does
        model.module._cached_continuous_batching_manager.stop(block=True)


def _time(stage: Stage, model: Model, sizes: Sizes, count: int, run: Callable[[Prompts], object]) -> float:
    """Return how long answers take, their short prompts included."""
    vocab_size = model.module.config.vocab_size
    prompts = sizes.prompts(stage, count, vocab_size)
    stage.synchronize()
    start_s = perf_counter()
    run(prompts)
    stage.synchronize()
    return perf_counter() - start_s


@torch.inference_mode()
def _generate(stage: Stage, model: Model, sizes: Sizes, prompts: Prompts, **settings: Any) -> None:
    ids = torch.tensor(prompts, device=stage.device)
    model.module.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=sizes.num_tokens,
        min_new_tokens=sizes.num_tokens,
        do_sample=False,
        pad_token_id=0,
        **settings,
    )


def _generate_batch(model: Model, sizes: Sizes, prompts: Prompts) -> None:
    settings = transformers.GenerationConfig(
        max_new_tokens=sizes.num_tokens, do_sample=False, eos_token_id=-1, pad_token_id=0
    )
    # Without a number of pages it takes most of the memory there is.
    num_pages = len(prompts) * (-(-(sizes.prompt_len + sizes.num_tokens) // PAGE_SIZE) + 1) + 8
    wanted = {"page_size": PAGE_SIZE, "num_blocks": num_pages, "max_batch_tokens": 2048}
    known = signature(transformers.ContinuousBatchingConfig).parameters
    batching = transformers.ContinuousBatchingConfig(
        **{name: value for name, value in wanted.items() if name in known}
    )
    results = model.module.generate_batch(
        prompts,
        generation_config=settings,
        continuous_batching_config=batching,
        persistent_manager=True,
        warmup=False,
    )
    found = sum(len(result.generated_tokens) for result in results.values())
    assert found == len(prompts) * sizes.num_tokens, f"{found} tokens came back"
