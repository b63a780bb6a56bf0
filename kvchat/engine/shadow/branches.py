"""The shadows of live branches, made from their blocks whenever they are not at hand.

A shadow follows from the keys and values of a branch and from where it was made, and nothing but these is
stored: forks, resumed sessions and imported ones have a shadow made when they are computed on.
Dimensions: T new tokens, n tokens before them, N blocks, P block size, H_kv key-value heads, D head size.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from kvchat.engine.api.ids import BranchId
from kvchat.engine.api.snapshot import ShadowUsage
from kvchat.engine.api.view import View
from kvchat.engine.shadow.layer import ShadowLayer, ShadowStep
from kvchat.engine.shadow.pages import Budget
from kvchat.engine.shadow.rotary import Rotary
from kvchat.engine.shadow.settings import CHUNK_SIZE, settings_for
from kvchat.engine.shadow.stock import Budgets


@dataclass(slots=True)
class Counts:
    """Chosen chunks of a layer since the engine started, those of them that were fetched from host memory,
    and the tokens that the last step looked at.
    """

    num_wanted: int = 0
    num_fetched: int = 0
    attended_len: int = 0

    def add(self, step: ShadowStep) -> None:
        self.num_wanted += step.num_wanted
        self.num_fetched += step.num_fetched
        self.attended_len = step.attended_len


@dataclass(slots=True)
class BranchShadow:
    """What one branch keeps: a shadow for each layer, made behind `start` tokens."""

    start: int
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
    """

    def __init__(self, view: View, rotaries: Mapping[int, Rotary], limit_bytes: int) -> None:
        self.view = view
        self.limit_bytes = limit_bytes
        self.budgets = Budgets(device=Budget("device"), host=Budget("host"))
        self.counts = {layer: Counts() for layer in rotaries}
        self._rotaries = rotaries
        self._branches: dict[BranchId, BranchShadow] = {}
        """In the order in which they were used."""

    @property
    def used_bytes(self) -> int:
        return self.budgets.device.used_bytes + self.budgets.host.used_bytes

    def step(self, branch: BranchId, start: int, num_tokens: int, blocks: Tensor) -> "StepShadow":
        """Return what answers the tokens of a branch behind `num_tokens`.

        Args:
            start: tokens behind which the shadow was made, or is to be.
            blocks: all that the branch has in the layers' group, in order, int64.
        """
        found = self._branches.pop(branch, None)
        if found is not None and found.start != start:
            found.release()
            found = None
        shadow = self._branches[branch] = found or BranchShadow(start)
        return StepShadow(self, shadow, num_tokens, blocks)

    def forget(self, branch: BranchId) -> None:
        """Let go of a branch's shadow, if it has one."""
        found = self._branches.pop(branch, None)
        if found is not None:
            found.release()

    def trim(self, kept: Collection[BranchId]) -> None:
        """Let go of the shadows used longest ago while there are too many bytes, but of none of `kept`."""
        for branch in [branch for branch in self._branches if branch not in kept]:
            if self.used_bytes <= self.limit_bytes:
                return
            self.forget(branch)

    def usage(self, layer: int) -> ShadowUsage | None:
        """Return what branches keep of a layer; None: it is not looked at through shadows."""
        counts = self.counts.get(layer)
        if counts is None:
            return None
        kept = [shadow.layers[layer].stock for shadow in self._branches.values() if layer in shadow.layers]
        return ShadowUsage(
            device_bytes=sum(
                tensor.nbytes for stock in kept for part in stock.device_tensors().values() for tensor in part
            ),
            host_bytes=sum(tensor.nbytes for stock in kept for tensor in stock.host_tensors()),
            seen_tokens=counts.attended_len,
            wanted_chunks=counts.num_wanted,
            fetched_chunks=counts.num_fetched,
        )

    def made(
        self, layer: int, start: int, keys: Tensor, values: Tensor, *, is_sourced: bool = False
    ) -> ShadowLayer:
        """Return the shadow of a layer whose keys [n, H_kv, D] and values [n, H_kv, D_v] are these.

        Args:
            is_sourced: each step is going to be given a source of them.
        """
        settings = settings_for(self.view, start, is_sourced=is_sourced)
        rotary = self._rotaries[layer]
        shadow = ShadowLayer.of_prompt(
            settings, rotary, keys[:start], values[:start], self.budgets, kind="full"
        )
        shadow.extend(keys[start:], values[start:])
        return shadow


class StepShadow:
    """Answers the tokens of one branch in one step.

    Args:
        num_tokens: of the branch before these.
        blocks: all of the branch, in order.
    """

    def __init__(self, shadows: Shadows, branch: BranchShadow, num_tokens: int, blocks: Tensor) -> None:
        self._shadows = shadows
        self._branch = branch
        self._num_tokens = num_tokens
        self._blocks = blocks

    def attend(
        self, layer: int, new: tuple[Tensor, Tensor, Tensor], pools: tuple[Tensor, Tensor], scale: float
    ) -> Tensor:
        """Return what the queries see [T, H, D_v], and take their tokens; see `Shadow` in the kernels."""
        source = BlockChunks(pools, self._blocks) if BlockChunks.takes(pools) else None
        out, steps = self._layer(layer, pools).attend(*new, scale, source)
        for step in steps:
            self._shadows.counts[layer].add(step)
        return out

    def _layer(self, layer: int, pools: tuple[Tensor, Tensor]) -> ShadowLayer:
        """Return the layer's shadow of the tokens before the step, from blocks if it is not at hand: a
        branch that is new, or has been taken back.
        """
        layers = self._branch.layers
        found = layers.pop(layer, None)
        if found is not None and found.num_tokens != self._num_tokens:
            found.release()
            found = None
        if found is None:
            keys, values = (_rows(pool, self._blocks, self._num_tokens) for pool in pools)
            start, is_sourced = self._branch.start, BlockChunks.takes(pools)
            found = self._shadows.made(layer, start, keys, values, is_sourced=is_sourced)
        layers[layer] = found
        return found


class BlockChunks:
    """Keys and values of chunks as they lie in the blocks of a branch.

    Args:
        pools: keys [N, H_kv, P, D] and values [N, H_kv, P, D_v].
        blocks: all of the branch, in order, int64.
    """

    def __init__(self, pools: tuple[Tensor, Tensor], blocks: Tensor) -> None:
        self.pools = pools
        self.blocks = blocks

    @staticmethod
    def takes(pools: tuple[Tensor, Tensor]) -> bool:
        """Whether every chunk of a head lies in a row. Pure."""
        return pools[0].shape[2] % CHUNK_SIZE == 0 and all(pool.is_contiguous() for pool in pools)

    def take(self, heads: Tensor, chunks: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys [M, c, D] and values [M, c, D_v] of one chunk [M] for each of `heads` [M]."""
        _, num_heads, block_size, _ = self.pools[0].shape
        per_block = block_size // CHUNK_SIZE
        rows = (self.blocks[chunks // per_block] * num_heads + heads) * per_block + chunks % per_block
        # A chunk of a head is a row: rows are copied as they lie.
        keys, values = (
            pool.view(-1, CHUNK_SIZE * pool.shape[3]).index_select(0, rows).view(len(rows), CHUNK_SIZE, -1)
            for pool in self.pools
        )
        return keys, values


def _rows(pool: Tensor, blocks: Tensor, num_tokens: int) -> Tensor:
    """Return a copy of the first rows [n, H_kv, D] of blocks of a pool [N, H_kv, P, D]."""
    size = pool.shape[2]
    return pool[blocks[: -(-num_tokens // size)]].transpose(1, 2).flatten(0, 1)[:num_tokens]
