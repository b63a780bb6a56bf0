"""A format that is added from this folder alone keeps every promise: int3."""

from collections.abc import Iterator

import pytest

from kvchat.engine.api import cache_format
from kvchat.engine.formats.format_table import Backend, register_backend
from kvchat.engine.formats.full.spec import FullSpec
from kvchat.engine.formats.groups_in_format import register_form
from tests.engine.formats.conformance import Promises, Row, StoringPromises, TravellingPromises
from tests.engine.formats.int3.attend import Int3Attention
from tests.engine.formats.int3.codec import Int3Codec
from tests.engine.formats.int3.spec import Int3Spec, int3_layer

pytestmark = pytest.mark.cpu


@pytest.fixture(scope="module", autouse=True)
def _registered() -> Iterator[None]:
    register_form(FullSpec.kind, "int3", int3_layer)
    register_backend(Int3Spec, Backend(attention=lambda pool, _: Int3Attention(pool), codec=Int3Codec))
    yield
    del cache_format.NAMES["int3"]


class TestInt3(Promises, StoringPromises, TravellingPromises):
    @pytest.fixture
    def row(self) -> Row:
        return Row(kind="llama", text="int3", deviation=(1e-2, 0.6))
