"""The native kernels of one level, and the number of threads as it was."""

from collections.abc import Iterator

import pytest
import torch

from kvchat.engine.kernels.native.library import Library
from tests.engine.kernels import native_library


@pytest.fixture
def library(level: str) -> Library:
    return native_library.native(level)


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
