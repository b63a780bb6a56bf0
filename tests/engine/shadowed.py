"""What a model computes by itself where, behind a prompt, each step chooses which chunks of it are seen."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from kvchat.engine.formats.shadow.settings import ShadowSettings

NAME = "shadowed_reference"


class Shadowed:
    """transformers' own model, with dense attention under a mask for each query and head.

    Chunks are chosen by the weights of their best keys, one by one and in float64. Nothing that was generated
    is given away: it fits into what stays exact.
    """

    def __init__(self, model_dir: Path, settings: ShadowSettings) -> None:
        self._model: Any = transformers.AutoModelForCausalLM.from_pretrained(
            model_dir, attn_implementation="eager", dtype=torch.float32
        ).eval()
        config = self._model.config
        self._sliding = [kind == "sliding_attention" for kind in getattr(config, "layer_types", None) or []]
        self._window = getattr(config, "sliding_window", None)
        self._settings = settings
        self._cuts: Sequence[int] = ()
        transformers.AttentionInterface.register(NAME, self._attend)
        self._model.set_attn_implementation(NAME)

    @torch.inference_mode()
    def logits(self, ids: Sequence[int], cuts: Sequence[int]) -> Tensor:
        """Return the logits behind every token [T, V].

        Args:
            cuts: the prompt's end, and behind it where queries begin to choose together, and end, ascending.
        """
        self._cuts = cuts
        logits: Tensor = self._model(input_ids=torch.tensor([list(ids)]), use_cache=False).logits[0]
        return logits

    def _attend(
        self, module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, scaling: float, **rest: Any
    ) -> tuple[Tensor, None]:
        group, count = query.shape[1] // key.shape[1], query.shape[2]
        hidden = torch.ones(count, count, dtype=torch.bool).triu(1).repeat(query.shape[1], 1, 1)
        if self._sliding and self._sliding[module.layer_idx]:
            hidden |= torch.ones(count, count, dtype=torch.bool).tril(-self._window)
        else:
            for head, own in enumerate(key[0].double()):
                heads = slice(head * group, (head + 1) * group)
                self._hide(hidden[heads], query[0, heads].double() * scaling, own)
        scores = query[0] @ key[0].repeat_interleave(group, dim=0).transpose(1, 2) * scaling
        weights = scores.masked_fill(hidden, float("-inf")).softmax(dim=2)
        out = weights @ value[0].repeat_interleave(group, dim=0)
        return out.transpose(0, 1)[None], None

    def _hide(self, hidden: Tensor, query: Tensor, keys: Tensor) -> None:
        """Note what the queries [G, T, D] of the heads that share keys [T, D] do not see [G, T, T]."""
        size, settings = self._settings.chunk_size, self._settings
        chunks = keys[: (self._cuts[0] // size - settings.num_local) * size].unflatten(0, (-1, size))
        means = chunks.mean(dim=1)
        alike = torch.cosine_similarity(chunks, means[:, None], dim=2).amin(dim=1)[1:]
        always = {0, *(alike.argsort()[: settings.num_outliers] + 1).tolist()}
        others = [number for number in range(len(chunks)) if number not in always]
        for start, end in pairwise(self._cuts):
            best = (chunks[others] @ query[:, start:end].flatten(0, 1).T).amax(dim=1)  # [n, G * Q]
            order = best.softmax(dim=0).amax(dim=1).argsort(descending=True)
            for place in order[settings.num_chosen :].tolist():
                hidden[:, start:end, others[place] * size : (others[place] + 1) * size] = True
