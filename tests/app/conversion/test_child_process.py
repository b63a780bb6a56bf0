"""A gauge in a process of its own says what went wrong as an engine does."""

from pathlib import Path

import pytest

from kvchat.app.config import read_settings
from kvchat.app.conversion.child_process import gauged
from kvchat.errors import EngineFailed

pytestmark = pytest.mark.pure


def test_a_gauge_that_cannot_keep_its_figures_fails_as_an_engine_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    with pytest.raises(EngineFailed, match="figures of the gauge cannot be kept"):
        gauged(read_settings(), "talk", "main", "int4")


def test_a_gauge_whose_figures_are_missing_fails_as_an_engine_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process ended well and wrote none."""
    quiet = tmp_path / "quiet"
    quiet.write_text("#!/bin/sh\nexit 0\n")
    quiet.chmod(0o700)
    monkeypatch.setattr("sys.executable", str(quiet))
    with pytest.raises(EngineFailed, match="figures of the gauge cannot be kept or read"):
        gauged(read_settings(), "talk", "main", "int4")
