"""One architecture on kvchat against transformers' own `generate`, in float32."""

import tempfile
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from benchmarks.models.configs import VOCAB_SIZE, Case, tiny_config
from kvchat.engine import Engine, EngineConfig, SamplingParams
from kvchat.engine.api.ids import SequenceId
from kvchat.engine.api.request import Request
from kvchat.engine.formats.recurrent.spec import StateSpec
from kvchat.engine.models.load import class_for
from kvchat.engine.results import Result, collect
from kvchat.errors import KvchatError

MAX_PARAMETERS = 20_000_000
LENGTHS = (5, 17, 33, 70)
NUM_TOKENS = 16
LOGPROB_TOLERANCE = 2e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What came out for one case.

    Args:
        outcome: exact, refused, wrong, or not built (no tiny model of the class can be made here).
        route: by what the model runs on the cache; empty unless it does.
        groups: kinds and numbers of layers.
        reason: why it is not exact.
    """

    name: str
    outcome: str
    route: str = ""
    groups: str = ""
    reason: str = ""


class Mismatch(Exception):
    """An answer that is not that of transformers."""


def survey(case: Case) -> Finding:
    """Build the case's model and hold kvchat to what `generate` answers."""
    with tempfile.TemporaryDirectory() as name:
        model_dir = Path(name, "model")
        try:
            save_tiny(case, model_dir)
            reference = Reference(model_dir)
            reference.answer(token_ids(LENGTHS[0]), 2)
        except Exception as error:  # whatever a config makes a class say
            return Finding(name=case.name, outcome="not built", reason=one_line(error))
        try:
            return _compare(case, model_dir, reference)
        except KvchatError as error:
            return Finding(name=case.name, outcome="refused", reason=one_line(error))
        except Mismatch as error:
            return Finding(name=case.name, outcome="wrong", reason=one_line(error))


def save_tiny(case: Case, model_dir: Path) -> None:
    """Write the case's model with random weights, in float32."""
    config = tiny_config(case)
    with torch.device("meta"):
        shape = class_for(config).from_config(config)
    num_parameters = sum(parameter.numel() for parameter in shape.parameters())
    if num_parameters > MAX_PARAMETERS:
        raise ValueError(f"its smallest config here has {num_parameters:,} parameters")
    torch.manual_seed(0)
    model = class_for(config).from_config(config, dtype=torch.float32)
    model.generation_config = transformers.GenerationConfig()
    model.save_pretrained(model_dir)


def _compare(case: Case, model_dir: Path, reference: "Reference") -> Finding:
    cache_dir = model_dir.parent / "cache"
    with closing(open_engine(model_dir, cache_dir)) as engine:
        groups = _groups(engine)
        text = _check_ragged(engine, reference)
        _check_prefix(engine, reference, text)
        _check_fork(engine, reference)
    with closing(open_engine(model_dir, cache_dir)) as engine:
        _check_prefix(engine, reference, text)
    return Finding(name=case.name, outcome="exact", route=engine.info.route, groups=groups)


def _groups(engine: Engine) -> str:
    groups = engine.snapshot().groups
    parts = [f"{len(group.layers)} {group.kind}" for group in groups]
    num_borrowers = sum(len(group.borrowers) for group in groups)
    return ", ".join(parts + ([f"{num_borrowers} borrowed"] if num_borrowers else []))


def open_engine(model_dir: Path, cache_dir: Path) -> Engine:
    """Return an engine with small blocks and small chunks on the processor."""
    config = EngineConfig(
        device="cpu", dtype="float32", block_size=16, max_batch_tokens=24, cache_dir=cache_dir, seed=0
    )
    return Engine.load(str(model_dir), config)


def _check_ragged(engine: Engine, reference: "Reference") -> list[int]:
    """Prompts of all lengths at once, in chunks; return the longest with its answer."""
    prompts = [token_ids(length) for length in LENGTHS]
    results = engine.generate(prompts, _sampling())
    for prompt, result in zip(prompts, results, strict=True):
        reference.expect(prompt, result, "a ragged batch")
    return prompts[-1] + results[-1].token_ids


def _check_prefix(engine: Engine, reference: "Reference", text: list[int]) -> None:
    """Continue in the middle of a block of a known text, where a state need not have been kept, and at its
    end.
    """
    has_states = any(group.kind == StateSpec.kind for group in engine.snapshot().groups)
    for length in (41, len(text)):
        prompt = text[:length] + token_ids(9, seed=length)
        result = engine.generate([prompt], _sampling())[0]
        least = 0 if has_states and length < len(text) else 32
        if result.usage.cached_tokens < least:
            raise Mismatch(f"{result.usage.cached_tokens} of {length} known tokens were found")
        reference.expect(prompt, result, f"a prefix hit of {result.usage.cached_tokens} tokens")


def _check_fork(engine: Engine, reference: "Reference") -> None:
    """Two sequences that part inside a block, each with its own continuation."""
    prompt = token_ids(45, seed=1)
    handle = engine.submit(Request(token_ids=tuple(prompt), sampling=_sampling()))
    text = prompt + collect(handle).token_ids
    child = engine.fork(handle.sequence)
    for sequence, seed in ((handle.sequence, 2), (child, 3)):
        turn = text + token_ids(7, seed=seed)
        reference.expect(turn, _on_sequence(engine, turn, sequence), "a fork")
    engine.check_integrity()


def _on_sequence(engine: Engine, prompt: Sequence[int], sequence: SequenceId) -> Result:
    return collect(engine.submit(Request(token_ids=tuple(prompt), sampling=_sampling(), sequence=sequence)))


def _sampling() -> SamplingParams:
    return SamplingParams(max_tokens=NUM_TOKENS, logprobs=0, ignore_eos=True)


class Reference:
    """transformers' own greedy answers, from a model object of its own."""

    def __init__(self, model_dir: Path) -> None:
        self._model: Any = (
            class_for(transformers.AutoConfig.from_pretrained(model_dir))
            .from_pretrained(model_dir, attn_implementation="eager", dtype=torch.float32)
            .eval()
        )

    @torch.inference_mode()
    def answer(self, prompt: Sequence[int], num_tokens: int = NUM_TOKENS) -> tuple[list[int], list[float]]:
        """Return the answer and the log-probability of each of its tokens."""
        ids = torch.tensor([list(prompt)])
        out = self._model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=num_tokens,
            do_sample=False,
            output_logits=True,
            return_dict_in_generate=True,
        )
        tokens = out.sequences[0, len(prompt) :].tolist()
        rows = torch.stack(out.logits)[:, 0].float().log_softmax(dim=-1)
        return tokens, [float(row[token]) for row, token in zip(rows, tokens, strict=True)]

    def expect(self, prompt: Sequence[int], result: Result, where: str) -> None:
        """Raise Mismatch unless `result` is the answer to `prompt`, tokens and log-probabilities."""
        tokens, logprobs = self.answer(prompt)
        if result.token_ids != tokens:
            raise Mismatch(f"{where}: {result.token_ids} instead of {tokens}")
        off = max(abs(ours.logprob - own) for ours, own in zip(result.logprobs, logprobs, strict=True))
        if off > LOGPROB_TOLERANCE:
            raise Mismatch(f"{where}: log-probabilities are off by {off:.2g}")


def token_ids(length: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(1000 * seed + length)
    return [int(token) for token in torch.randint(3, VOCAB_SIZE, (length,), generator=generator)]


_INSTEAD = ". Choose another model, or `-m starter`."


def one_line(error: BaseException) -> str:
    """Return an error's message as one line of moderate length, without what to do instead."""
    text = " ".join(str(error).split()).removesuffix(_INSTEAD) or type(error).__name__
    return text if len(text) <= 240 else text[:239] + "…"
