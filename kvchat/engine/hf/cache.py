"""A cache for transformers' own code: `model.generate(input_ids, past_key_values=HFCache(blocks))`.

What a text begins with is taken from blocks that are there, and the model computes the rest; what it computes
is there for the next text. The cache sees the ids through hooks around the model's forward pass, since blocks
are named by them: the first pass is handed on without the tokens that need not be computed.

Several texts are padded on the left as transformers pads them. A column is a place in the padded rows.
Padding has no blocks: a row's first `pad` columns are empty, and its tokens lie behind them at positions that
begin at 0, so its blocks are those of the text alone. A pass computes the same columns of every row, from the
first that one of them lacks; what a row knew of them stays as it was.
"""

from collections.abc import Callable
from inspect import signature
from typing import Any, NoReturn
from weakref import finalize, ref

import torch
from torch import Tensor, nn

from kvchat.engine.api.ids import GroupId
from kvchat.engine.formats.attention_metadata import AttentionMetadata
from kvchat.engine.formats.full.transformers_cache import TransformersCache
from kvchat.engine.hf.blocks import HFBlocks
from kvchat.engine.sequences.sequence import Sequence
from kvchat.errors import InvalidRequest

_PER_TOKEN = ("position_ids", "token_type_ids")
"""Arguments with an entry for each token that is computed."""


class BatchRows:
    """Rows of tokens with their sequences; outlives its cache by the moment in which it is let go.

    Args:
        num_texts: how many rows a pass must have; None: one, which is not padded.

    Attributes:
        sequences: of the rows; empty before the first pass.
        pads: how many columns of each row are padding.
    """

    def __init__(self, blocks: HFBlocks, num_texts: int | None) -> None:
        if num_texts is not None and num_texts < 1:
            raise InvalidRequest(f"num_texts must be at least 1, not {num_texts}")
        self.blocks = blocks
        self.sequences: list[Sequence] = []
        self.pads: list[int] = []
        self._num_texts = num_texts

    @property
    def length(self) -> int:
        """Columns that every row has computed."""
        return min((pad + row.computed_len for pad, row in self._rows), default=0)

    @property
    def width(self) -> int:
        """Columns of the rows, those included that are about to be computed."""
        return max((pad + len(row.token_ids) for pad, row in self._rows), default=0)

    def take(self, arguments: dict[str, Any]) -> None:
        """Take the tokens of a pass.

        Raises:
            InvalidRequest: there are no ids, another number of texts, padding that is not on the left, or
                positions that are not those of the texts alone.
        """
        token_ids, mask = self._ids_of(arguments), arguments.get("attention_mask")
        for row in self.sequences:
            self.blocks.take_back(row)
        start = self.length
        pads = self._pads_of(mask, start, token_ids)
        if self.sequences and pads != self.pads:
            raise InvalidRequest("the padding of these texts has changed; use a new cache for other texts")
        _check_positions(self.blocks.model, arguments, pads, start)
        if not self.sequences:
            self.pads = pads
            for ids, pad in zip(token_ids, pads, strict=True):
                self.sequences.append(self.blocks.open(ids[pad:].tolist()))
            return
        for ids, (pad, row) in zip(token_ids, self._rows, strict=True):
            # After a pass that failed a row may have more than the shortest of them.
            row.token_ids += ids[pad + row.computed_len - start :].tolist()

    def release(self) -> None:
        """Let go of all texts; their blocks stay where others find them."""
        for row in self.sequences:
            self.blocks.release(row)
        self.sequences.clear()

    @property
    def _rows(self) -> list[tuple[int, Sequence]]:
        return list(zip(self.pads, self.sequences, strict=False))  # fewer where one could not be opened

    def _ids_of(self, arguments: dict[str, Any]) -> Tensor:
        """Return the ids [B, T] of a pass."""
        token_ids = arguments.get("input_ids")
        if not isinstance(token_ids, Tensor):
            raise InvalidRequest("blocks are named by token ids: give the model input_ids, not embeddings")
        num, wanted = token_ids.shape[0], self._num_texts
        if num != (wanted or 1):
            if wanted is not None:
                raise InvalidRequest(f"this cache was made for num_texts={wanted}, and was given {num} texts")
            raise InvalidRequest(
                f"an HFCache holds one text, not {num}: make it with HFCache(blocks, num_texts={num}) for"
                " texts in one call; beams have to be computed with a cache of transformers' own"
            )
        return token_ids

    def _pads_of(self, mask: object, start: int, token_ids: Tensor) -> list[int]:
        """Return how many columns of each row are padding."""
        if mask is None:
            return self.pads if self.sequences else [0] * len(token_ids)
        num_columns = start + token_ids.shape[1]
        if not (isinstance(mask, Tensor) and mask.shape == (len(token_ids), num_columns)):
            raise InvalidRequest(f"an HFCache takes a mask [texts, tokens], here of {num_columns} tokens")
        lengths = mask.bool().sum(1).tolist()
        pads = [num_columns - length for length in lengths]
        is_left = all(bool(row[pad:].all()) for row, pad in zip(mask, pads, strict=True))
        if self._num_texts is None and any(pads):
            raise InvalidRequest(
                "an HFCache takes no padding: give the text alone, or make it with"
                " HFCache(blocks, num_texts=1)"
            )
        if not is_left or num_columns in pads:
            raise InvalidRequest(
                "texts must be padded on the left, with a token in each: set tokenizer.padding_side = 'left'"
            )
        return pads


def _check_positions(model: nn.Module, arguments: dict[str, Any], pads: list[int], start: int) -> None:
    """Refuse positions that are not those of the texts alone: their blocks would serve others wrongly."""
    given, num_new = arguments.get("position_ids"), arguments["input_ids"].shape[1]
    if isinstance(given, Tensor) and given.dim() == 2 and given.shape[1] == num_new:
        columns = torch.arange(start, start + num_new, device=given.device)
        wanted = columns - torch.tensor(pads, device=given.device)[:, None]
        is_text = wanted >= 0
        if not bool(((given == wanted) | ~is_text).all()):
            raise InvalidRequest("the positions of a text must begin at 0 and have no gap; leave them out")
    elif given is None and any(pads) and "position_ids" in signature(model.forward).parameters:
        raise InvalidRequest("padded texts need position_ids that count without padding, as generate gives")


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
