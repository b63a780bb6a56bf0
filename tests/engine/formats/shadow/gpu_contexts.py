"""Contexts whose blocks lie in host memory, and shadows of them as a GPU has them."""

import torch
from torch import Tensor

from kvchat.engine.formats.shadow.gpu_resources import GpuResources, RotationTables
from kvchat.engine.formats.shadow.layer import BlockChunks, ShadowLayer
from kvchat.engine.formats.shadow.layer_store import Budgets
from kvchat.engine.formats.shadow.settings import ShadowSettings
from kvchat.engine.kernels.paged_attention.args import KVPair
from kvchat.engine.kernels.stream_protocol import InlineStreams, Streams
from tests.engine.formats.shadow.contexts import ROTARY, Context, free

BLOCK_SIZE = 16


def in_blocks(context: Context, seed: int = 0) -> BlockChunks:
    """Return keys and values of a context in blocks of any order, among others that hold no numbers."""
    num_blocks = -(-len(context.keys) // BLOCK_SIZE)
    order = torch.randperm(num_blocks + 5, generator=torch.Generator().manual_seed(seed))[:num_blocks]
    return BlockChunks(KVPair(_pool(context.keys, order), _pool(context.values, order)), order)


def _pool(side: Tensor, order: Tensor) -> Tensor:
    """Return rows [n, H_kv, D] in blocks [N, H_kv, P, D]."""
    whole = side.new_full((len(order) * BLOCK_SIZE, *side.shape[1:]), float("nan"))
    whole[: len(side)] = side
    pool = side.new_full((len(order) + 5, side.shape[1], BLOCK_SIZE, side.shape[2]), float("nan"))
    pool[order] = whole.unflatten(0, (-1, BLOCK_SIZE)).transpose(1, 2)
    return pool


def remote_shadow_of(
    context: Context,
    num_tokens: int,
    settings: ShadowSettings,
    budgets: Budgets | None = None,
    streams: Streams | None = None,
) -> ShadowLayer:
    """Return the shadow of a context's first tokens. `settings`: they say that blocks are remote."""
    budgets = budgets or free()
    remote = GpuResources(streams=streams or InlineStreams(), turns=RotationTables(budgets.device))
    _, keys, values = context.part(0, num_tokens)
    return ShadowLayer.of_prompt(settings, ROTARY, keys, values, budgets, remote)


def seen_chunks(layer: ShadowLayer) -> list[list[int]]:
    """Return the chunks that each head has chosen last."""
    return [sorted(chunks) for chunks in layer.stock.working.slots.tolist()]
