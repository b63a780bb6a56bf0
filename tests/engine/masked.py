"""What a model computes with its own dense attention where some keys are masked for some queries."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

Sees = Callable[[int, int], bool]
"""(query, key) → whether the one sees the other."""


class Masked:
    """transformers' own eager attention under a mask of our own.

    Args:
        sees: asked about keys that are not behind the query.
    """

    def __init__(self, model_dir: Path, sees: Sees) -> None:
        self._model: Any = transformers.AutoModelForCausalLM.from_pretrained(
            model_dir, attn_implementation="eager", dtype=torch.float32
        ).eval()
        self._sees = sees

    @torch.inference_mode()
    def logits(self, ids: Sequence[int]) -> Tensor:
        """Return the logits behind every token [T, V]."""
        count = len(ids)
        mask = torch.full((count, count), float("-inf"))
        for query in range(count):
            for key in range(query + 1):
                if self._sees(query, key):
                    mask[query, key] = 0.0
        out = self._model(
            input_ids=torch.tensor([list(ids)]), attention_mask=mask[None, None], use_cache=False
        )
        logits: Tensor = out.logits[0]
        return logits

    def answer(self, prompt: Sequence[int], num_tokens: int) -> list[int]:
        """Return the greedy continuation."""
        ids = list(prompt)
        for _ in range(num_tokens):
            ids.append(int(self.logits(ids)[-1].argmax()))
        return ids[len(prompt) :]
