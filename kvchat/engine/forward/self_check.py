"""A model on kvchat's cache against the same model without any: a few tokens, at every load.

Two short texts are computed as an engine computes them: in chunks, packed, at different positions, with a
prefix read back from blocks. What a model mixes up there (state between rows, positions, masks, biases) shows
in its logits. Only the first layers take part, as many as it needs for one of each sort, so that the check
stays small beside loading.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from kvchat.engine.api.ids import RequestId, SequenceId
from kvchat.engine.formats.format_table import metadata_builders
from kvchat.engine.formats.spec import Group
from kvchat.engine.forward.runner import ForwardPass, input_batch
from kvchat.engine.memory.device_pool import DevicePool
from kvchat.engine.models.hook import (
    IMPLEMENTATION,
    accepted_arguments,
    implementation_of,
    set_implementation,
)
from kvchat.engine.models.load import LoadedModel
from kvchat.engine.models.probing.attention_probe import model_name
from kvchat.engine.models.probing.first_layers import first_layers, num_telling_layers
from kvchat.engine.sequences.batch_plan import Chunk
from kvchat.errors import UnsupportedModel

BLOCK_SIZE = 4
LENGTHS = (12, 7)
"""Tokens of the two texts."""
CUTS = ((0, 7, 12), (0, 4, 7))
"""Where each text is cut into chunks; those of one number are computed together."""
LOGITS_TOLERANCE = {torch.float32: 1e-3}
COARSE_LOGITS_TOLERANCE = 0.1
"""At 16 bits, for the median row: rounding, and experts that swap places in a near-tie, move single ones."""


def require_own_logits(
    loaded: LoadedModel, groups: tuple[Group, ...], make_pass: Callable[[DevicePool], ForwardPass]
) -> None:
    """Compare the logits of a route with those that the model computes by itself.

    Raises:
        UnsupportedModel: they differ by more than rounding explains.
    """
    texts = _texts(loaded.vocab_size)
    module: Any = loaded.module
    before = implementation_of(module.config.get_text_config())
    try:
        with first_layers(module, num_telling_layers(module, groups)):
            wanted = _own_logits(module, texts)
            if before == IMPLEMENTATION:
                set_implementation(module, IMPLEMENTATION)
            found = _logits(module, groups, make_pass, texts)
    except UnsupportedModel:
        raise
    except Exception as error:  # whatever a model says to a way of running that it was not written for
        raise UnsupportedModel(
            f"{model_name(module.config)} fails its check at load: {error!r}"[:300]
        ) from error
    distances = _distances(found, wanted)
    is_coarse = module.dtype != torch.float32
    distance = float(distances.median() if is_coarse else distances.max()) if distances.numel() else 0.0
    if distance > logits_tolerance(module.dtype):
        raise UnsupportedModel(
            f"{model_name(module.config)} computes other logits on kvchat's cache than by itself "
            f"(they differ by {distance:.2g} of their size)"
        )


def logits_tolerance(dtype: torch.dtype) -> float:
    """Return by how much of their size logits may differ between two ways to compute them in a dtype."""
    return LOGITS_TOLERANCE.get(dtype, COARSE_LOGITS_TOLERANCE)


def _texts(vocab_size: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(1, vocab_size, (length,), generator=generator) for length in LENGTHS]


@torch.inference_mode()
def _own_logits(module: Any, texts: Sequence[Tensor]) -> Tensor:
    """Return the logits at the ends of all chunks from passes without a cache, [chunks, V].

    Models that take positions get them, as `generate` gives them.
    """
    set_implementation(module, "eager")
    accepted = accepted_arguments(module)
    rows = []
    for text, cuts in zip(texts, CUTS, strict=True):
        offered = {
            "input_ids": text[None].to(module.device),
            "position_ids": torch.arange(len(text), device=module.device)[None],
            "use_cache": False,
        }
        logits = module(**{name: value for name, value in offered.items() if name in accepted}).logits[0]
        rows.append(logits[[end - 1 for end in cuts[1:]]].float())
    return torch.cat(rows)


@torch.inference_mode()
def _logits(
    module: Any,
    groups: tuple[Group, ...],
    make_pass: Callable[[DevicePool], ForwardPass],
    texts: Sequence[Tensor],
) -> Tensor:
    """Return the same logits from two batches of chunks through blocks."""
    num_blocks = -(-max(LENGTHS) // BLOCK_SIZE)
    sizes = {group.id: num_blocks * len(texts) for group in groups}
    pool = DevicePool(groups, sizes, BLOCK_SIZE, module.device)
    forward, builders = make_pass(pool), metadata_builders(groups, BLOCK_SIZE)
    tables = {
        (SequenceId(number), group.id): torch.arange(num_blocks, device=module.device) + number * num_blocks
        for number in range(len(texts))
        for group in groups
    }
    rounds = []
    for part in range(len(CUTS[0]) - 1):
        chunks = [_chunk(number, text, part) for number, text in enumerate(texts)]
        rounds.append(forward.logits(input_batch(chunks, tables, builders, module.device)).float())
    return torch.stack(rounds, dim=1).flatten(0, 1)


def _chunk(number: int, text: Tensor, part: int) -> Chunk:
    start, end = CUTS[number][part : part + 2]
    return Chunk(
        request=RequestId(number),
        sequence=SequenceId(number),
        start=start,
        token_ids=tuple(text[start:end].tolist()),
        samples=True,
    )


def _distances(found: Tensor, wanted: Tensor) -> Tensor:
    """Return how far each row is off, relative to its size; rows that the model itself fails do not count."""
    finite = wanted.isfinite().all(dim=1)
    found, wanted = found[finite], wanted[finite]
    return ((found - wanted).norm(dim=1) / wanted.norm(dim=1).clamp_min(1e-6)).nan_to_num(nan=float("inf"))
