"""Kernels in the place of the functions by which layers of transformers compute their states.

On GPUs they are Triton's, on processors native ones. Models share these functions by name, and call them from
the `forward` of the layer. The layer gets a copy of its `forward` that finds kernels under those names; the
model's module is left alone. Kernels read and write what a layer accumulates in its slots: whatever the layer
hands over or is given for it is not looked at.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from inspect import unwrap
from types import FunctionType, MethodType
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from kvchat.engine.formats.recurrent.spec import StateSpec
from kvchat.engine.kernels import causal_conv, gated_delta, selective_scan
from kvchat.engine.kernels.causal_conv.native import MOST_TAPS
from kvchat.engine.kernels.gated_delta.native import MOST_DIM
from kvchat.engine.kernels.native.library import library
from kvchat.engine.kernels.native.tensors import TYPES
from kvchat.engine.kernels.selective_scan.native import MOST_SIZE
from kvchat.engine.kernels.state_slots import StateSlots
from kvchat.engine.kernels.triton_support import takes_triton

Slots = Callable[[], StateSlots]
"""Returns where a layer finds and leaves what it accumulates, in the part that it computes."""
_SILU = ("silu", "swish")
_OPERATIONS = causal_conv.OPERATION, gated_delta.OPERATION, selective_scan.OPERATION


def scans_natively(keeper: nn.Module, spec: StateSpec) -> bool:
    """Return whether kernels compute all of a layer's states, token by token. Pure."""
    names = _known_names(keeper)
    if not names or not all(map(_has_kernels, keeper.parameters())):
        return False
    accumulated = [one for one in spec.tensors if one.kind == "rec"]
    if not accumulated:
        return True
    scans = [name for name in names if name in _SCANS]
    # Kernels have one state of a layer, and of Mamba none that is divided into heads.
    is_one = len(accumulated) == 1 and accumulated[0].dtype == "F32" and bool(scans)
    sizes = accumulated[0].shape
    return is_one and all(
        len(sizes) == _SCANS[name].num_dims and sizes[_SCANS[name].bounded] <= _SCANS[name].most
        for name in scans
    )


def _has_kernels(weight: Tensor) -> bool:
    """Return whether there are kernels for what lies where a weight lies."""
    is_native = weight.device.type == "cpu" and library() is not None
    return is_native or all(takes_triton(weight, one) for one in _OPERATIONS)


def native_forward(keeper: nn.Module, slots: Slots) -> Callable[..., Any]:
    """Return the `forward` of a layer that `scans_natively`, with kernels."""
    function = _function_of(keeper)
    kernels: dict[str, Callable[..., Any]] = {}
    for name in _known_names(keeper):
        if name in _SCANS:
            kernels[name] = partial(_SCANS[name].kernel, slots)
        else:
            kernels[name] = partial(_CONVOLUTIONS[name], function.__globals__[name])
    scope = {**function.__globals__, **kernels}
    copy = FunctionType(
        function.__code__, scope, function.__name__, function.__defaults__, function.__closure__
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return MethodType(copy, keeper)


def _function_of(keeper: nn.Module) -> FunctionType:
    function = unwrap(type(keeper).forward)
    assert isinstance(function, FunctionType)
    return function


def _known_names(keeper: nn.Module) -> list[str]:
    function = _function_of(keeper)
    known = _SCANS.keys() | _CONVOLUTIONS.keys()
    return [name for name in function.__code__.co_names if name in known and name in function.__globals__]


def _conv(
    own: Callable[..., Tensor],
    hidden_states: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    **kwargs: Any,
) -> Tensor:
    if not _takes_conv(hidden_states, weight, activation):
        return own(hidden_states, weight, bias, activation=activation, **kwargs)
    is_activated = activation is not None
    return causal_conv.causal_conv(
        hidden_states.transpose(1, 2), weight, bias, is_activated=is_activated
    ).transpose(1, 2)


def _conv_update(
    own: Callable[..., Tensor],
    hidden_states: Tensor,
    conv_state: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
) -> Tensor:
    is_plain = conv_state.is_contiguous() and conv_state.dtype == hidden_states.dtype
    is_kept = weight.shape[1] - 1 <= conv_state.shape[-1] <= MOST_TAPS
    if not (is_plain and is_kept and _takes_conv(hidden_states, weight, activation)):
        return own(hidden_states, conv_state, weight, bias, activation)
    rows, is_activated = hidden_states.transpose(1, 2), activation is not None
    return causal_conv.causal_conv(rows, weight, bias, conv_state, is_activated=is_activated).transpose(1, 2)


def _takes_conv(hidden_states: Tensor, weight: Tensor, activation: str | None) -> bool:
    is_known = activation is None or activation in _SILU
    return is_known and hidden_states.dtype in TYPES and weight.shape[1] <= MOST_TAPS


def _delta(
    slots: Slots,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    *,
    use_qk_l2norm_in_kernel: bool = False,
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    own = slots()
    return gated_delta.gated_delta(
        query, key, value, g, beta, own, is_normal=use_qk_l2norm_in_kernel
    ), own.states


def _mamba2_scan(
    slots: Slots,
    hidden_states: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    *,
    D: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    steps = _steps(dt, dt_bias, dt_softplus).clamp(*dt_limit)
    own = slots()
    return selective_scan.selective_scan(hidden_states, steps, A, B, C, D, own), own.states


def _mamba2_update(
    slots: Slots,
    state: Tensor,
    hidden_states: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
    z: Tensor | None = None,
    **kwargs: Any,
) -> Tensor:
    """One token: x and dt [B, H, P], b and c [B, G, N]; what heads have is spread over their channels."""
    steps = _steps(dt[..., 0], None if dt_bias is None else dt_bias[..., 0], dt_softplus)
    skip = None if D is None else D[..., 0]
    one = hidden_states[:, None], steps[:, None], A[:, 0, 0], B[:, None], C[:, None]
    out = selective_scan.selective_scan(*one, skip, slots())[:, 0]
    return _gated(out, z).to(hidden_states.dtype)


def _mamba_scan(
    slots: Slots,
    hidden_states: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    delta_softplus: bool = False,
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    """Channels [B, D, n], b and c [B, N, n]. The model's own function begins without a state."""
    rows, steps, b, c = (one.transpose(1, 2) for one in (hidden_states, dt, B, C))
    steps = _steps(steps, delta_bias, delta_softplus)
    own = slots()
    out = selective_scan.selective_scan(rows[..., None], steps, A, b[:, :, None], c[:, :, None], D, own)
    return _gated(out[..., 0].transpose(1, 2), z), own.states


def _mamba_update(
    slots: Slots,
    state: Tensor,
    hidden_states: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
    z: Tensor | None = None,
    **kwargs: Any,
) -> Tensor:
    """One token: x and dt [B, D], b and c [B, N]."""
    steps = _steps(dt, dt_bias, dt_softplus)
    one = hidden_states[:, None, :, None], steps[:, None], A, B[:, None, None], C[:, None, None]
    return _gated(selective_scan.selective_scan(*one, D, slots())[:, 0, :, 0], z).to(hidden_states.dtype)


def _steps(dt: Tensor, bias: Tensor | None, is_softplus: bool) -> Tensor:
    """Return step sizes as the models do, in the dtype of `dt`."""
    if bias is not None:
        dt = dt + bias.to(dt.dtype)
    return functional.softplus(dt) if is_softplus else dt


def _gated(read: Tensor, gate: Tensor | None) -> Tensor:
    return read if gate is None else read * functional.silu(gate)


@dataclass(frozen=True, slots=True)
class _Scan:
    """A kernel, how many dimensions its states have, and how large one of them may be."""

    kernel: Callable[..., Any]
    num_dims: int
    bounded: int
    most: int


_GATED_DELTA = _Scan(_delta, 3, 1, MOST_DIM)
_SCANS: Mapping[str, _Scan] = {
    "torch_chunk_gated_delta_rule": _GATED_DELTA,
    "torch_recurrent_gated_delta_rule": _GATED_DELTA,
    "chunk_kimi_delta_attention": _GATED_DELTA,
    "recurrent_kimi_delta_attention": _GATED_DELTA,
    "mamba2_chunk_scan": _Scan(_mamba2_scan, 3, 2, MOST_SIZE),
    "mamba2_selective_state_update": _Scan(_mamba2_update, 3, 2, MOST_SIZE),
    "mamba_selective_scan": _Scan(_mamba_scan, 2, 1, MOST_SIZE),
    "mamba_selective_state_update": _Scan(_mamba_update, 2, 1, MOST_SIZE),
}
_CONVOLUTIONS: Mapping[str, Callable[..., Any]] = {
    "causal_conv1d_fn": _conv,
    "causal_conv1d_update": _conv_update,
}
