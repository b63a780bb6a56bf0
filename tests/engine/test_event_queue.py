"""Events reach whoever waits for them in their order, and nobody waits for what cannot come any more."""

from threading import Thread

import pytest

from kvchat.engine.api.event_queue import EventQueue
from kvchat.engine.api.events import TokenEmitted
from kvchat.engine.api.ids import RequestId, SequenceId
from kvchat.errors import EngineFailed

pytestmark = pytest.mark.pure


def token(token_id: int) -> TokenEmitted:
    return TokenEmitted(request_id=RequestId(1), sequence=SequenceId(1), token_id=token_id)


def test_what_came_is_taken_once_and_in_its_order() -> None:
    queue = EventQueue(lambda: None)
    for number in range(3):
        queue.push(token(number))
    assert queue.take_events(0) == (token(0), token(1), token(2))
    assert queue.take_events(0) == ()


def test_what_came_before_a_failure_is_taken_before_it_is_told() -> None:
    queue = EventQueue(lambda: EngineFailed("gone"))
    queue.push(token(5))
    assert queue.take_events(60) == (token(5),)
    with pytest.raises(EngineFailed, match="gone"):
        queue.take_events(60)


def test_whoever_waits_is_woken_by_an_event_and_by_a_failure() -> None:
    failures: list[EngineFailed] = []
    queue = EventQueue(lambda: failures[0] if failures else None)
    pushing = Thread(target=queue.push, args=(token(7),))
    pushing.start()
    assert queue.take_events(60) == (token(7),)
    pushing.join()

    def fail() -> None:
        failures.append(EngineFailed("gone"))
        queue.wake()

    failing = Thread(target=fail)
    failing.start()
    with pytest.raises(EngineFailed):
        queue.take_events(60)
    failing.join()
