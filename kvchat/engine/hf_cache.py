"""A cache for transformers' own code: `model.generate(input_ids, past_key_values=HFCache(blocks))`.

What a text begins with is taken from blocks that are there, and the model computes the rest; what it computes
is there for the next text. The cache sees the ids through hooks around the model's forward pass, since blocks
are named by them: the first pass is handed on without the tokens that need not be computed.
"""

from collections.abc import Callable
from typing import Any, cast
from weakref import finalize, ref

import torch
from torch import Tensor, nn

from kvchat.engine.attention.gather import GatherCache
from kvchat.engine.cache.branch import Branch
from kvchat.engine.hf_blocks import HFBlocks
from kvchat.errors import InvalidRequest

_PER_TOKEN = ("position_ids", "token_type_ids")
"""Arguments with an entry for each token that is computed."""


class HFCache(GatherCache):
    """The keys and values of one text, in blocks that others share. One text at a time, and no padding.

    Args:
        blocks: where they are.

    Attributes:
        cached_tokens: how many of the first tokens were there already.
    """

    def __init__(self, blocks: HFBlocks) -> None:
        super().__init__(blocks.pool.layers)
        self.cached_tokens = 0
        self._blocks = blocks
        self._text = _Text(blocks)
        mine = ref(self)
        hooks = (
            blocks.model.register_forward_pre_hook(_before(mine), with_kwargs=True),
            blocks.model.register_forward_hook(_after(mine), with_kwargs=True, always_call=True),
        )
        self._end = finalize(self, _end, self._text, hooks)

    def close(self) -> None:
        """Let go of the text; its blocks stay as long as there is room, and on disk. May be called twice."""
        self._end()

    @property
    def is_compileable(self) -> bool:
        return False

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            return super().update(key_states, value_states, layer_idx)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._text.length

    def take(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of a pass without what is known of the text's beginning.

        Raises:
            InvalidRequest: there are no ids, several texts, or padding.
            PoolExhausted: there is no room.
        """
        if not self._end.alive:
            raise InvalidRequest("this cache is closed; make a new one with HFCache(blocks)")
        token_ids = _ids_of(arguments)
        is_new = self._text.branch is None
        branch = self._text.take(token_ids.tolist())
        self.begin(self._blocks.begin(branch), 0)
        if is_new:
            self.cached_tokens = branch.computed_len
        num_new = len(branch.token_ids) - branch.computed_len
        left = {"input_ids": token_ids[None, -num_new:]}
        for name in _PER_TOKEN:
            given = arguments.get(name)
            if isinstance(given, Tensor) and given.shape[-1] == len(token_ids):
                left[name] = given[..., -num_new:]
        return arguments | left

    def settle(self, *, is_computed: bool) -> None:
        """Note whether a pass has computed what `take` handed on."""
        branch = self._text.branch
        if branch is not None:
            (self._blocks.commit if is_computed else self._blocks.take_back)(branch)


class _Text:
    """What a cache holds; outlives it by the moment in which it is let go."""

    def __init__(self, blocks: HFBlocks) -> None:
        self.blocks = blocks
        self.branch: Branch | None = None

    @property
    def length(self) -> int:
        return 0 if self.branch is None else self.branch.computed_len

    def take(self, token_ids: list[int]) -> Branch:
        if self.branch is None:
            self.branch = self.blocks.open(token_ids)
        else:
            self.blocks.take_back(self.branch)
            self.branch.token_ids += token_ids
        return self.branch


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


def _end(text: _Text, hooks: tuple[Any, ...]) -> None:
    for hook in hooks:
        hook.remove()
    if text.branch is not None:
        text.blocks.release(text.branch)
        text.branch = None


def _ids_of(arguments: dict[str, Any]) -> Tensor:
    """Return the ids [T] of a pass."""
    token_ids, mask = arguments.get("input_ids"), arguments.get("attention_mask")
    if token_ids is None:
        raise InvalidRequest("blocks are named by token ids: give the model input_ids, not embeddings")
    if token_ids.shape[0] != 1:
        raise InvalidRequest(
            f"an HFCache holds one text, not {token_ids.shape[0]}: call generate for one at a time, each with"
            " a cache of its own over the same HFBlocks"
        )
    if isinstance(mask, Tensor) and mask.dim() == 2 and not bool(mask.all()):
        raise InvalidRequest("an HFCache takes no padding: give the text alone")
    return cast(Tensor, token_ids[0])
