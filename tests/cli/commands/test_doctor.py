"""The doctor tells what is here, what is wrong and what to do, and changes nothing."""

from pathlib import Path
from typing import Any

import pytest

from kvchat.engine.api.snapshot import Tier
from kvchat.engine.kernels.health import HEALTH
from kvchat.engine.memory.rates import Direction, Rates
from kvchat.engine.tiering.persisted_rates import PersistedRates
from tests.cli.command_line import Run
from tests.cli.commands.test_models import cached

pytestmark = pytest.mark.cpu

Checks = dict[str, dict[str, Any]]


@pytest.fixture
def examined(run: Run) -> Any:
    def examine(*words: str, code: int = 0) -> Checks:
        """Return what `doctor --json` says, by the names of its checks."""
        report = run.json("doctor", *words, code=code)
        states = {check["state"] for check in report["checks"]}
        assert report["state"] == next(state for state in ("broken", "look", "ok") if state in states)
        return {check["name"]: check for check in report["checks"]}

    return examine


def test_an_empty_home_is_well_and_stays_empty(home: Path, examined: Any) -> None:
    checks = examined("--no-model")
    assert {check["state"] for check in checks.values()} == {"ok"}
    assert checks["versions"]["kvchat"]
    assert checks["processor"]["num_cores"] >= 1
    assert "native kernels" in checks["processor"]["kernels"]
    assert checks["device"]["free_bytes"] > 0
    assert checks["data"]["mode"] is None
    assert checks["blocks"]["num_blocks"] == 0
    assert "model" not in checks
    assert not home.exists()


def test_capacity_is_what_the_engine_measured(tiny_model: Path, examined: Any) -> None:
    checks = examined("-m", str(tiny_model), "--kv-device-bytes", "4MiB")
    model, capacity = checks["model"], checks["capacity"]
    assert len(bytes.fromhex(model["fingerprint"])) == 32
    assert (model["route"], model["dtype"], model["device"]) == ("attention", "float32", "cpu")
    assert 0 < capacity["device_bytes"] <= 4 * 2**20
    assert capacity["num_blocks"] == sum(pool["num_blocks"] for pool in capacity["pools"])
    assert capacity["max_concurrency"] == min(pool["max_concurrency"] for pool in capacity["pools"])
    assert {pool["kind"] for pool in capacity["pools"]} == {"full", "sliding"}


def test_a_model_that_cannot_be_loaded_is_told_with_its_exit_code(examined: Any, tmp_path: Path) -> None:
    checks = examined("-m", str(tmp_path / "nowhere"), code=4)
    assert checks["model"]["state"] == "broken"
    assert "-m starter" in checks["model"]["advice"]


def test_a_cache_that_does_not_fit_is_told_with_its_exit_code(tiny_model: Path, examined: Any) -> None:
    checks = examined("-m", str(tiny_model), "--kv-device-bytes", "900TiB", code=6)
    assert "--kv-device-bytes" in checks["model"]["advice"]


def test_a_directory_that_others_can_read_is_told_with_what_to_do(home: Path, examined: Any) -> None:
    data_dir = home / "data"
    data_dir.mkdir(parents=True, mode=0o755)
    data_dir.chmod(0o755)
    data = examined("--no-model", "--data-dir", str(data_dir))["data"]
    assert (data["state"], data["mode"]) == ("look", "0755")
    assert f"chmod 700 {data_dir}" in data["advice"]


def test_a_file_in_the_place_of_a_directory_is_broken(tmp_path: Path, examined: Any) -> None:
    (tmp_path / "file").write_text("")
    data = examined("--no-model", "--data-dir", str(tmp_path / "file"), code=1)["data"]
    assert "KVCHAT_HOME" in data["advice"]


def test_damaged_conversations_are_told(tmp_path: Path, examined: Any) -> None:
    (tmp_path / "sessions.db").write_bytes(b"SQLite format 3\0" + b"nothing that is in one" * 400)
    sessions = examined("--no-model", "--data-dir", str(tmp_path), code=1)["sessions"]
    assert sessions["state"] == "broken"


def test_blocks_that_were_found_damaged_are_counted(tmp_path: Path, examined: Any) -> None:
    (tmp_path / "kv" / "quarantine").mkdir(parents=True)
    (tmp_path / "kv").chmod(0o700)
    (tmp_path / "kv" / "quarantine" / "block").write_bytes(b"")
    blocks = examined("--no-model", "--cache-dir", str(tmp_path / "kv"))["blocks"]
    assert (blocks["state"], blocks["num_damaged"]) == ("look", 1)


def test_people_read_one_line_for_each_thing_and_what_to_do(tmp_path: Path, run: Run) -> None:
    (tmp_path / "file").write_text("")
    told = run.out("doctor", "--no-model", "--data-dir", str(tmp_path / "file"), code=1)
    assert "ok      versions" in told
    assert "broken  data" in told
    assert "-> " in told
    assert "all is well" not in told


def test_kernels_that_failed_their_trial_are_told_behind_the_model(tiny_model: Path, examined: Any) -> None:
    """They are tried as the model is loaded, after the machine has been described."""
    assert "gpu kernels" not in examined("-m", str(tiny_model))
    HEALTH.refuse("attention", "its numbers are 0.5 away")
    try:
        checks = examined("-m", str(tiny_model))
    finally:
        HEALTH.problems.clear()
    assert checks["gpu kernels"]["refused"] == {"attention": "its numbers are 0.5 away"}
    assert checks["gpu kernels"]["state"] == "look"
    assert [*checks].index("gpu kernels") > [*checks].index("model")


def test_each_check_is_a_line_of_its_own_for_programs_that_read_lines(examined: Any, run: Run) -> None:
    checks = examined("--no-model")
    lines = run.lines("doctor", "--no-model", "--ndjson")
    assert list(dict.fromkeys(line["name"] for line in lines)) == [*checks]
    assert lines[0] == checks["versions"]


def test_the_speed_of_the_disk_is_what_was_measured_while_blocks_moved(home: Path, examined: Any) -> None:
    assert examined("--no-model")["disk speed"]["reads_bytes_per_s"] is None
    rates = Rates()
    for _ in range(3):
        rates.observe_move(Tier.DISK, Direction.LOAD, 2**30, 0.5)
    PersistedRates(home / "cache", "00", "cpu").save(rates)
    speed = examined("--no-model")["disk speed"]
    assert speed["reads_bytes_per_s"] == pytest.approx(2**31, rel=1e-3)
    assert speed["writes_bytes_per_s"] is None


def test_models_of_the_hub_cache_are_counted_with_those_that_cannot_be_loaded(
    model_dir: Path, tmp_path: Path, examined: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    cached(tmp_path / "hub", "someone/whole", model_dir)
    (cached(tmp_path / "hub", "someone/half", model_dir) / "model.safetensors").unlink()
    found = examined("--no-model")["hub cache"]
    assert (found["num_models"], found["num_broken"]) == (2, 1)
    assert found["path"] == str(tmp_path / "hub")
    assert found["num_bytes"] == (model_dir / "model.safetensors").stat().st_size
