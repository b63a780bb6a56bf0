"""A cache for transformers' own code: `model.generate(input_ids, past_key_values=HFCache(blocks))`.

What a text begins with is taken from blocks that are there, and the model computes the rest; what it computes
is there for the next text. The cache sees the ids through hooks around the model's forward pass, since blocks
are named by them: the first pass is handed on without the tokens that need not be computed.
"""

from collections.abc import Callable
from typing import Any, NoReturn
from weakref import finalize, ref

import torch
from torch import Tensor, nn

from kvchat.engine.api.ids import GroupId
from kvchat.engine.formats.attention_metadata import AttentionMetadata
from kvchat.engine.formats.full.transformers_cache import TransformersCache
from kvchat.engine.hf.batch_rows import BatchRows
from kvchat.engine.hf.blocks import HFBlocks
from kvchat.errors import InvalidRequest

_PER_TOKEN = ("position_ids", "token_type_ids")
"""Arguments with an entry for each token that is computed."""


class HFCache(TransformersCache):
    """The keys and values of one text, or of several in one call, in blocks that others share.

    Args:
        blocks: where they are.
        num_texts: of each call, which may be padded on the left; None: one text without padding.

    Attributes:
        cached_tokens: how many of the first tokens were there already, of all texts together.
    """

    def __init__(self, blocks: HFBlocks, num_texts: int | None = None) -> None:
        super().__init__(blocks.pool.layers)
        self.cached_tokens = 0
        self._blocks = blocks
        self._texts = BatchRows(blocks, num_texts)
        self._steps: list[dict[GroupId, AttentionMetadata]] = []
        mine = ref(self)
        hooks = (
            blocks.model.register_forward_pre_hook(_before(mine), with_kwargs=True),
            blocks.model.register_forward_hook(_after(mine), with_kwargs=True, always_call=True),
        )
        self._end = finalize(self, _end, self._texts, hooks)

    def close(self) -> None:
        """Let go of the texts; blocks stay as long as there is room, and on disk. May be called twice."""
        self._end()

    @property
    def is_compileable(self) -> bool:
        return False

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Store what is new of [B, H_kv, T, D] and return all columns [B, H_kv, S, D], those of padding 0."""
        with torch.no_grad():
            if len(self._steps) == 1 and not self._texts.pads[0]:
                return super().update(key_states, value_states, layer_idx)
            keys, values = self._empty(key_states), self._empty(value_states)
            for number, (step, pad) in enumerate(zip(self._steps, self._texts.pads, strict=True)):
                self.begin(step, 0)
                num_new = next(iter(self._spans.values())).q_end
                row = slice(number, number + 1)
                new_keys, new_values = key_states[row, :, -num_new:], value_states[row, :, -num_new:]
                keys[row, :, pad:], values[row, :, pad:] = super().update(new_keys, new_values, layer_idx)
            return keys, values

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._texts.length

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return self._texts.width, 0

    def reorder_cache(self, beam_idx: Tensor) -> NoReturn:
        """Raise InvalidRequest: beams trade places, and texts with blocks do not."""
        raise InvalidRequest("an HFCache takes no beam search: use a cache of transformers' own for it")

    @property
    def is_croppable(self) -> bool:
        return False

    def crop(self, tokens_to_remove: int) -> None:
        """Take no token back.

        Raises: InvalidRequest: one is to be taken back, as where an assistant's guess was wrong.
        """
        if tokens_to_remove:
            raise InvalidRequest("an HFCache takes no assisted generation: it cannot take tokens back")

    def batch_repeat_interleave(self, repeats: int) -> NoReturn:
        """Raise InvalidRequest: the texts are those that the cache was given."""
        raise InvalidRequest("the texts of an HFCache cannot be repeated; make one with more num_texts")

    def batch_select_indices(self, indices: Tensor) -> NoReturn:
        """Raise InvalidRequest: the texts are those that the cache was given."""
        raise InvalidRequest("the texts of an HFCache cannot be chosen from; use a cache for each")

    def take(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of a pass without what is known of the texts' beginnings.

        Raises:
            InvalidRequest: see `BatchRows.take`.
            PoolExhausted: there is no room.
        """
        if not self._end.alive:
            raise InvalidRequest("this cache is closed; make a new one with HFCache(blocks)")
        texts = self._texts
        is_new = not texts.sequences
        texts.take(arguments)
        if is_new:
            self.cached_tokens = sum(row.computed_len for row in texts.sequences)
        self._steps = [self._blocks.begin(row) for row in texts.sequences]
        self.begin(self._steps[0], 0)
        token_ids = arguments["input_ids"]
        num_given, num_new = token_ids.shape[1], texts.width - texts.length
        left = {"input_ids": token_ids[:, -num_new:]}
        for name in _PER_TOKEN:
            given = arguments.get(name)
            if isinstance(given, Tensor) and given.shape[-1] == num_given:
                left[name] = given[..., -num_new:]
        return arguments | left

    def settle(self, *, is_computed: bool) -> None:
        """Note whether a pass has computed what `take` handed on."""
        for row in self._texts.sequences:
            (self._blocks.commit if is_computed else self._blocks.take_back)(row)

    def _empty(self, states: Tensor) -> Tensor:
        num, num_heads, _, size = states.shape
        return states.new_zeros(num, num_heads, self._texts.width, size)


def _before(mine: "ref[HFCache]") -> Callable[..., Any]:
    def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        cache = mine()
        if cache is None or not _is_for(cache, kwargs):
            return None
        return (), cache.take(({"input_ids": args[0]} if args else {}) | kwargs)

    return hook


def _after(mine: "ref[HFCache]") -> Callable[..., Any]:
    def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        cache = mine()
        if cache is not None and _is_for(cache, kwargs):
            cache.settle(is_computed=output is not None)

    return hook


def _is_for(cache: HFCache, arguments: dict[str, Any]) -> bool:
    return arguments.get("past_key_values") is cache


def _end(texts: BatchRows, hooks: tuple[Any, ...]) -> None:
    for hook in hooks:
        hook.remove()
    texts.release()
