"""Python's bytecode for processes whose start is measured: kept, as after any first start."""

from pathlib import Path


def kept_bytecode(directory: Path) -> dict[str, str]:
    """Return variables with which modules are compiled once, also where the environment keeps Python from
    writing that down. What is to be measured runs once before."""
    return {"PYTHONPYCACHEPREFIX": str(directory / "compiled"), "PYTHONDONTWRITEBYTECODE": ""}
