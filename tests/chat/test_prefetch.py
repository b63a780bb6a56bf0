"""What is going to be answered next is loaded ahead: the session that is opened, or merely selected."""

import pytest

from tests.chat.desk import Desk

pytestmark = pytest.mark.pure


def test_opening_a_session_begins_to_load_its_path(desk: Desk) -> None:
    conversation = desk.talk("Hello")
    opened = desk.chat.open(conversation.session.id)
    assert desk.engine.prefetched == [list(opened.token_ids or ())]
    assert opened.token_ids


def test_selecting_a_session_loads_it_and_leaving_the_list_ends_that(desk: Desk) -> None:
    conversation = desk.talk("Hello")
    desk.chat.prefetch(conversation.session.id, None, conversation)
    desk.chat.prefetch(None)
    assert desk.engine.prefetched == [list(conversation.token_ids or ()), []]
