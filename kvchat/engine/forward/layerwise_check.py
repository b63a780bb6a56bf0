"""Layer check: matches decoder layers by structure, then holds a walk through them to the model.

As layers are fused (see `fusion`), on any device and in the model's own dtype.
"""

from dataclasses import replace

import torch

from kvchat.engine.formats.format_table import is_fused
from kvchat.engine.formats.spec import Group, Selection
from kvchat.engine.forward.fused_check import (
    UNFUSED,
    FusionSample,
    float_layers,
    require_logits,
    require_near,
    take_sample,
    told,
)
from kvchat.engine.forward.layer_samples import NUM_POSITIONS, scratch, watch
from kvchat.engine.forward.layerwise_pass import LayerWalk, LayerwisePass
from kvchat.engine.forward.model_route import ModelPlan, Route
from kvchat.engine.forward.runner import ForwardPass
from kvchat.engine.memory.device_pool import DevicePool
from kvchat.engine.models.load import LoadedModel
from kvchat.engine.models.probing.decoder_structure import Unmatched, match_layer


def walking_pass(loaded: LoadedModel, served: ModelPlan, pool: DevicePool) -> tuple[ForwardPass, str | None]:
    """Return a pass over `pool`: one that walks through the layers, or the model's own and why.

    Effect:
        Runs a few tokens through the model.
    """
    try:
        return LayerwisePass(walk_through(loaded, served), pool), None
    except torch.AcceleratorError:
        raise
    except UNFUSED as error:
        return served.make_pass(pool), told(error)


@torch.inference_mode()
def walk_through(loaded: LoadedModel, served: ModelPlan) -> LayerWalk:
    """Return the layers of a model.

    Raises: Unmatched: they cannot be walked through; the message says why.

    Effect:
        Runs a few tokens through the model; whoever serves it makes a forward pass again.
    """
    groups = served.groups
    if served.route is not Route.ATTENTION or not all(map(_is_plain, groups)):
        kinds = sorted({group.spec.kind for group in groups})
        raise Unmatched(f"it runs by its {served.route}, on a cache of {', '.join(kinds)}")
    sample = take_sample(loaded, groups)
    fusion = sample.fusion
    if any(layer.experts is not None for layer in fusion.layers):
        raise Unmatched("its layers have experts")
    if any(layer.mlp is None or layer.mixing is None for layer in fusion.layers):
        raise Unmatched("its layers have no attention or no MLP")
    if any(layer.heads.is_gated for layer in fusion.layers):
        raise Unmatched("its attention is gated")
    walk = LayerWalk(
        decoder=fusion.decoder,
        embed=fusion.embed,
        layers=fusion.layers,
        rotaries=fusion.rotaries,
        dtype=sample.seen.inputs[0].dtype,
    )
    _require_same(walk, sample)
    offset = loaded.max_context - NUM_POSITIONS
    if offset > 0:
        moved = replace(sample.row, positions=sample.row.positions + offset)
        pool = scratch(groups, moved.positions.device)
        seen, logits = watch(loaded.module, fusion.decoder, pool, moved)
        _require_same(walk, replace(sample, row=moved, seen=seen, logits=logits))
    if walk.dtype != torch.float32:
        _require_structure(walk, sample)
    return walk


def _is_plain(group: Group) -> bool:
    spec = group.spec
    is_plain = spec.keeps_heads and spec.selection is Selection.ALL and not group.borrowers
    return is_plain and is_fused(spec)


def _require_same(walk: LayerWalk, sample: FusionSample) -> None:
    """Compare every layer and the logits with the model's own."""
    row = sample.row
    made = LayerwisePass(walk, scratch(sample.groups, row.positions.device))
    for number, (given, wanted) in enumerate(zip(sample.seen.inputs, sample.seen.outputs, strict=True)):
        require_near(made.hidden(given, row, number).float(), given, wanted, f"layer {number}")
    require_logits(made.logits(row), sample.logits, walk.dtype)


def _require_structure(walk: LayerWalk, sample: FusionSample) -> None:
    """Compare one layer of each kind in float32, where rounding hides nothing."""
    pool = sample.float_scratch()
    for number, layer, given, wanted in float_layers(sample, pool):
        spec, rope = pool.layers[number].spec, walk.layers[number].rope
        layers = list(walk.layers)
        layers[number] = match_layer(layer, sample.seen.calls[number], spec, rope)
        made = LayerwisePass(replace(walk, layers=layers), pool)
        require_near(made.hidden(given, sample.row, number), given, wanted, f"layer {number} in float32")
