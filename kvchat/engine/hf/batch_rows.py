"""Texts of an `HFCache`: one, or several padded on the left as transformers pads them.

A column is a place in the padded rows. Padding has no blocks: a row's first `pad` columns are empty, and its
tokens lie behind them at positions that begin at 0, so its blocks are those of the text alone. A pass
computes the same columns of every row, from the first that one of them lacks; what a row knew of them stays
as it was.
"""

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from kvchat.engine.hf.blocks import HFBlocks
from kvchat.engine.sequences.sequence import Sequence
from kvchat.errors import InvalidRequest


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
    elif given is None and any(pads) and "position_ids" in inspect.signature(model.forward).parameters:
        raise InvalidRequest("padded texts need position_ids that count without padding, as generate gives")
