"""Layer fusion: matches a model's decoder layers by structure, then checks them against the model itself.

A few tokens of three texts run through the model, two of them behind some keys that are zero. What every
layer gets and gives is noted and computed again by the fused layers, and so are the logits. Then the first
layers, one of each sort among them, run once more with the last positions of the model's context, since a
model may compute something else from a position on. Any difference that rounding does not explain leaves the
model as it is. More rows, as prompts have, are computed to the same bits as these few, which tests hold.
Where prompts would be rounded, these few are held to the model rounded, too; if that is too coarse for it,
none is.

What is tried is the model's structure, on exact keys and values: layers whose older blocks are quantized are
tried as if they kept all exact, and read both kinds in the pool that they are put on.
"""

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from kvchat.engine.formats.format_table import PagedAttention, is_fused
from kvchat.engine.formats.spec import CacheSpec, Group
from kvchat.engine.forward.fused_pass import FusedLayers, Fusion
from kvchat.engine.forward.layer_samples import (
    NUM_POSITIONS,
    SampledLayer,
    sample_row,
    scratch,
    states_in,
    states_of,
    watch,
)
from kvchat.engine.forward.model_route import ModelPlan, Route
from kvchat.engine.forward.runner import ForwardPass, InputBatch
from kvchat.engine.forward.self_check import logits_tolerance
from kvchat.engine.forward.self_check_cache import SelfCheckCache, name_of
from kvchat.engine.kernels.decoder_layers.args import DecoderLayer
from kvchat.engine.kernels.native.library import library, why_not
from kvchat.engine.memory.device_pool import DevicePool
from kvchat.engine.models.load import LoadedModel
from kvchat.engine.models.probing.decoder_structure import (
    Decoder,
    Rotary,
    Unmatched,
    match_decoder,
    match_layer,
    mixer_of,
    rotary_options,
    unturned_key,
)
from kvchat.engine.models.probing.first_layers import (
    first_layers,
    float_copy,
    num_telling_layers,
    without_products,
)
from kvchat.engine.models.state_layers import StatePast

log = logging.getLogger(__name__)

LAYER_TOLERANCE = {torch.float32: (1e-4, 1e-6)}
COARSE_LAYER_TOLERANCE = (0.05, 0.01)
"""Most error of a layer: of what it adds, and of the sum."""
STATE_TOLERANCE = {torch.float32: 1e-4}
COARSE_STATE_TOLERANCE = 0.02
"""Most error of what lies in a layer's slots, of its size."""
UNFUSED = (Unmatched, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
UNTURNED = 0.01
"""Keys no farther from their projection were not turned."""
UNDECIDED = 0.05
"""Experts whose logits lie closer may change places in 16 bits: of the spread of all of a row."""


def fusion_of(loaded: LoadedModel, served: ModelPlan, checks: SelfCheckCache | None = None) -> Fusion | str:
    """Return a model's fused layers, or why it has none.

    Args:
        checks: what is known of the model; None: nothing.

    Effect:
        Runs a few tokens through the model; whoever serves it makes a forward pass again.
    """
    try:
        if served.route is not Route.ATTENTION:
            raise Unmatched(f"it runs by its {served.route}")
        return fuse(loaded, served.groups, checks)
    except UNFUSED as error:
        return told(error)


def fused_pass(served: ModelPlan, pool: DevicePool, fusion: Fusion | str) -> tuple[ForwardPass, str | None]:
    """Return a pass over `pool`: by fused layers, or by the model's own and why."""
    if not isinstance(fusion, str):
        try:
            return fusion.stand_before(served.make_pass(pool), pool), None
        except UNFUSED as error:
            fusion = told(error)
    return served.make_pass(pool), fusion


def told(error: Exception) -> str:
    """Return why layers are computed by the model; of errors that are not ours, whatever a model of another
    structure says.
    """
    is_known = isinstance(error, Unmatched)
    reason = str(error) if is_known else f"it does not run as expected: {error!r}"[:300]
    log.info("decoder layers are not fused: %s", reason)
    return reason


@torch.inference_mode()
def fuse(loaded: LoadedModel, groups: Sequence[Group], checks: SelfCheckCache | None = None) -> Fusion:
    """Return the fused layers of a model that runs by its attention.

    Args:
        checks: what is known of the model: that it passed, which layers are not turned, and whether prompts
            may be rounded.

    Raises: Unmatched: its layers cannot be fused; the message says why.

    Effect:
        Runs a few tokens through the model; whoever serves it makes a forward pass again.
    """
    module: Any = loaded.module
    if library() is None:
        raise Unmatched(why_not() or "there are no native kernels")
    is_read = module.device.type == "cpu" and all(is_fused(group.spec) for group in groups)
    groups = tuple(replace(group, spec=group.spec.exact) for group in groups if group.source is None)
    if not is_read or not all(_is_plain(group) for group in groups):
        raise Unmatched("its cache is not read by native kernels")
    checks, name = checks or SelfCheckCache(), name_of("fused layers", groups, loaded.max_context)
    if (known := checks.find(name)) is not None:
        unturned, may_round = known
        return replace(_recalled(loaded, groups, unturned), may_round=may_round)
    sample = take_sample(loaded, groups)
    may_round = require_everywhere(loaded, sample, _require_all)
    unturned = [number for number, layer in enumerate(sample.fusion.layers) if layer.rope is None]
    checks.keep(name, [unturned, may_round])
    return replace(sample.fusion, may_round=may_round)


def require_everywhere(
    loaded: LoadedModel, sample: "FusionSample", require: Callable[["FusionSample"], bool]
) -> bool:
    """Hold layers to the model's own by `require`, and return whether it says so everywhere.

    At the end of the context that is the first layers, as many as it takes for one of each sort: what begins
    at some position is a layer's setting, whatever its weights are.

    Raises: Unmatched: `require` does; the message says whether at the end.
    """
    is_so = require(sample)
    offset = loaded.max_context - NUM_POSITIONS
    if offset <= 0:
        return is_so
    fusion, row, groups = sample.fusion, sample.row, sample.groups
    number = num_telling_layers(loaded.module, groups) or len(fusion.layers)
    first = fusion.first(max(number, 1 + max(fusion.first_of_each_kind())), offset)
    moved = replace(row, positions=row.positions + offset)
    pool = scratch(groups, row.positions.device)
    with first_layers(loaded.module, len(first.layers)):
        seen, logits = watch(loaded.module, first.decoder, pool, moved)
    try:
        return require(FusionSample(groups, first, row, seen, logits)) and is_so
    except Unmatched as error:
        raise Unmatched(f"{error} at the end of its context") from error


def _recalled(loaded: LoadedModel, groups: Sequence[Group], unturned: Collection[int]) -> Fusion:
    """Return the fused layers of a model that is known to compute the same by them."""
    module: Any = loaded.module
    decoder, row, pool = match_decoder(module), sample_row(groups, module), scratch(groups)
    with without_products(module):
        seen, _ = watch(module, decoder, pool, row)
    return _matched(decoder, pool, seen, row, loaded.max_context, unturned)


@dataclass(frozen=True, slots=True)
class FusionSample:
    """A model's layers as they were matched, and what it computed of a few tokens, on any device."""

    groups: Sequence[Group]
    fusion: Fusion
    row: InputBatch
    seen: SampledLayer
    logits: Tensor

    def float_scratch(self) -> DevicePool:
        """Return a pool for the same tokens in float32."""
        groups = [replace(group, spec=group.spec.in_float32) for group in self.groups]
        return scratch(groups, self.row.positions.device)


def take_sample(loaded: LoadedModel, groups: Sequence[Group]) -> FusionSample:
    """Match the layers of a model that runs by its attention.

    Raises: Unmatched: they are of another structure; the message says why.
    """
    module: Any = loaded.module
    decoder = match_decoder(module)
    num_mixers = sum(mixer_of(layer) is not None for layer in decoder.layers)
    if sum(len(group.layers) for group in groups) != num_mixers:
        raise Unmatched("its layers read what others keep")
    pool = scratch(groups, module.device)
    row = sample_row(groups, module)
    seen, logits = watch(module, decoder, pool, row)
    return FusionSample(groups, _matched(decoder, pool, seen, row, loaded.max_context), row, seen, logits)


def _require_all(sample: FusionSample) -> bool:
    """Hold fused layers to the model's own; return whether prompts may be rounded, too."""
    pool = scratch(sample.groups)
    try:
        fused = sample.fusion.on(pool)
    except ValueError as error:
        raise Unmatched(f"there is no kernel for {error}") from error
    _require_same(fused, pool, sample)
    if sample.seen.outputs[0].dtype != torch.float32 or sample.fusion.is_quantized:
        _require_structure(sample)
    try:
        if fused.suits_rounded:
            _require_same(fused, pool, sample, is_rounded=True)
    except Unmatched as error:
        log.info("prompts are not rounded: %s", error)
        return False
    return True


def _is_plain(group: Group) -> bool:
    return (group.spec.keeps_heads or group.is_state) and not group.borrowers


def _spec_of(pool: DevicePool, layer: int) -> CacheSpec | None:
    kept = pool.states.get(layer) or pool.layers.get(layer)
    return None if kept is None else kept.spec


def _matched(
    decoder: Decoder,
    pool: DevicePool,
    seen: SampledLayer,
    row: InputBatch,
    max_context: int,
    unturned: Collection[int] | None = None,
) -> Fusion:
    """Return a model's layers as they are matched.

    Args:
        unturned: layers that ignore the rotary embedding that they are given; None: those whose keys are as
            projected. What they add tells too little: beside a large sum it is within the tolerance of 16
            bits either way.
    """
    ropes: list[tuple[Tensor, Tensor]] = []
    layers: list[DecoderLayer] = []
    for number, layer in enumerate(decoder.layers):
        embeddings, rope = seen.arguments[number].get("position_embeddings"), None
        if embeddings is not None:
            rope = next((i for i, known in enumerate(ropes) if _is_same(known, embeddings)), len(ropes))
            ropes += [embeddings] if rope == len(ropes) else []
        elif decoder.rotary is not None:
            raise Unmatched("its layers are given no rotary embedding")
        matched = match_layer(layer, seen.calls.get(number), _spec_of(pool, number), rope)
        is_unturned = unturned is not None and number in unturned
        if unturned is None and matched.rope is not None:
            is_unturned = _is_projected(layer, seen.inputs[number], seen.keys[number])
        layers.append(replace(matched, rope=None) if is_unturned else matched)
    rotaries = [_rotary(decoder, known, row.positions[None]) for known in ropes]
    return Fusion(decoder, layers, rotaries, max_context, _factor(decoder, seen, row))


def _is_same(left: tuple[Tensor, Tensor], right: tuple[Tensor, Tensor]) -> bool:
    return all(map(torch.equal, left, right))


def _rotary(decoder: Decoder, known: tuple[Tensor, Tensor], positions: Tensor) -> Rotary:
    """Return the call of a model's rotary embedding that gave what a layer was given."""
    module = decoder.rotary
    assert module is not None
    x = torch.empty(1, dtype=known[0].dtype, device=positions.device)
    for options in rotary_options(module):
        call = partial(module, x, **options)
        if _is_same(call(positions), known):
            return call
    raise Unmatched("its rotary embedding is called in another way")


def _factor(decoder: Decoder, seen: SampledLayer, row: InputBatch) -> float:
    """Return by what the model multiplies what its embedding gives."""
    embedded, given = decoder.embed(row.token_ids).float(), seen.inputs[0].float()
    if torch.equal(embedded, given):
        return 1.0
    factor = float((embedded * given).sum() / embedded.square().sum())
    if not (embedded * factor - given).norm() <= 0.01 * given.norm():
        raise Unmatched("its first layer is given something else")
    return factor


def _is_projected(layer: Any, given: Tensor, key: Tensor) -> bool:
    wanted = unturned_key(layer, given, key)
    return float((key - wanted).float().norm()) <= UNTURNED * float(wanted.float().norm())


def _require_same(
    fused: FusedLayers, pool: DevicePool, sample: FusionSample, *, is_rounded: bool = False
) -> None:
    """Compare every layer, the state that it leaves and the logits with the model's own.

    In 16 bits two experts may come out equally good for a row. Such rows are left to the others of a layer,
    and logits are those behind the last layer alone.
    """
    seen, row = sample.seen, sample.row
    is_coarse = seen.inputs[0].dtype != torch.float32
    for number, (given, wanted) in enumerate(zip(seen.inputs, seen.outputs, strict=True)):
        found = fused.hidden(given.float(), row, number, is_rounded=is_rounded)
        undecided = _undecided(*seen.routed[number]) if is_coarse and number in seen.routed else None
        require_near(found, given, wanted, f"layer {number}", undecided)
        if number in seen.states:
            _require_state(states_of(pool, number), seen.states[number], wanted.dtype, number)
    if is_coarse and seen.routed:
        found = fused.logits_behind(seen.inputs[-1].float(), row)
    else:
        found = fused.logits(row, is_rounded=is_rounded)
    require_logits(found, sample.logits, seen.inputs[0].dtype)


def _undecided(logits: Tensor, num_chosen: int) -> Tensor:
    """Return for which rows the last expert that is chosen is hardly better than the next [T], bool."""
    if num_chosen == logits.shape[1]:
        return torch.zeros(len(logits), dtype=torch.bool)
    best = logits.topk(num_chosen + 1).values
    return best[:, -2] - best[:, -1] < UNDECIDED * logits.std(1)


def _require_state(found: Sequence[Tensor], wanted: Sequence[Tensor], dtype: torch.dtype, layer: int) -> None:
    """Hold what lies in all slots behind a layer, also where it has no business, to the model's."""
    for own, other in zip(found, wanted, strict=True):
        distance = float((own - other).norm() / other.norm())
        if not distance <= STATE_TOLERANCE.get(dtype, COARSE_STATE_TOLERANCE):
            raise Unmatched(f"layer {layer} leaves another state ({distance:.2g} of its size away)")


def _require_structure(sample: FusionSample) -> None:
    """Compare one layer of each kind in float32, where rounding hides nothing."""
    pool = sample.float_scratch()
    for number, layer, given, wanted in float_layers(sample, pool):
        fused = FusedLayers(sample.fusion, {number: layer}, pool)
        require_near(fused.hidden(given, sample.row, 0), given, wanted, f"layer {number} in float32")


def float_layers(
    sample: FusionSample, pool: DevicePool
) -> Iterator[tuple[int, DecoderLayer, Tensor, Tensor]]:
    """Yield one layer of each kind as a copy in float32: its number, how it is matched, what it gets and what
    it gives.
    """
    fusion, seen, row = sample.fusion, sample.seen, sample.row
    attention = PagedAttention(pool.layers)
    attention.step = row.groups
    for number in fusion.first_of_each_kind():
        layer = float_copy(fusion.decoder.layers[number], attention)
        given, arguments = seen.inputs[number].float(), dict(seen.arguments[number])
        past = states_in(pool, {number: layer} if number in pool.states else {})
        if past is not None:
            past.begin(row.positions, row.groups)
            arguments |= {name: past for name, one in arguments.items() if isinstance(one, StatePast)}
        arguments.pop("hidden_states", None)
        if (embeddings := arguments.get("position_embeddings")) is not None:
            arguments["position_embeddings"] = tuple(part.float() for part in embeddings)
        out = layer(given[None], **arguments)
        wanted = (out if isinstance(out, Tensor) else out[0])[0]
        rope = fusion.layers[number].rope
        yield number, match_layer(layer, seen.calls.get(number), _spec_of(pool, number), rope), given, wanted


def require_logits(found: Tensor, wanted: Tensor, dtype: torch.dtype) -> None:
    """Hold logits to the model's own, which computes in `dtype`."""
    wanted = wanted.float()
    distances = (found.float() - wanted).norm(dim=1) / wanted.norm(dim=1).clamp_min(1e-6)
    if not (distance := float(distances.median())) <= logits_tolerance(dtype):
        raise Unmatched(f"its logits are others ({distance:.2g} of their size away)")


def require_near(
    found: Tensor, given: Tensor, wanted: Tensor, name: str, undecided: Tensor | None = None
) -> None:
    """Hold what a layer makes of `given` to what the model makes of it.

    Args:
        undecided: rows [T] that may be others, as long as most of all are not; None: none may.
    """
    distances = _distances(found, given, wanted)
    if undecided is not None:
        distances = torch.cat([distances[~undecided], distances.median()[None]])
    if not (distance := float(distances.max())) <= 1:
        raise Unmatched(f"{name} computes something else ({distance:.2g} times the tolerance)")


def _distances(found: Tensor, given: Tensor, wanted: Tensor) -> Tensor:
    """Return how far each row is off, in tolerances; NaN where a number is none."""
    of_change, of_sum = LAYER_TOLERANCE.get(wanted.dtype, COARSE_LAYER_TOLERANCE)
    given, wanted = given.float(), wanted.float()
    bound = of_change * (wanted - given).norm(dim=1) + of_sum * wanted.norm(dim=1)
    return (found - wanted).norm(dim=1) / bound
