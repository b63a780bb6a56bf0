"""Tells an engine the story of `told` as a GPU computes it: every kernel under the Triton interpreter, blocks
in host memory, values loaded on a lane beside the keys.

A program of its own, with a model's directory, one for blocks, and a file for what came of it.
"""

import os
import sys
from dataclasses import asdict
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"

import torch

from kvchat.engine.kernels.health import HEALTH
from tests.engine.formats.shadow.told import tell
from tests.engine.kernels.interpreted import compute_directly

if __name__ == "__main__":
    compute_directly()
    model_dir, cache_dir, out = map(Path, sys.argv[1:])
    told = tell(model_dir, cache_dir)
    torch.save(asdict(told) | {"problems": HEALTH.problems}, out)
