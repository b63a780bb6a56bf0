"""What windows need: each looks for garbage once, and would look through all that earlier tests have left."""

import gc

import pytest


@pytest.fixture(autouse=True)
def _only_what_is_made_here_is_looked_through() -> None:
    gc.collect()
    gc.freeze()
