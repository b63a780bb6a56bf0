"""The shadows of live sequences, and of the prompts that they go on from.

A shadow follows from the keys and values of a sequence and from where it was made, and nothing but these is
stored. What is made of a prompt is kept by the name of its tokens: sequences that begin with the same ones,
such as forks and conversations that are taken up again, share it, and add what is their own. Where it is not
at hand, as in another process, it is made from blocks.
Dimensions: T new tokens, n tokens before them, N blocks, P block size, H_kv key-value heads, D head size.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial

from torch import Tensor

from kvchat.engine.api.ids import SequenceId
from kvchat.engine.api.snapshot import ShadowUsage
from kvchat.engine.api.view import View
from kvchat.engine.formats.shadow.copy_on_write_rows import Held
from kvchat.engine.formats.shadow.gpu_resources import GpuResources
from kvchat.engine.formats.shadow.layer import BlockChunks, ShadowLayer, ShadowStep
from kvchat.engine.formats.shadow.rotary import Rotary
from kvchat.engine.formats.shadow.settings import settings_for
from kvchat.engine.kernels.move_blocks.bring import bring_blocks
from kvchat.engine.kernels.paged_attention.args import KVPair
from kvchat.engine.kernels.stream_protocol import Streams
from kvchat.engine.sequences.batch_plan import ShadowedPrompt

Read = Callable[[int, int], tuple[Tensor, Tensor]]
"""The keys and values [n, H_kv, *] of tokens [start, end) of a layer."""


@dataclass(slots=True)
class Counts:
    """Chosen chunks of a layer since the engine started, those of them that the step before had not chosen,
    the tokens that the last step looked at, and those of prompts of which a shadow was made.
    """

    num_wanted: int = 0
    num_fetched: int | Tensor = 0
    attended_len: int = 0
    made_len: int = 0

    def add(self, step: ShadowStep) -> None:
        self.num_wanted += step.num_wanted
        self.num_fetched += step.num_fetched
        self.attended_len = step.attended_len


@dataclass(slots=True)
class CachedShadow:
    """A shadow for each layer, of a prompt alone or of a sequence that goes on from it."""

    prompt: ShadowedPrompt
    layers: dict[int, ShadowLayer] = field(default_factory=dict)

    def release(self) -> None:
        for layer in self.layers.values():
            layer.release()
        self.layers.clear()


class Shadows:
    """All shadows of one engine.

    Args:
        view: how much a step looks at.
        rotaries: the embedding of each layer's keys.
        limit_bytes: that are kept when a step has ended, as far as those that it used leave them.
        streams: of a device whose blocks lie in host memory; None: it has them itself.
    """

    def __init__(
        self, view: View, rotaries: Mapping[int, Rotary], limit_bytes: int, streams: Streams | None = None
    ) -> None:
        self.view = view
        self.limit_bytes = limit_bytes
        self._held = Held()
        self.counts = {layer: Counts() for layer in rotaries}
        self.remote = None if streams is None else GpuResources(streams, self._held)
        self._rotaries = rotaries
        # Both in the order in which they were used.
        self._sequences: dict[SequenceId, CachedShadow] = {}
        self._prompts: dict[bytes, CachedShadow] = {}

    @property
    def used_bytes(self) -> int:
        return self._held.num_bytes

    def step(
        self, sequence: SequenceId, prompt: ShadowedPrompt, num_tokens: int, blocks: Tensor
    ) -> "StepShadow":
        """Return what answers the tokens of a sequence behind `num_tokens`.

        Args:
            prompt: of which the shadow was made, or is to be: its first tokens.
            blocks: all that the sequence has in the layers' group, in order, int64.
        """
        found = self._sequences.pop(sequence, None)
        if found is not None and found.prompt != prompt:
            found.release()
            found = None
        shadow = self._sequences[sequence] = found or CachedShadow(prompt)
        made = self._prompts.pop(prompt.name, None)
        self._prompts[prompt.name] = made or CachedShadow(prompt)
        return StepShadow(self, shadow, num_tokens, blocks)

    def forget(self, sequence: SequenceId) -> None:
        """Let go of what is a sequence's own, if it has a shadow; its prompt's stays while there is room."""
        found = self._sequences.pop(sequence, None)
        if found is not None:
            found.release()

    def clear(self) -> None:
        """Let go of all."""
        for kept in (*self._sequences.values(), *self._prompts.values()):
            kept.release()
        self._sequences.clear()
        self._prompts.clear()
        if self.remote is not None:
            self.remote.clear()

    def settle(self) -> None:
        """Wait until what was computed is in the blocks, where these lie in host memory: others read them."""
        if self.remote is not None:
            self.remote.streams.mark().wait()

    def trim(self, kept: Collection[SequenceId]) -> None:
        """Let go of the prompts used longest ago, with the sequences that go on from them, while there are
        too many bytes; of none that `kept` go on from until nothing else is left, and of what is theirs
        never.
        """
        served = {self._sequences[sequence].prompt.name for sequence in kept if sequence in self._sequences}
        idle = [sequence for sequence in self._sequences if sequence not in kept]
        for name in [name for name in self._prompts if name not in served]:
            if self.used_bytes <= self.limit_bytes:
                return
            for sequence, shadow in list(self._sequences.items()):
                if shadow.prompt.name == name:
                    self.forget(sequence)
            self._prompts.pop(name).release()
        for sequence in idle:
            if self.used_bytes <= self.limit_bytes:
                return
            self.forget(sequence)
        for name in served:
            if self.used_bytes <= self.limit_bytes:
                return
            self._prompts.pop(name).release()

    def usage(self, layer: int) -> ShadowUsage | None:
        """Return what is kept of a layer, each byte once; None: it is not looked at through shadows."""
        counts = self.counts.get(layer)
        if counts is None:
            return None
        shadows = (*self._prompts.values(), *self._sequences.values())
        kept = [shadow.layers[layer].stock for shadow in shadows if layer in shadow.layers]
        parts = [part for stock in kept for part in stock.device_tensors().values()]
        num_bytes = {tensor.data_ptr(): tensor.nbytes for part in parts for tensor in part}
        return ShadowUsage(
            device_bytes=sum(num_bytes.values()),
            seen_tokens=counts.attended_len,
            wanted_chunks=counts.num_wanted,
            fetched_chunks=int(counts.num_fetched),
            made_tokens=counts.made_len,
        )

    def begun(self, layer: int, prompt: ShadowedPrompt, read: Read) -> ShadowLayer:
        """Return a shadow of a layer behind a prompt, to go on from: of what was made of the prompt, or is.

        Args:
            read: the layer's keys and values.
        """
        layers = self._prompts[prompt.name].layers
        if layer not in layers:
            settings = settings_for(self.view, prompt.num_tokens, is_remote=self.remote is not None)
            keys, values = read(0, prompt.num_tokens)
            layers[layer] = ShadowLayer.of_prompt(
                settings, self._rotaries[layer], keys, values, self._held, self.remote
            )
            self.counts[layer].made_len += prompt.num_tokens
        return layers[layer].fork()


class StepShadow:
    """Answers the tokens of one sequence in one step.

    Args:
        num_tokens: of the sequence before these.
        blocks: all of the sequence, in order.
    """

    def __init__(self, shadows: Shadows, sequence: CachedShadow, num_tokens: int, blocks: Tensor) -> None:
        self._shadows = shadows
        self._sequence = sequence
        self._num_tokens = num_tokens
        self._blocks = blocks

    def attend(self, layer: int, query: Tensor, new: KVPair, pools: KVPair, scale: float) -> Tensor:
        """Return what the queries see [T, H, D_v], and take their tokens; see `Shadow` in the kernels."""
        source = BlockChunks(pools, self._blocks)
        out, steps = self._layer(layer, pools).attend(query, *new, scale, source)
        for step in steps:
            self._shadows.counts[layer].add(step)
        return out

    def _layer(self, layer: int, pools: KVPair) -> ShadowLayer:
        """Return the layer's shadow of the tokens before the step. Where it is not at hand, for a sequence
        that is new or has been taken back, it goes on from the prompt's; what is its own comes from its
        blocks.
        """
        layers, prompt = self._sequence.layers, self._sequence.prompt
        found = layers.pop(layer, None)
        if found is not None and found.num_tokens != self._num_tokens:
            found.release()
            found = None
        if found is None:
            read = partial(_rows_of, pools, self._blocks)
            found = self._shadows.begun(layer, prompt, read)
            found.extend(*read(prompt.num_tokens, self._num_tokens))
        layers[layer] = found
        return found


def _rows_of(pools: KVPair, blocks: Tensor, start: int, end: int) -> tuple[Tensor, Tensor]:
    """Return copies of the keys and values [n, H_kv, *] of tokens [start, end), of pools [N, H_kv, P, *]."""
    size = pools.keys.shape[2]
    first = start // size
    held = blocks[first : -(-end // size)]
    keys, values = (
        bring_blocks(pool, held).transpose(1, 2).flatten(0, 1)[start - first * size : end - first * size]
        for pool in pools
    )
    return keys, values
