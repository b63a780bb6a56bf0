"""A desk for every test of the chat."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvchat.session.template.chat_template import ChatTemplate
from tests.chat.desk import Desk


@pytest.fixture
def desk(tmp_path: Path, template: ChatTemplate) -> Iterator[Desk]:
    desk = Desk(tmp_path, template)
    yield desk
    desk.store.close()
