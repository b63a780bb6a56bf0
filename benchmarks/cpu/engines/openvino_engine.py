"""OpenVINO through optimum-intel: the stateful export, hinted for latency."""

import time
from typing import Any

import numpy as np
import openvino
import torch
from optimum.intel import OVModelForCausalLM, OVWeightQuantizationConfig

from benchmarks.cpu.engines.random_tokens import following

_QUANTIZED: dict[str, dict[str, Any]] = {
    "8": {"bits": 8},
    "4": {"bits": 4, "group_size": 64, "sym": False, "ratio": 1.0},
}


class OpenVinoEngine:
    """The request's own state holds KV; a prompt's is copied out and put back."""

    def __init__(self, model: str, settings: dict[str, Any]) -> None:
        quantized = _QUANTIZED.get(settings["bits"])
        self._model = OVModelForCausalLM.from_pretrained(
            model,
            export=True,
            stateful=True,
            quantization_config=OVWeightQuantizationConfig(**quantized) if quantized else None,
            load_in_8bit=False if not quantized else None,
            ov_config={
                "PERFORMANCE_HINT": "LATENCY",
                "INFERENCE_NUM_THREADS": str(settings["threads"]),
                "KV_CACHE_PRECISION": "f16",
            },
        )
        self._states: dict[int, list[np.ndarray]] = {}

    def prefill(self, token_ids: list[int]) -> float:
        self._states.pop(len(token_ids), None)
        ids = torch.tensor([token_ids])
        start_s = time.perf_counter()
        out = self._model(ids, attention_mask=torch.ones_like(ids))
        elapsed_s = time.perf_counter() - start_s
        del out
        self._states[len(token_ids)] = [state.state.data.copy() for state in self._request.query_state()]
        return elapsed_s

    def decode(self, length: int, num_tokens: int, batch: int) -> float:
        if batch != 1:
            raise NotImplementedError("one sequence at a time")
        for state, kept in zip(self._request.query_state(), self._states[length], strict=True):
            state.state = openvino.Tensor(kept)
        token = torch.tensor([[following(0)]])
        # What optimum hands on for a state that the request keeps.
        name = "cache_params" if hasattr(self._model, "ssm_cache_names") else "past_key_values"
        past: dict[str, Any] = {name: ((),)}
        self._model._past_length = length
        start_s = time.perf_counter()
        for step in range(num_tokens):
            mask = torch.ones(1, length + step + 1, dtype=torch.long)
            out = self._model(token, attention_mask=mask, **past)
            token = out.logits[:, -1:].argmax(-1)
        return time.perf_counter() - start_s

    @property
    def _request(self) -> Any:
        return self._model.request

    def describe(self) -> dict[str, Any]:
        return {"engine": "openvino", "version": openvino.__version__}


def open_engine(model: str, settings: dict[str, Any]) -> OpenVinoEngine:
    return OpenVinoEngine(model, settings)
