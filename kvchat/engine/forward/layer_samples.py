"""Layer sample: inputs and outputs of a model's layers for a few tokens of three texts, two of them behind
some keys that are zero, and behind states that are not.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from kvchat.engine.api.ids import GroupId, RequestId, SequenceId
from kvchat.engine.formats.attention_metadata import AttentionCall
from kvchat.engine.formats.format_table import PagedAttention
from kvchat.engine.formats.full.attend import FullMetadataBuilder
from kvchat.engine.formats.recurrent.parts import StateMetadataBuilder, layer_states
from kvchat.engine.formats.spec import Group
from kvchat.engine.forward.model_pass import PackedPass
from kvchat.engine.forward.runner import InputBatch, input_batch
from kvchat.engine.memory.device_pool import DevicePool
from kvchat.engine.models.probing.decoder_structure import Decoder, Unmatched, mixer_of, router_and_experts
from kvchat.engine.models.state_layers import StatePast, attach_states
from kvchat.engine.sequences.batch_plan import Chunk

BLOCK_SIZE = 4
TEXTS = ((0, 5), (37, 3), (20, 1))
"""Position of the first token, and number of tokens: a prompt, the end of one, and what is decoded."""
CPU = torch.device("cpu")
NUM_POSITIONS = 40
"""Up to behind the last of them."""


@dataclass(slots=True)
class SampledLayer:
    """What a model's layers got and gave in one pass."""

    inputs: list[Tensor] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)
    arguments: list[dict[str, Any]] = field(default_factory=list)
    calls: dict[int, AttentionCall] = field(default_factory=dict)
    keys: dict[int, Tensor] = field(default_factory=dict)
    states: dict[int, tuple[Tensor, ...]] = field(default_factory=dict)
    """All that lies in the slots of each layer afterwards."""
    routed: dict[int, tuple[Tensor, int]] = field(default_factory=dict)
    """Logits [T, E] of a layer's experts, and how many of them a token goes through."""


class _Watched(PagedAttention):
    """Notes what layers pass to their attention."""

    def __init__(self, pool: DevicePool, seen: SampledLayer) -> None:
        super().__init__(pool.layers)
        self._seen = seen

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        self._seen.calls[layer], self._seen.keys[layer] = call, key
        return super().attend(layer, query, key, value, call)


def scratch(groups: Sequence[Group], device: torch.device = CPU) -> DevicePool:
    """Return a pool for the tokens of a sample."""
    num_blocks = sum(_num_blocks(*text) for text in TEXTS)
    pool = DevicePool(groups, {group.id: num_blocks for group in groups}, BLOCK_SIZE, device)
    for layer in pool.layers.values():
        layer.keys.zero_()
        layer.values.zero_()
    for number, states in layer_states(pool.states).items():
        generator = torch.Generator().manual_seed(number)
        for tensor in states.tensors.values():
            tensor.copy_(torch.randn(tensor.shape, generator=generator))
    return pool


def _num_blocks(position: int, num_tokens: int) -> int:
    return -(-(position + num_tokens) // BLOCK_SIZE)


def sample_row(groups: Sequence[Group], module: Any) -> InputBatch:
    """Return the tokens of the texts, which go on from blocks, and from states, that `scratch` has."""
    vocab_size = module.config.get_text_config().vocab_size
    counts = [count for _, count in TEXTS]
    token_ids = torch.randint(1, vocab_size, (sum(counts),), generator=torch.Generator().manual_seed(2))
    chunks: list[Chunk] = []
    tables: dict[tuple[SequenceId, GroupId], Tensor] = {}
    first_block = 0
    for number, ((start, count), ids) in enumerate(zip(TEXTS, token_ids.split(counts), strict=True)):
        text = SequenceId(number)
        # All tokens but the first are drafted, for the logits behind each of them.
        chunks.append(
            Chunk(RequestId(number), text, start, tuple(ids.tolist()), samples=True, num_drafted=count - 1)
        )
        blocks = torch.arange(first_block, first_block + _num_blocks(start, count), device=module.device)
        states = torch.arange(2 * number + (start == 0), 2 * number + 2, device=module.device)
        tables |= {(text, group.id): states if group.is_state else blocks for group in groups}
        first_block += len(blocks)
    builders = [
        (StateMetadataBuilder if group.is_state else FullMetadataBuilder)(group, BLOCK_SIZE)
        for group in groups
    ]
    return input_batch(chunks, tables, builders, module.device)


def states_of(pool: DevicePool, layer: int) -> tuple[Tensor, ...]:
    """Return a copy of the states of a layer in all slots, in float32."""
    tensors = layer_states(pool.states)[layer].tensors
    return tuple(tensors[name].float().clone() for name in sorted(tensors))


def states_in(pool: DevicePool, layers: Mapping[int, nn.Module]) -> StatePast | None:
    """Let layers that keep a state, by number, find and leave it in `pool`; return what they ask for it, None
    where there are none.
    """
    if not layers:
        return None
    past = StatePast(layer_states(pool.states))
    keepers = [mixer_of(layer) for layer in layers.values()]
    attach_states(keepers, past, is_sequential=True)
    return past


def watch(
    module: nn.Module, decoder: Decoder, pool: DevicePool, row: InputBatch
) -> tuple[SampledLayer, Tensor]:
    """Return what the layers got and gave, and the logits."""
    seen = SampledLayer()
    keeping = {number: layer for number, layer in enumerate(decoder.layers) if number in pool.states}
    past = states_in(pool, keeping)
    own = PackedPass(module, _Watched(pool, seen), past)

    def before(layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        seen.inputs.append((args[0] if args else kwargs["hidden_states"])[0].clone())
        seen.arguments.append(kwargs)

    def after(layer: Any, args: tuple[Any, ...], out: Any) -> None:
        seen.outputs.append((out if isinstance(out, Tensor) else out[0])[0].clone())

    def route(number: int, router: Any, _: Any, out: Any) -> None:
        seen.routed[number] = out[0].float().clone(), router.top_k

    with ExitStack() as hooks:
        for number, layer in enumerate(decoder.layers):
            if (choosing := router_and_experts(layer)) is not None:
                hooks.callback(choosing[0].register_forward_hook(partial(route, number)).remove)
            hooks.callback(layer.register_forward_pre_hook(before, with_kwargs=True).remove)
            hooks.callback(layer.register_forward_hook(after).remove)
        logits = own.logits(row)
    seen.states = {number: states_of(pool, number) for number in keeping}
    num_mixers = sum(mixer_of(layer) is not None for layer in decoder.layers)
    is_whole = len(seen.calls) + len(keeping) == num_mixers
    is_whole &= len(seen.inputs) == len(seen.outputs) == len(decoder.layers)
    if not is_whole or not all(map(torch.equal, seen.inputs[1:], seen.outputs)):
        raise Unmatched("its layers do not run one after the other, or something stands between them")
    return seen, logits
