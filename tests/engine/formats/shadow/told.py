"""What an engine with shadows is told: a long prompt, a message behind it, a fork, a session taken up."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from kvchat.engine.api.ids import SequenceId
from kvchat.engine.api.request import Request
from kvchat.engine.api.sampling_params import SamplingParams
from kvchat.engine.api.snapshot import Tier
from kvchat.engine.engine import Engine
from tests.engine.namespaced import ask, name
from tests.engine.tiny_models import RecordingRunner, finish, open_recorded, token_ids

PROMPT, ANSWER, FOLLOW, SECOND = 139, 5, 34, 2
FORMAT = "shadow:64:forced"


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What came of it.

    Args:
        tokens: of the conversation that is taken up and of the fork, messages and answers.
        logits: behind each token of the first sequence's answers [n, V].
        chosen: chunks that each layer's heads chose last, on the first sequence.
        counts: of each layer: wanted and fetched chunks, tokens that the last step saw.
        is_remote: whether blocks lay in host memory.
    """

    tokens: list[int]
    logits: Tensor
    chosen: list[list[list[int]]]
    counts: list[tuple[int, int, int]]
    is_remote: bool


def tell(model_dir: Path, cache_dir: Path, device: str = "cpu") -> Told:
    """Tell it, with every invariant checked after every step."""
    settings = {"cache_format": FORMAT, "max_batch_tokens": 70, "max_context": 256, "device": device}
    engine, recorder = open_recorded(model_dir, cache_dir=cache_dir, **settings)
    text, starts = token_ids(PROMPT), [PROMPT]
    sequence = _say(engine, text, starts, ANSWER)
    child = engine.fork(sequence)
    other = [*text, *token_ids(9, seed=2)]
    text += token_ids(FOLLOW, seed=1)
    starts.append(len(text))
    _say(engine, text, starts, SECOND, sequence)
    rows = [*range(PROMPT - 1, PROMPT + ANSWER - 1), *range(starts[1] - 1, len(text) - 1)]
    logits = torch.stack([recorder.row(sequence, row) for row in rows]).cpu()
    chosen = _chosen(engine, sequence)
    _say(engine, other, [PROMPT, len(other)], SECOND, child)
    used = [layer.shadow for layer in engine.snapshot().layers if layer.shadow is not None]
    counts = [(usage.wanted_chunks, usage.fetched_chunks, usage.seen_tokens) for usage in used]
    is_remote = _is_remote(recorder)
    _check_places(engine, recorder, is_remote=is_remote)
    engine.close()
    engine, _ = open_recorded(model_dir, cache_dir=cache_dir, **settings)
    text += token_ids(11, seed=5)
    starts.append(len(text))
    result = ask(engine, text, name("a", *starts), SECOND)
    assert result.loaded.disk > PROMPT
    engine.close()
    tokens = [*text, *result.token_ids, *other]
    return Told(tokens=tokens, logits=logits, chosen=chosen, counts=counts, is_remote=is_remote)


def _say(
    engine: Engine,
    text: list[int],
    starts: Sequence[int],
    num_tokens: int,
    sequence: SequenceId | None = None,
) -> SequenceId:
    """Have a text answered, and add the answer to it."""
    sampling, namespace = SamplingParams(max_tokens=num_tokens), name("a", *starts)
    request = Request(token_ids=tuple(text), sampling=sampling, namespace=namespace, sequence=sequence)
    handle = engine.submit(request)
    text += finish(engine, handle).token_ids
    return handle.sequence


def _chosen(engine: Engine, sequence: SequenceId) -> list[list[list[int]]]:
    assert engine._shadows is not None
    layers = engine._shadows._sequences[sequence].layers
    held = [
        layer._chosen_before if layer.remote is None else layer.stock.working.slots
        for _, layer in sorted(layers.items())
    ]
    return [[sorted(chunks) for chunks in chunks_of.tolist()] for chunks_of in held if chunks_of is not None]


def _check_places(engine: Engine, recorder: RecordingRunner, *, is_remote: bool) -> None:
    """Hold that each byte is counted where it lies: of remote blocks the device has but the shadows."""
    snapshot, shadows = engine.snapshot(), engine._shadows
    assert shadows is not None
    device, host = snapshot.tier(Tier.DEVICE), snapshot.tier(Tier.HOST)
    blocks, other = (host, device) if is_remote else (device, host)
    assert blocks.total_bytes == recorder.device_pool.num_bytes
    assert blocks.used_bytes == sum(layer.used_bytes for layer in snapshot.layers) > 0
    assert other.used_bytes == (shadows.used_bytes if is_remote else 0)
    assert other.total_bytes == (shadows.limit_bytes if is_remote else 0)
    assert snapshot.capacity.device_bytes == device.total_bytes
    assert snapshot.capacity.host_bytes == host.total_bytes


def _is_remote(recorder: RecordingRunner) -> bool:
    return all(layer.in_host_memory for layer in recorder.device_pool.layers.values())
