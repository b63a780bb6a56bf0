"""Values over the wire: the same on the other side, and nothing else."""

import json
from dataclasses import replace
from typing import Any

import pytest

from kvchat.app.ipc.wire import ProtocolError, plain, plain_error, restored, restored_error
from kvchat.engine.api.config import Capacity, PoolCapacity
from kvchat.engine.api.events import (
    FinishReason,
    LoadChoice,
    Loaded,
    LoadEstimate,
    LoadPlanned,
    RequestFinished,
    SampleEnd,
    Timings,
    TokenEmitted,
    TokenLogprobs,
    Usage,
)
from kvchat.engine.api.ids import RequestId, SequenceId
from kvchat.engine.api.request import Request
from kvchat.engine.api.sampling_params import SamplingParams
from kvchat.errors import ContextOverflow, EngineFailed, InvalidRequest, PoolExhausted
from tests.scripted_engine import ScriptedEngine
from tests.ui.scripted_engine import SLIDING, HeldTokens, scripted_snapshot

pytestmark = pytest.mark.pure

REQUEST, SEQUENCE = RequestId(3), SequenceId(7)

CAPACITY = Capacity(
    activation_bytes=1,
    device_bytes=2,
    host_bytes=3,
    num_blocks=4,
    num_tokens=5,
    max_concurrency=1.5,
    pools=(PoolCapacity(group=0, kind="full", num_blocks=4, num_tokens=None, max_concurrency=2),),
)
VALUES = [
    Request(
        token_ids=(1, 2, 3),
        sampling=SamplingParams(max_tokens=None, temperature=0.7, top_k=4, seed=1, stop_token_ids=(9,)),
        owner="abc",
        sequence=SEQUENCE,
        namespace="imported",
    ),
    RequestFinished(
        request_id=REQUEST,
        sequence=SEQUENCE,
        reason=FinishReason.LENGTH,
        usage=Usage(prompt_tokens=3, cached_tokens=2, computed_tokens=1, completion_tokens=4),
        loaded=Loaded(device=1, host=0, disk=1),
        timings=Timings(ttft_s=0.5),
        samples=(
            SampleEnd(
                sample=0,
                sequence=SEQUENCE,
                reason=FinishReason.LENGTH,
                completion_tokens=4,
                mean_logprob=-1.0,
            ),
        ),
    ),
    LoadPlanned(
        request_id=REQUEST,
        sequence=SEQUENCE,
        estimate=LoadEstimate(choice=LoadChoice.BOTH, load_s=1, compute_s=2.5, expected_s=0.7),
    ),
    TokenEmitted(
        request_id=REQUEST,
        sequence=SEQUENCE,
        token_id=5,
        logprobs=TokenLogprobs(logprob=-0.1, top=((5, -0.1),)),
    ),
    replace(ScriptedEngine(lambda prompt: ()).info(), capacity=CAPACITY),
    scripted_snapshot([HeldTokens(owner="a", num_tokens=9, running=True)], layers=[SLIDING], kept_tokens=5),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_a_value_is_the_same_on_the_other_side(value: Any) -> None:
    assert restored(type(value), json.loads(json.dumps(plain(value)))) == value


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        ({"token_ids": "many"}, ProtocolError),
        ({"token_ids": [1, None]}, ProtocolError),
        ({"token_ids": 5}, ProtocolError),
        ({"owner": 5}, ProtocolError),
        ({"sequence": "x"}, ProtocolError),
        ({"sampling": {"temperature": "hot"}}, ProtocolError),
        ({"sampling": {"max_tokens": 0}}, InvalidRequest),
    ],
)
def test_what_is_no_such_value_is_refused(change: dict[str, object], refusal: type[Exception]) -> None:
    data = plain(VALUES[0]) | change
    with pytest.raises(refusal):
        restored(Request, data)


def test_errors_keep_their_kind_and_words() -> None:
    error = restored_error(plain_error(ContextOverflow("too long; shorten it")))
    assert (type(error), str(error)) == (ContextOverflow, "too long; shorten it")
    full = restored_error(plain_error(PoolExhausted("no room", ("int8", "int4"))))
    assert isinstance(full, PoolExhausted)
    assert (str(full), full.fits_in) == ("no room", ("int8", "int4"))
    for strange in ({"kind": "os", "message": "x"}, {"kind": "KeyError"}, None, 5):
        assert type(restored_error(strange)) is EngineFailed
    for strange in (5, None, "int8"):
        full = restored_error({"kind": "PoolExhausted", "message": "no room", "fits_in": strange})
        assert isinstance(full, PoolExhausted)
        assert (str(full), full.fits_in) == ("no room", ())
