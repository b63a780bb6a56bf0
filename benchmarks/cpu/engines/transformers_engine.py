"""transformers: the model's own forward pass and its dynamic cache."""

import copy
import time
from typing import Any

import torch
import transformers

from benchmarks.cpu.engines.random_tokens import following
from kvchat.platform.host_memory import available_bytes


class TransformersEngine:
    def __init__(self, model: str, settings: dict[str, Any]) -> None:
        torch.set_num_threads(settings["threads"])
        transformers.utils.logging.disable_progress_bar()
        dtype = getattr(torch, settings["dtype"])
        self._model: Any = transformers.AutoModelForCausalLM.from_pretrained(
            model, dtype=dtype, attn_implementation="sdpa"
        ).eval()
        self._caches: dict[int, Any] = {}

    @torch.inference_mode()
    def prefill(self, token_ids: list[int]) -> float:
        self._caches.pop(len(token_ids), None)
        ids = torch.tensor([token_ids])
        start_s = time.perf_counter()
        out = self._model(ids, use_cache=True, logits_to_keep=1)
        elapsed_s = time.perf_counter() - start_s
        self._caches[len(token_ids)] = out.past_key_values
        return elapsed_s

    @torch.inference_mode()
    def decode(self, length: int, num_tokens: int, batch: int) -> float:
        num_bytes = sum(layer.keys.nbytes + layer.values.nbytes for layer in self._caches[length].layers)
        # The copies, the one that they are made of, and a layer's while a token is added to it.
        if (batch + 2) * num_bytes > available_bytes():
            raise NotImplementedError("the keys and values of a batch do not fit into memory")
        cache = copy.deepcopy(self._caches[length])
        if batch > 1:
            cache.batch_repeat_interleave(batch)
        token = torch.tensor([[following(number)] for number in range(batch)])
        start_s = time.perf_counter()
        for _ in range(num_tokens):
            out = self._model(token, past_key_values=cache, use_cache=True)
            token = out.logits[:, -1:].argmax(-1)
        return time.perf_counter() - start_s

    def describe(self) -> dict[str, Any]:
        return {"engine": "transformers", "version": transformers.__version__, "torch": torch.__version__}


def open_engine(model: str, settings: dict[str, Any]) -> TransformersEngine:
    return TransformersEngine(model, settings)
