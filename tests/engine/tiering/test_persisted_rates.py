"""What a process has measured reaches the next one, and nothing that is damaged or of another does."""

import json
import os
from hashlib import blake2b
from pathlib import Path

import pytest

from kvchat.engine.api.snapshot import Tier
from kvchat.engine.memory.rates import LEAST_OWN, WINDOW, Direction, Measured, Rates
from kvchat.engine.tiering.persisted_rates import FILE_NAME, MAX_RECORDS, VERSION, PersistedRates
from kvchat.platform.cached_results import MAX_BYTES
from tests.damage import flipped

pytestmark = pytest.mark.pure

HERE = ("ab" * 32, "cpu: a processor, 2 threads")
OTHER_WEIGHTS = ("cd" * 32, HERE[1])
OTHER_DEVICE = (HERE[0], "a card")
NAME = " ".join(HERE)
NOTHING = Measured()


def measured_here() -> Rates:
    rates = Rates()
    rates.observe_prefill(64, 0, 0.64)
    rates.observe_prefill(64, 4096, 1.28)
    for tier, seconds in ((Tier.DISK, 2.0), (Tier.HOST, 0.5)):
        rates.observe_move(tier, Direction.LOAD, 1000, seconds)
    rates.observe_move(Tier.HOST, Direction.STORE, 1000, 0.25)
    return rates


def keep(cache_dir: Path, rates: Rates, computing: tuple[str, str] = HERE) -> Path:
    PersistedRates(cache_dir, *computing).save(rates)
    return cache_dir / FILE_NAME


def load(cache_dir: Path, computing: tuple[str, str] = HERE) -> Measured:
    return PersistedRates(cache_dir, *computing).load()


def test_the_next_process_begins_with_what_was_measured(tmp_path: Path) -> None:
    keep(tmp_path / "new", measured_here())
    rates = Rates(load(tmp_path / "new"))
    assert rates.seconds_to_compute(10) == pytest.approx(0.1)
    assert rates.seconds_to_compute(10, 4096) == pytest.approx(0.2)
    loads = [rates.seconds_to_load(tier, 1000) for tier in (Tier.DISK, Tier.HOST)]
    assert loads == pytest.approx([2.0, 0.5])
    assert rates.measured().moves[Tier.HOST, Direction.STORE] == pytest.approx([0.25e-3])
    assert rates.moved_bytes(Tier.DISK, Direction.LOAD) == 0


def test_what_a_process_measures_itself_replaces_what_it_began_with() -> None:
    rates = Rates(
        Measured(prefill={0: (0.01,) * WINDOW}, moves={(Tier.DISK, Direction.LOAD): (1.0,) * WINDOW})
    )
    for _ in range(LEAST_OWN - 1):
        rates.observe_prefill(100, 0, 500.0)
        rates.observe_move(Tier.DISK, Direction.LOAD, 1, 500.0)
    assert rates.seconds_to_compute(1) == pytest.approx(0.01)
    assert rates.seconds_to_load(Tier.DISK, 1) == pytest.approx(1.0)
    rates.observe_prefill(100, 0, 500.0)
    rates.observe_move(Tier.DISK, Direction.LOAD, 1, 500.0)
    assert rates.seconds_to_compute(1) == pytest.approx(5.0)
    assert rates.seconds_to_load(Tier.DISK, 1) == pytest.approx(500.0)


def test_processes_that_measure_once_each_learn_a_lasting_change_together(tmp_path: Path) -> None:
    keep(tmp_path, measured_here())
    for _ in range(WINDOW):
        kept = PersistedRates(tmp_path, *HERE)
        rates = Rates(kept.load())
        rates.observe_prefill(64, 0, 6.4)
        kept.save(rates)
    assert Rates(load(tmp_path)).seconds_to_compute(10) == pytest.approx(1.0)


def test_another_device_begins_anew_and_other_weights_know_only_how_fast_bytes_move(tmp_path: Path) -> None:
    keep(tmp_path, measured_here())
    assert load(tmp_path, OTHER_DEVICE) == NOTHING
    others = load(tmp_path, OTHER_WEIGHTS)
    assert others.prefill == {}
    assert others.moves == load(tmp_path).moves != {}


def test_where_nothing_was_measured_nothing_is_written(tmp_path: Path) -> None:
    assert not keep(tmp_path, Rates()).exists()
    file = keep(tmp_path, measured_here())
    before = file.stat().st_ino
    kept = PersistedRates(tmp_path, *HERE)
    kept.save(Rates(kept.load()))
    assert file.stat().st_ino == before
    PersistedRates(None, *HERE).save(measured_here())
    assert PersistedRates(None, *HERE).load() == NOTHING


def test_what_a_killed_process_left_half_written_goes_and_what_is_being_written_stays(tmp_path: Path) -> None:
    left, current = tmp_path / ".rates.0000004d", tmp_path / ".rates.0000004e"
    for file in (left, current):
        file.write_bytes(b"half")
    os.utime(left, (0, 0))
    keep(tmp_path, measured_here())
    assert (left.exists(), current.exists()) == (False, True)


def test_a_file_with_a_flipped_bit_or_that_ends_early_counts_as_no_file_and_is_written_anew(
    tmp_path: Path,
) -> None:
    """A digit that became another would be a wrong figure that looks like a right one."""
    file = keep(tmp_path, measured_here())
    data, whole = file.read_bytes(), load(tmp_path)
    for at in range(len(data)):
        for damaged in (data[:at], flipped(data, at, 1 << at % 8)):
            file.write_bytes(damaged)
            assert load(tmp_path) == NOTHING, at
    keep(tmp_path, measured_here())
    assert load(tmp_path) == whole


@pytest.mark.parametrize(
    "fields",
    [
        None,
        {"version": VERSION, "records": [["name"]]},
        {"version": VERSION, "records": [[NAME, None]]},
        {"version": VERSION, "records": [[NAME, {"prefill": [[0, []]], "moves": []}]]},
        {"version": VERSION, "records": [[NAME, {"prefill": [[0, [1e999]]], "moves": []}]]},
        {"version": VERSION, "records": [[NAME, {"prefill": [[0, ["x"]]], "moves": []}]]},
        {"version": VERSION, "records": [[NAME, {"prefill": [], "moves": [["disk up", [1.0]]]}]]},
        {"version": VERSION + 1, "records": [[NAME, {"prefill": [[0, [1.0]]], "moves": []}]]},
    ],
)
def test_what_is_not_in_the_form_of_this_version_counts_as_no_file(tmp_path: Path, fields: object) -> None:
    line = json.dumps(fields).encode()
    digest = blake2b(line, digest_size=16).hexdigest().encode()
    (tmp_path / FILE_NAME).write_bytes(digest + b"\n" + line)
    assert load(tmp_path) == NOTHING


def test_a_file_of_any_size_and_a_place_that_is_none_are_no_error(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(bytes(MAX_BYTES + 1))
    assert load(tmp_path) == NOTHING
    (tmp_path / FILE_NAME).unlink()
    (tmp_path / FILE_NAME).mkdir()
    keep(tmp_path, measured_here())
    assert load(tmp_path) == NOTHING
    assert os.listdir(tmp_path) == [FILE_NAME]


def test_the_file_is_bounded_and_keeps_the_newest_records(tmp_path: Path) -> None:
    rates = measured_here()
    for _ in range(3 * WINDOW):
        for position in range(0, 2**20, 2**16):
            rates.observe_prefill(64, position, 0.123456789)
    many = [(f"{n:064x}", f"{n}") for n in range(MAX_RECORDS + 5)]
    for each in many:
        keep(tmp_path, rates, each)
    assert (tmp_path / FILE_NAME).stat().st_size < MAX_BYTES // 2
    found = [bool(load(tmp_path, each).prefill) for each in many]
    assert found == [False] * 5 + [True] * MAX_RECORDS
