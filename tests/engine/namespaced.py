"""Questions that are asked in a namespace, and leave nothing behind."""

from collections.abc import Sequence

from kvchat.engine.api.namespace import Namespace
from kvchat.engine.api.request import Request
from kvchat.engine.api.sampling_params import SamplingParams
from kvchat.engine.engine import Engine
from kvchat.engine.results import Result, collect


def name(owner: str, *answer_starts: int) -> str:
    """Return the namespace of a conversation whose answers begin at some tokens."""
    return str(Namespace(owner=owner, answer_starts=answer_starts))


def ask(engine: Engine, ids: Sequence[int], namespace: str, num_tokens: int = 4) -> Result:
    """Return what the engine answers; its sequences are released."""
    sampling = SamplingParams(max_tokens=num_tokens)
    result = collect(engine.submit(Request(token_ids=tuple(ids), sampling=sampling, namespace=namespace)))
    engine.check_integrity()
    for sequence in result.sequences:
        engine.release(sequence)
    engine.check_integrity()
    return result
