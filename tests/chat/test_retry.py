"""Another answer can differ from the one before."""

import pytest

from kvchat.chat.candidates.samples import DIFFERING_TEMPERATURE, differing
from kvchat.engine.api.sampling_params import SamplingParams
from tests.chat.desk import Desk

pytestmark = pytest.mark.pure


def test_another_answer_is_sampled_where_the_settings_would_give_the_same_again(desk: Desk) -> None:
    conversation = desk.talk("Hello")
    list(desk.chat.retry(conversation))
    exactly_so = SamplingParams(max_tokens=4)
    list(desk.chat.retry(conversation, exactly_so))
    first, again, as_asked = (request.sampling for request in desk.engine.requests)
    assert (first.temperature, again.temperature, as_asked.temperature) == (0.0, DIFFERING_TEMPERATURE, 0.0)
    assert desk.chat.variants.retry_temperature == DIFFERING_TEMPERATURE


def test_the_first_answer_to_a_question_is_sampled_as_the_settings_say(desk: Desk) -> None:
    conversation = desk.talk("Hello")
    unanswered = desk.chat.fork(conversation, conversation.turns[0].id)
    list(desk.chat.retry(unanswered))
    assert desk.engine.requests[-1].sampling.temperature == 0.0


def test_a_seed_gives_the_same_answer_and_a_temperature_of_ones_own_stays() -> None:
    sampling = differing(SamplingParams(temperature=0.3, seed=7, beam_width=None))
    assert (sampling.temperature, sampling.seed, sampling.n) == (0.3, None, 1)


def test_answers_are_sampled_in_another_way_from_the_next_one_on(desk: Desk) -> None:
    conversation = desk.talk("Hello")
    desk.chat.use_sampling(SamplingParams(temperature=0.3, max_tokens=9))
    list(desk.chat.send(conversation, "Hello again"))
    list(desk.chat.retry(conversation))
    first, second, again = (request.sampling for request in desk.engine.requests)
    assert (first.temperature, second.temperature, again.temperature) == (0.0, 0.3, 0.3)
    assert desk.chat.variants.retry_temperature is None
