"""A format that is added from this folder alone keeps every promise: int3."""

from collections.abc import Iterator

import pytest

from kvchat.engine.api import cache_format
from kvchat.engine.formats import format_table, groups_in_format
from kvchat.engine.formats.full.spec import FullSpec
from tests.engine.formats.conformance import Promises, Row, StoringPromises, TravellingPromises
from tests.engine.formats.int3.attend import Int3Attention
from tests.engine.formats.int3.codec import Int3Codec
from tests.engine.formats.int3.spec import Int3Spec, int3_layer

pytestmark = pytest.mark.cpu


@pytest.fixture(scope="module", autouse=True)
def _registered() -> Iterator[None]:
    tables = cache_format.NAMES, groups_in_format._FORMS, format_table._BACKENDS
    before = [dict(table) for table in tables]
    groups_in_format.register_form(FullSpec.kind, "int3", int3_layer)
    backend = format_table.Backend(attention=lambda pool, _: Int3Attention(pool), codec=Int3Codec)
    format_table.register_backend(Int3Spec, backend)
    yield
    for table, old in zip(tables, before, strict=True):
        table.clear()
        table.update(old)


class TestInt3(Promises, StoringPromises, TravellingPromises):
    @pytest.fixture
    def row(self) -> Row:
        return Row(kind="llama", text="int3", deviation=(1e-2, 0.6))
