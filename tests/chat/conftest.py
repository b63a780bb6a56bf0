"""A desk for every test of the chat."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvchat.session.template.chat_template import ChatTemplate
from tests.chat.desk import Desk
from tests.tiny_models import STARTER, write_model


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> ChatTemplate:
    return ChatTemplate.from_dir(write_model(tmp_path_factory.mktemp("model"), STARTER))


@pytest.fixture
def desk(tmp_path: Path, template: ChatTemplate) -> Iterator[Desk]:
    desk = Desk(tmp_path, template)
    yield desk
    desk.store.close()
