"""Compiles the native kernels when kvchat is installed or packed, where there is a compiler.

Without one the package is the same, pure Python, and computes with plain torch.
"""

import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).parent


class NativeKernels(BuildHookInterface):
    """Puts the library beside its sources; `build.py` there does the work and needs no dependency."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        sys.path.insert(0, str(ROOT))
        try:
            from kvchat.engine.kernels.native.build import build
        finally:
            sys.path.remove(str(ROOT))
        made = build()
        if made.problem is not None:
            self.app.display_warning(f"native kernels: {made.problem}")
        if made.path is not None:
            build_data["artifacts"].append(made.path.relative_to(ROOT).as_posix())
            build_data["pure_python"] = False
            build_data["infer_tag"] = True
