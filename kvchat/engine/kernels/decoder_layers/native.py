"""Decoder layers by the native kernel: one call for all layers and rows of a step.

Addresses of weights and pools are written down once; whoever exchanges weights writes over them where they
lie. Dimensions: T rows, R rows whose logits are wanted, V vocabulary.
"""

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from kvchat.engine.kernels.causal_conv.native import MOST_TAPS
from kvchat.engine.kernels.cpu_dtypes import is_emulated, is_multiplied_natively
from kvchat.engine.kernels.decoder_layers.args import (
    Activation,
    DecoderLayer,
    Experts,
    FusedLayerPool,
    FusedStatePool,
    GatedDelta,
    Heads,
    Linear,
    Mlp,
    Norm,
    RopeTable,
    SelectiveScan,
    ShortConvolution,
    StepRows,
    TokenMixing,
    tensors_of,
)
from kvchat.engine.kernels.gated_delta.native import MOST_DIM
from kvchat.engine.kernels.linear.packed_layout_probe import packed_layout
from kvchat.engine.kernels.linear.widened_layout import BLOCK, InterleavedWeight
from kvchat.engine.kernels.native.library import Library, fields, library
from kvchat.engine.kernels.native.tensors import TYPES, pointer
from kvchat.engine.kernels.quantized_attention.native import RecordSide, addresses_of, side_of
from kvchat.engine.kernels.quantized_linear import QuantizedWeight, native
from kvchat.engine.kernels.quantized_linear.weight import TILE
from kvchat.engine.kernels.selective_scan.native import MOST_SIZE

_ACTIVATIONS = {Activation.SILU: 0, Activation.GELU_TANH: 1, Activation.RELU_SQUARED: 2}
_ROWS, _COLUMNS, _QUANTIZED = 0, 1, 2
_ATTENTION, _DELTA, _CONVOLUTION, _SCAN, _NONE = 0, 1, 2, 3, 4
_MOST_INPUTS = 4
_NUMBERS_OF_PAIR = 4
"""What is kept of a row's expert: itself, its share, its place, and the pair that is at one."""
_FINE_BYTES, _COARSE_BYTES = 5.25, 3.25
"""Most bytes of a number that quantized weights are multiplied with: its parts, and of 32 some sums."""


class _Norm(ctypes.Structure):
    """The fields of elementwise.h's `Norm`, in order."""

    _fields_ = [
        *fields(ctypes.c_void_p, "weight"),
        *fields(ctypes.c_int64, "type adds_one"),
        ("epsilon", ctypes.c_double),
    ]


class _Product(ctypes.Structure):
    """The fields of product.h's `Product`, in order."""

    _fields_ = [
        *fields(ctypes.c_void_p, "weight bias scales minima"),
        *fields(ctypes.c_int64, "layout type bias_type num_inputs num_outputs block padded bits group"),
    ]


class _Mixer(ctypes.Structure):
    """The fields of mixers.h's `Mixer`, in order."""

    _fields_ = [
        *fields(ctypes.c_void_p, "taps conv_bias decay step_bias skip inputs states"),
        *fields(ctypes.c_int64, "taps_type conv_bias_type decay_type step_bias_type skip_type"),
        *fields(ctypes.c_int64, "input_stride state_stride num_channels num_taps num_kept"),
        *fields(ctypes.c_int64, "num_heads num_key_heads key_dim value_dim kind group"),
        ("least_step", ctypes.c_double),
        ("norm", _Norm),
    ]


class _States(ctypes.Structure):
    """The fields of mixers.h's `States`, in order."""

    _fields_ = [*fields(ctypes.c_void_p, "runs offsets"), ("num_sequences", ctypes.c_int64)]


class _Experts(ctypes.Structure):
    """The fields of layer.h's `Experts`, in order."""

    _fields_ = [
        *fields(_Product, "router shared_gate gate_up down"),
        *fields(ctypes.c_int64, "num_experts num_chosen is_normalized"),
    ]


class _Layer(ctypes.Structure):
    """The fields of layer.h's `Layer`, in order."""

    _fields_ = [
        *fields(_Norm, "before_attention after_attention before_mlp after_mlp query_norm key_norm"),
        ("inputs", _Product * _MOST_INPUTS),
        *fields(_Product, "output gate up down"),
        ("experts", _Experts),
        ("mixer", _Mixer),
        *fields(ctypes.c_int64, "num_inputs is_gated"),
        *fields(ctypes.c_void_p, "places sinks k_pool v_pool"),
        *fields(ctypes.c_int64, "k_n k_h k_p v_n v_h v_p"),
        *fields(ctypes.c_int64, "num_heads num_kv_heads dim_k dim_v block_size"),
        *fields(ctypes.c_int64, "window chunk rope group activation"),
        *fields(ctypes.c_double, "scale softcap residual"),
        ("old", ctypes.c_int64),
        *fields(RecordSide, "old_keys old_values"),
    ]


class _Rope(ctypes.Structure):
    """The fields of layer.h's `Rope`, in order."""

    _fields_ = [*fields(ctypes.c_void_p, "cosines sines"), ("dim", ctypes.c_int64)]


class _Group(ctypes.Structure):
    """The fields of layer.h's `Group`, in order."""

    _fields_ = [*fields(ctypes.c_void_p, "slots spans"), ("num_spans", ctypes.c_int64)]


class _Step(ctypes.Structure):
    """The fields of layer.h's `Step`, in order."""

    _fields_ = [
        *fields(ctypes.c_void_p, "layers ropes groups states old last_norm head hidden positions"),
        *fields(ctypes.c_void_p, "sampling logits parallel"),
        *fields(
            ctypes.c_int64, "num_threads num_layers num_rows num_hidden num_sampling pool_type is_rounded"
        ),
    ]


class NativeLayers:
    """Layers in the form in which the kernel reads them.

    Args:
        level: another level of the library than this processor's best.

    Raises: ValueError: there is no kernel for such weights or pools; the message says which.
    """

    def __init__(
        self,
        layers: Sequence[DecoderLayer],
        pools: Sequence[FusedLayerPool | FusedStatePool | None],
        last_norm: Norm,
        head: Linear,
        level: Library | None = None,
    ) -> None:
        found = level or library()
        if found is None:
            raise ValueError("there are no native kernels here")
        self._run = found.function("decoder_layers")
        self._parallel = found.parallel
        self._kept: list[object] = [layers, pools, last_norm, head]  # what the addresses point at
        dtype = next((_dtype_of(pool) for pool in pools if pool is not None), torch.float32)
        linears = [one for layer in layers for one in layer.linears]
        self._pool_type = TYPES[dtype]
        self.suits_rounded = all(_suits_rounded(linear, dtype, found) for linear in linears)
        """Whether nobody multiplies many rows faster with these weights, and with rounded inputs."""
        has_experts = any(layer.experts is not None for layer in layers)
        self.suits_prompts = not has_experts and all(_suits_prompts(one, dtype, found) for one in linears)
        """Whether nobody multiplies many rows with these weights faster, as they are."""
        self._last_norm = _norm(last_norm)
        self._head = self._product(head)
        self._num_outputs = head.num_outputs
        self._layers = (_Layer * len(layers))(*map(self._layer, layers, pools))
        self._ropes: Any = None
        self._groups = (_Group * len(pools))()
        self._states = (_States * len(pools))()

    def take_ropes(self, ropes: Sequence[RopeTable]) -> None:
        """Take the tables of all rotary embeddings, which hold every position of the steps to come."""
        self._kept_ropes = ropes
        self._ropes = (_Rope * len(ropes))(*map(_rope, ropes))

    def logits(self, hidden: Tensor, step: StepRows, *, is_rounded: bool = False, first: int = 0) -> Tensor:
        """Run all layers and return the logits [R, V] of the sampling rows, float32.

        Args:
            hidden: what the first layer gets [T, hidden], float32 and contiguous; it is overwritten by what
                the last one gives.
            first: run this layer and those behind it; negative: so many of the last ones.
            is_rounded: whether what weights of layers are multiplied with is rounded: to bfloat16, or to
                8 bits if they are quantized; not what weights of both kinds share. Only where
                `suits_rounded` says so.
        """
        out = torch.empty(len(step.sampling), self._num_outputs)
        self._compute(hidden, step, slice(first % len(self._layers), len(self._layers)), out, is_rounded)
        return out

    def hidden(self, hidden: Tensor, step: StepRows, layers: slice, *, is_rounded: bool = False) -> Tensor:
        """Return what consecutive layers give, [T, hidden] float32. Args: see `logits`."""
        hidden = hidden.clone()
        self._compute(hidden, step, layers, None, is_rounded)
        return hidden

    def _compute(
        self, hidden: Tensor, step: StepRows, layers: slice, out: Tensor | None, is_rounded: bool
    ) -> None:
        assert self.suits_rounded or not is_rounded
        has_logits = out is not None and len(out) > 0
        for number, group in enumerate(step.groups):
            rows = self._groups[number]
            rows.slots, rows.spans = group.slots.data_ptr(), group.table.data_ptr()
            rows.num_spans = len(group.table)
        for number, changed in enumerate(step.states):
            states = self._states[number]
            states.runs, states.offsets = changed.runs.data_ptr(), changed.offsets.data_ptr()
            states.num_sequences = len(changed.offsets) - 1
        old = [addresses_of(blocks) for blocks in step.old]
        lists = torch.tensor([listed.data_ptr() for listed in old], dtype=torch.int64)
        call = _Step(
            ctypes.addressof(self._layers) + layers.start * ctypes.sizeof(_Layer),
            ctypes.addressof(self._ropes),
            ctypes.addressof(self._groups),
            ctypes.addressof(self._states),
            lists.data_ptr(),
            ctypes.addressof(self._last_norm),
            ctypes.addressof(self._head) if has_logits else None,
            hidden.data_ptr(),
            step.positions.data_ptr(),
            step.sampling.data_ptr(),
            pointer(out),
            self._parallel,
            torch.get_num_threads(),
            layers.stop - layers.start,
            *hidden.shape,
            len(step.sampling),
            self._pool_type,
            is_rounded,
        )
        if self._run(ctypes.byref(call)):
            raise MemoryError("a step needs more memory than there is")

    def _layer(self, layer: DecoderLayer, pool: FusedLayerPool | FusedStatePool | None) -> _Layer:
        made = _Layer(rope=-1 if layer.rope is None else layer.rope, residual=layer.residual)
        made.mixer.kind = _NONE
        if layer.mixing is not None:
            assert pool is not None
            self._add_mixing(made, layer.mixing, pool)
        if layer.mlp is not None:
            self._add_mlp(made, layer.mlp)
        if layer.experts is not None:
            self._add_experts(made, layer.experts, layer.mlp)
        return made

    def _add_mixing(self, made: _Layer, mixing: TokenMixing, pool: FusedLayerPool | FusedStatePool) -> None:
        dtype = _dtype_of(pool)
        if dtype not in TYPES or TYPES[dtype] != self._pool_type:
            raise ValueError(f"pools of {dtype}")
        assert len(mixing.inputs) <= _MOST_INPUTS
        made.before_attention, made.after_attention = _norm(mixing.before), _norm(mixing.after)
        made.num_inputs = len(mixing.inputs)
        made.inputs[: len(mixing.inputs)] = list(map(self._product, mixing.inputs))
        made.output = self._product(mixing.output)
        made.places = pointer(mixing.places)
        if isinstance(mixing.mixer, Heads):
            assert isinstance(pool, FusedLayerPool)
            _add_heads(made, mixing.mixer, pool)
        else:
            assert isinstance(pool, FusedStatePool)
            made.mixer = _mixer(mixing.mixer, pool)

    def _add_mlp(self, made: _Layer, mlp: Mlp) -> None:
        made.before_mlp, made.after_mlp = _norm(mlp.before), _norm(mlp.after)
        made.activation = _ACTIVATIONS[mlp.activation]
        made.gate, made.down = self._product(mlp.gate), self._product(mlp.down)
        if mlp.up is not None:
            made.up = self._product(mlp.up)
            if (made.gate.layout, made.gate.block) != (made.up.layout, made.up.block):
                raise ValueError("gates and ups are of different kinds")

    def _add_experts(self, made: _Layer, experts: Experts, mlp: Mlp | None) -> None:
        if mlp is not None and (mlp.after is not None or mlp.activation is not experts.activation):
            raise ValueError("experts beside an MLP of another activation, or whose result is normed")
        made.before_mlp = _norm(experts.before)
        made.activation = _ACTIVATIONS[experts.activation]
        gate_up, down = experts.gate_up, experts.down
        if not (gate_up.is_contiguous() and down.is_contiguous()):
            raise ValueError("experts with gaps")
        made.experts = _Experts(
            router=self._product(experts.router),
            shared_gate=_Product() if experts.shared_gate is None else self._product(experts.shared_gate),
            gate_up=self._product(Linear(weight=gate_up[0], bias=None)),
            down=self._product(Linear(weight=down[0], bias=None)),
            num_experts=len(gate_up),
            num_chosen=experts.num_chosen,
            is_normalized=experts.is_normalized,
        )

    def _product(self, linear: Linear) -> _Product:
        bias, weight = linear.bias, linear.weight
        found = _Product(bias=pointer(bias))
        found.num_outputs, found.num_inputs = weight.shape
        found.bias_type = 0 if bias is None else TYPES[bias.dtype]
        if isinstance(weight, QuantizedWeight):
            found.layout, found.bits, found.group = _QUANTIZED, weight.coding.bits, weight.coding.group
            found.weight, found.scales = weight.codes.data_ptr(), weight.scales.data_ptr()
            found.minima = pointer(weight.minima)
            return found
        found.type = TYPES[weight.dtype]
        if isinstance(weight, InterleavedWeight):
            found.weight, found.layout = weight.numbers.data_ptr(), _COLUMNS
            found.block, found.padded = BLOCK, 2 * weight.numbers.shape[1]
        elif weight.is_mkldnn:
            layout = packed_layout(weight)
            if layout is None:
                raise ValueError("packed weights in an unknown order")
            found.weight, found.layout = layout.address, _COLUMNS
            found.block, found.padded = layout.block, layout.padded
        elif weight.is_contiguous():
            found.weight, found.layout = weight.data_ptr(), _ROWS
        else:
            raise ValueError("weights with gaps")
        return found


def step_bytes(
    layers: Sequence[DecoderLayer], num_rows: int, dtype: torch.dtype, level: Library | None = None
) -> int:
    """Return what a step of so many rows allocates, but for some space of each thread: `make_buffers`.

    Args:
        dtype: of the pool.
        level: another level of the library than this processor's best.
    """
    mixings = [layer.mixing for layer in layers if layer.mixing is not None]
    linears = [linear for layer in layers for linear in layer.linears]
    width = layers[0].linears[0].num_inputs
    attended = max((mixing.output.num_inputs for mixing in mixings), default=0)
    inner = max((layer.mlp.gate.num_outputs for layer in layers if layer.mlp is not None), default=0)
    heads = max((sum(linear.num_outputs for linear in mixing.inputs) for mixing in mixings), default=0)
    mixers = [mixing.mixer for mixing in mixings if isinstance(mixing.mixer, GatedDelta | SelectiveScan)]
    convolved = max((len(mixer.conv.taps) for mixer in mixers), default=0)
    convolved += 2 * max((mixer.num_heads for mixer in mixers), default=0)
    experts = [layer.experts for layer in layers if layer.experts is not None]
    num_experts = max((1 + len(one.down) for one in experts), default=0)
    num_chosen = max((one.num_chosen for one in experts), default=0)
    expert_inner = max((one.down.shape[2] for one in experts), default=0)
    routed = num_experts + num_chosen * (2 * width + expert_inner + _NUMBERS_OF_PAIR)
    inputs = width + attended + inner
    num_bytes = 4 * (inputs + heads + convolved + width + routed)
    if any(isinstance(linear.weight, QuantizedWeight) for linear in linears):
        num_bytes += int((_FINE_BYTES if dtype == torch.float32 else _COARSE_BYTES) * inputs)
    elif (found := level or library()) and all(_suits_rounded(linear, dtype, found) for linear in linears):
        num_bytes += torch.bfloat16.itemsize * inputs
    return num_rows * num_bytes


def _suits_prompts(linear: Linear, dtype: torch.dtype, level: Library) -> bool:
    weight = linear.weight
    if isinstance(weight, QuantizedWeight):
        return native.prefers_codes(dtype, weight, level)
    is_small = isinstance(weight, Tensor) and len(weight) < BLOCK and is_emulated(weight.dtype)
    return is_small or isinstance(weight, InterleavedWeight)


def rounds_products(level: Library) -> bool:
    """Whether kernels multiply numbers rounded to bfloat16: the processor does, and the compiler knew how."""
    return is_multiplied_natively(level.level) and level.function("rounds_products")() == 1


def _suits_rounded(linear: Linear, dtype: torch.dtype, level: Library) -> bool:
    weight = linear.weight
    if dtype != torch.bfloat16 or not rounds_products(level):
        return False
    if isinstance(weight, QuantizedWeight):
        return weight.shape[0] % TILE == 0
    return isinstance(weight, InterleavedWeight) or (weight.is_mkldnn and weight.dtype == torch.bfloat16)


def _dtype_of(pool: FusedLayerPool | FusedStatePool) -> torch.dtype:
    return pool.inputs.dtype if isinstance(pool, FusedStatePool) else pool.keys.dtype


def _add_heads(made: _Layer, heads: Heads, pool: FusedLayerPool) -> None:
    """Add how a layer attends, and where."""
    sinks = heads.sinks
    if sinks is not None and not (sinks.dtype == torch.float32 and sinks.is_contiguous()):
        # A copy would outlive exchanged weights.
        raise ValueError(f"sinks of {sinks.dtype}, or with gaps")
    made.query_norm, made.key_norm = _norm(heads.query_norm), _norm(heads.key_norm)
    made.mixer.kind, made.is_gated = _ATTENTION, heads.is_gated
    made.sinks = pointer(sinks)
    made.k_pool, made.v_pool = pool.keys.data_ptr(), pool.values.data_ptr()
    made.k_n, made.k_h, made.k_p = pool.keys.stride()[:3]
    made.v_n, made.v_h, made.v_p = pool.values.stride()[:3]
    made.num_heads, made.num_kv_heads = heads.num_heads, heads.num_kv_heads
    made.dim_k = made.dim_v = heads.dim
    made.block_size, made.group = pool.keys.shape[2], pool.group
    made.window, made.chunk = heads.window or 0, heads.chunk or 0
    made.scale, made.softcap = heads.scale, heads.softcap or 0.0
    made.old, old = -1, pool.quantized
    if old is not None:
        made.old, made.old_keys = pool.old, side_of(old.keys, old.key_record)
        made.old_values = side_of(old.values, old.value_record)


def _mixer(mixer: ShortConvolution | GatedDelta | SelectiveScan, pool: FusedStatePool) -> _Mixer:
    """Return what a layer with a state has beside its products, and where the state lies."""
    conv = mixer if isinstance(mixer, ShortConvolution) else mixer.conv
    num_channels, num_taps = conv.taps.shape
    if not num_taps - 1 <= pool.inputs.shape[-1] <= MOST_TAPS or num_taps > MOST_TAPS:
        raise ValueError(f"convolutions of {num_taps} taps that keep {pool.inputs.shape[-1]} inputs")
    if not all(one.is_contiguous() for one in tensors_of(mixer)):
        raise ValueError("weights with gaps")
    made = _Mixer(
        kind=_CONVOLUTION,
        group=pool.group,
        taps=conv.taps.data_ptr(),
        taps_type=TYPES[conv.taps.dtype],
        inputs=pool.inputs.data_ptr(),
        input_stride=pool.inputs.stride(0),
        num_channels=num_channels,
        num_taps=num_taps,
        num_kept=pool.inputs.shape[-1],
    )
    if conv.bias is not None:
        made.conv_bias, made.conv_bias_type = conv.bias.data_ptr(), TYPES[conv.bias.dtype]
    if not isinstance(mixer, ShortConvolution):
        _add_state(made, mixer, pool.states)
    return made


def _add_state(made: _Mixer, mixer: GatedDelta | SelectiveScan, states: Tensor | None) -> None:
    """Add what a layer has whose state is more than the last inputs."""
    assert states is not None
    is_scan = isinstance(mixer, SelectiveScan)
    if mixer.key_dim > (MOST_SIZE if is_scan else MOST_DIM) or states.dtype != torch.float32:
        raise ValueError(f"states of {states.dtype} with keys of {mixer.key_dim}")
    made.kind, made.norm = _SCAN if is_scan else _DELTA, _norm(mixer.norm)
    made.decay, made.decay_type = mixer.decay.data_ptr(), TYPES[mixer.decay.dtype]
    made.step_bias, made.step_bias_type = mixer.step_bias.data_ptr(), TYPES[mixer.step_bias.dtype]
    made.states, made.state_stride = states.data_ptr(), states.stride(0)
    made.num_heads, made.key_dim, made.value_dim = mixer.num_heads, mixer.key_dim, mixer.value_dim
    if isinstance(mixer, SelectiveScan):
        made.num_key_heads = mixer.num_groups
        made.skip, made.skip_type = mixer.skip.data_ptr(), TYPES[mixer.skip.dtype]
        made.least_step = mixer.least_step
    else:
        made.num_key_heads = mixer.num_key_heads


def _norm(norm: Norm | None) -> _Norm:
    if norm is None:
        return _Norm()
    return _Norm(norm.weight.data_ptr(), TYPES[norm.weight.dtype], norm.adds_one, norm.epsilon)


def _rope(table: RopeTable) -> _Rope:
    return _Rope(table.cosines.data_ptr(), table.sines.data_ptr(), table.cosines.shape[1])
