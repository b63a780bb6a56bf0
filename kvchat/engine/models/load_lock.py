"""One model at a time is built or filled.

transformers changes torch for the whole process meanwhile: the default dtype, the initialisers, `linspace`.
Each load puts back what it found; of two at once, the later puts back what the other had changed.
"""

from threading import Lock
from typing import Final

ALONE: Final = Lock()
"""Held while a library builds a model or fills it with weights."""
