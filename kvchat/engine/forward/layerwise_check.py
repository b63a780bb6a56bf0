"""Layer check: matches decoder layers by structure, then holds a walk through them to the model.

As layers are fused (see `fused_check`), on any device and in the model's own dtype.
"""

from dataclasses import replace

import torch

from kvchat.engine.formats.format_table import is_fused
from kvchat.engine.formats.spec import Group, Selection
from kvchat.engine.forward.fused_check import (
    UNFUSED,
    FusionSample,
    float_layers,
    require_everywhere,
    require_logits,
    require_near,
    take_sample,
    told,
)
from kvchat.engine.forward.fused_pass import Fusion
from kvchat.engine.forward.layer_samples import scratch
from kvchat.engine.forward.layerwise_pass import LayerwisePass
from kvchat.engine.forward.model_route import ModelPlan, Route
from kvchat.engine.forward.runner import ForwardPass
from kvchat.engine.memory.device_pool import DevicePool
from kvchat.engine.models.load import LoadedModel
from kvchat.engine.models.probing.decoder_structure import Unmatched


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
def walk_through(loaded: LoadedModel, served: ModelPlan) -> Fusion:
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
    require_everywhere(loaded, sample, _require_all)
    return fusion


def _is_plain(group: Group) -> bool:
    spec = group.spec
    is_plain = spec.keeps_heads and spec.selection is Selection.ALL and not group.borrowers
    return is_plain and is_fused(spec)


def _require_all(sample: FusionSample) -> bool:
    """Compare every layer and the logits with the model's own, and one layer of each kind in float32, where
    rounding hides nothing.
    """
    fusion, row, seen = sample.fusion, sample.row, sample.seen
    made = LayerwisePass(fusion, scratch(sample.groups, row.positions.device))
    for number, (given, wanted) in enumerate(zip(seen.inputs, seen.outputs, strict=True)):
        require_near(made.hidden(given, row, number).float(), given, wanted, f"layer {number}")
    require_logits(made.logits(row), sample.logits, made.dtype)
    if made.dtype == torch.float32:
        return True
    pool = sample.float_scratch()
    for number, layer, given, wanted in float_layers(sample, pool):
        layers = [*fusion.layers[:number], layer, *fusion.layers[number + 1 :]]
        made = LayerwisePass(replace(fusion, layers=layers), pool)
        require_near(made.hidden(given, row, number), given, wanted, f"layer {number} in float32")
    return True
