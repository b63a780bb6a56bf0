"""Kernels of layers with a recurrent state give what their references give, however tokens are cut.

Native kernels, or under Triton's interpreter Triton's: `test_triton_recurrences` starts these tests with it.
"""

from collections.abc import Callable
from functools import partial
from importlib import import_module

import pytest
import torch
from torch import Tensor

from kvchat.engine.kernels import causal_conv, gated_delta, selective_scan, triton_support
from kvchat.engine.kernels.causal_conv import reference as conv
from kvchat.engine.kernels.gated_delta import reference as delta
from kvchat.engine.kernels.kernel_checks import KernelCheck, conv_error, delta_error, scan_error
from kvchat.engine.kernels.selective_scan import reference as scan
from kvchat.engine.kernels.state_slots import StateSlots
from kvchat.engine.kernels.triton_support import is_interpreted
from tests.engine.kernels.interpreted import compute_directly
from tests.engine.kernels.native_library import all_levels, native

pytestmark = pytest.mark.cpu

TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 4e-3}
SLOW = [pytest.mark.slow] * is_interpreted()
DTYPES = [torch.float16, pytest.param(torch.float32, marks=SLOW), torch.bfloat16]
if is_interpreted():
    compute_directly()
    DTYPES.pop()  # the interpreter computes bfloat16 wrongly
    all_levels = pytest.mark.parametrize("level", ["triton"])
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)
STRIDE = 3
"""Slots are this many times as far apart as a state is long, as in a pool."""

Rows = dict[str, Tensor]
"""What tokens bring, [B, n, ...]."""
Kernel = Callable[[Rows, StateSlots], Tensor]


def form_of(operation: str, level: str) -> Callable[..., Tensor]:
    """Return an operation in Triton, or by the native kernels of a level."""
    form = "triton" if is_interpreted() else "native"
    kernel = getattr(import_module(f"kvchat.engine.kernels.{operation}.{form}"), operation)
    return kernel if is_interpreted() else partial(kernel, native=native(level))


def random(generator: torch.Generator, *size: int) -> Tensor:
    return torch.randn(size, generator=generator)


def slots_of(before: Tensor | None, shape: tuple[int, ...]) -> StateSlots:
    """Return slots in the reverse order of the sequences, apart from each other, full of NaN."""
    num, *sizes = shape
    states = torch.full((2 * num, STRIDE, *sizes), torch.nan)[:, 1]
    reads = torch.arange(num).flip(0)
    if before is not None:
        states[reads] = before
    return StateSlots(states, None if before is None else reads, reads + num)


def after_of(slots: StateSlots) -> Tensor:
    return slots.states[slots.writes]


def expect_the_same_in_cuts(
    kernel: Kernel, rows: Rows, before: Tensor | None, shape: tuple[int, ...], found: Tensor, after: Tensor
) -> None:
    """Compute one token, then the others on its state: not a bit may differ."""
    if found.shape[1] == 1:
        return
    first = slots_of(before, shape)
    outs = [kernel({name: row[:, :1] for name, row in rows.items()}, first)]
    rest = slots_of(after_of(first), shape)
    outs.append(kernel({name: row[:, 1:] for name, row in rows.items()}, rest))
    assert torch.equal(torch.cat(outs, dim=1), found)
    assert torch.equal(after_of(rest), after)


DELTA_SHAPES = [
    (1, 1, 2, 4, 16, 16),
    (2, 7, 1, 3, 24, 70),
    pytest.param((1, 5, 2, 2, 128, 128), marks=SLOW),
    (3, 2, 2, 2, 6, 5),
]


@pytest.mark.covering(2, each="level")
@all_levels
@dtypes
@pytest.mark.parametrize("shape", DELTA_SHAPES, ids=str)
@pytest.mark.parametrize("decays_each", [False, True])
@pytest.mark.parametrize("has_past", [False, True])
def test_the_gated_delta_rule(
    shape: tuple[int, ...], decays_each: bool, has_past: bool, dtype: torch.dtype, level: str
) -> None:
    form = form_of("gated_delta", level)
    sequences, tokens, key_heads, heads, key_dim, value_dim = shape
    draw = partial(random, torch.Generator().manual_seed(1))
    query, key = (draw(sequences, tokens, key_heads, key_dim).to(dtype) for _ in range(2))
    rows = {
        "query": query,
        "key": key,
        "x": draw(sequences, tokens, heads, value_dim).to(dtype),
        "decay": -draw(sequences, tokens, heads, *([key_dim] if decays_each else [])).abs(),
        "beta": draw(sequences, tokens, heads).sigmoid(),
    }
    state = (sequences, heads, key_dim, value_dim)
    before = draw(*state) if has_past else None

    def kernel(rows: Rows, slots: StateSlots) -> Tensor:
        return form(*rows.values(), slots, is_normal=True)

    wanted, after = delta.gated_delta(*rows.values(), before, is_normal=True)
    slots = slots_of(before, state)
    found = kernel(rows, slots)
    assert found.dtype == dtype
    torch.testing.assert_close(found, wanted, rtol=0, atol=TOLERANCE[dtype])
    torch.testing.assert_close(after_of(slots), after, rtol=0, atol=TOLERANCE[torch.float32])
    expect_the_same_in_cuts(kernel, rows, before, state, found, after_of(slots))


SCAN_SHAPES = [(1, 1, 4, 16, 1, 16), (2, 5, 6, 8, 2, 70), (1, 6, 3, 20, 1, 128), (2, 4, 50, 1, 1, 16)]


@pytest.mark.covering(2, each="level")
@all_levels
@dtypes
@pytest.mark.parametrize("shape", SCAN_SHAPES, ids=str)
@pytest.mark.parametrize("decays_each", [False, True])
@pytest.mark.parametrize("has_past", [False, True])
def test_the_selective_scan(
    shape: tuple[int, ...], decays_each: bool, has_past: bool, dtype: torch.dtype, level: str
) -> None:
    form = form_of("selective_scan", level)
    sequences, tokens, heads, head_dim, groups, size = shape
    draw = partial(random, torch.Generator().manual_seed(2))
    rows = {
        "x": draw(sequences, tokens, heads, head_dim).to(dtype),
        "dt": draw(sequences, tokens, heads).abs(),
        "b": draw(sequences, tokens, groups, size),
        "c": draw(sequences, tokens, groups, size),
    }
    a, skip = -draw(heads, *([size] if decays_each else [])).abs(), draw(heads)
    state = (sequences, heads, head_dim, size)
    before = draw(*state) if has_past else None

    def kernel(rows: Rows, slots: StateSlots) -> Tensor:
        x, dt, b, c = rows.values()
        return form(x, dt, a, b, c, skip, slots)

    x, dt, b, c = rows.values()
    wanted, after = scan.selective_scan(x, dt, a, b, c, skip, before)
    slots = slots_of(before, state)
    found = kernel(rows, slots)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=2e-5)
    torch.testing.assert_close(after_of(slots), after, rtol=1e-5, atol=2e-5)
    expect_the_same_in_cuts(kernel, rows, before, state, found, after_of(slots))


@pytest.mark.covering(2, each="level")
@all_levels
@dtypes
@pytest.mark.parametrize(
    ("sequences", "tokens", "channels", "taps", "kept"),
    [(2, 5, 70, 4, 4), (1, 1, 20, 3, 3), (2, 9, 33, 4, 6), (1, 3, 16, 7, 7), (1, 2, 130, 2, 1)],
)
@pytest.mark.parametrize("has_past", [False, True])
@pytest.mark.parametrize("is_activated", [False, True])
def test_the_short_convolution(
    sequences: int,
    tokens: int,
    channels: int,
    taps: int,
    kept: int,
    has_past: bool,
    is_activated: bool,
    dtype: torch.dtype,
    level: str,
) -> None:
    draw = partial(random, torch.Generator().manual_seed(3))
    x = draw(sequences, channels, tokens).to(dtype).mT  # tokens of a channel side by side
    weight, bias = draw(channels, taps).to(dtype), draw(channels).to(dtype)
    before = draw(sequences, channels, kept).to(dtype) if has_past else None
    convolve = partial(form_of("causal_conv", level), is_activated=is_activated)
    wanted = conv.causal_conv(x, weight, bias, before, is_activated=is_activated)
    past = None if before is None else before.clone()
    found = convolve(x, weight, bias, past)
    torch.testing.assert_close(found, wanted, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    if before is not None:
        assert torch.equal(past, torch.cat((before, x.mT), dim=-1)[..., -kept:])
        past = before.clone()
        steps = [convolve(x[:, t : t + 1], weight, bias, past) for t in range(tokens)]
        assert torch.equal(torch.cat(steps, dim=1), found), "cuts change no bit"


@pytest.mark.parametrize("error", [delta_error, scan_error, conv_error])
def test_without_kernels_the_references_read_and_write_states(
    error: KernelCheck, monkeypatch: pytest.MonkeyPatch
) -> None:
    for operation in (gated_delta, selective_scan, causal_conv):
        monkeypatch.setattr(operation, "takes_native", lambda rows: False)
    monkeypatch.setattr(triton_support, "is_interpreted", lambda: False)
    assert error(torch.device("cpu"), torch.float32, 0) == 0
