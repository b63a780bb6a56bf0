"""Layers of settings: who overrules whom, and what is refused with which words."""

import json
from pathlib import Path

import pytest

from kvchat.app.config import KEY_NAMES, KEYS, Settings, read_settings, value_of
from kvchat.errors import ConfigError

pytestmark = pytest.mark.pure


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    home.mkdir()
    return home


@pytest.fixture
def cwd(tmp_path: Path) -> Path:
    cwd = tmp_path / "project"
    cwd.mkdir()
    return cwd


def read(home: Path, cwd: Path, environ: dict[str, str] | None = None, **flags: object) -> Settings:
    dotted = {name.replace("__", "."): value for name, value in flags.items()}
    return read_settings(dotted, environ={"KVCHAT_HOME": str(home)} | (environ or {}), cwd=cwd)


def test_without_any_layer_the_starter_model_answers_greedily(home: Path, cwd: Path) -> None:
    settings = read(home, cwd)
    assert settings.model == "starter"
    assert settings.sampling.is_greedy
    assert settings.sampling.max_tokens == 1024


def test_the_file_of_the_system_counts_where_nothing_else_says_so_and_not_beside_a_home(
    tmp_path: Path, cwd: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("CONFIG_HOME", "user"), ("CONFIG_DIRS", "system"), ("DATA_HOME", "data")):
        monkeypatch.setenv(f"XDG_{name}", str(tmp_path / value))
    for place, text in (("system", 'model = "system"\nsystem = "system"'), ("user", 'model = "user"')):
        (tmp_path / place / "kvchat").mkdir(parents=True)
        (tmp_path / place / "kvchat" / "config.toml").write_text(text)
    settings = read_settings(environ={}, cwd=cwd)
    assert (settings.model, settings.system) == ("user", "system")
    settings = read_settings(environ={"KVCHAT_SYSTEM": "environment"}, cwd=cwd)
    assert settings.system == "environment"
    assert read_settings(environ={"KVCHAT_HOME": str(tmp_path / "home")}, cwd=cwd).system == ""


def test_an_unknown_key_is_refused_with_file_key_and_the_nearest_one(home: Path, cwd: Path) -> None:
    (home / "config.toml").write_text("[sampling]\ntemprature = 1\n")
    with pytest.raises(
        ConfigError, match=r"config\.toml.*sampling\.temprature.*did you mean 'sampling.temperature'"
    ):
        read(home, cwd)


@pytest.mark.parametrize(
    "line",
    [
        'paths.data_dir = "/tmp"',
        "engine.disk_bytes = 1",
        'engine.device = "cpu"',
        'remote.url = "http://elsewhere/v1"',
    ],
)
def test_a_project_file_sets_neither_paths_nor_budgets_nor_devices(home: Path, cwd: Path, line: str) -> None:
    (cwd / ".kvchat.toml").write_text(line)
    with pytest.raises(ConfigError, match="a project file may not"):
        read(home, cwd)
    (cwd / ".kvchat.toml").unlink()
    (home / "config.toml").write_text(line)
    read(home, cwd)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("model = ", "not valid TOML"),
        ("model = 3", "model must be text"),
        ("[sampling]\ntemperature = -1", "temperature must be 0 or more"),
        ("[sampling]\nseed = 1.5", "seed must be a whole number"),
        ('[engine]\ndevice = "gpu"', "device must be one of auto, cpu, cuda, mps"),
        ('[engine]\ndisk_bytes = "many"', "disk_bytes must be a size such as 2GiB"),
        ("[engine]\nblock_size = 0", "block_size must be 1 or more"),
        ("[engine.deep]\nblock_size = 64", "there is no setting 'engine.deep'"),
        ("[display]\ncolor = 2", "color must be true or false"),
        ("model.name = 1", "model"),
        (b"\xff\xfe\x00", "not valid TOML"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_in_its_name(
    home: Path, cwd: Path, text: str | bytes, complaint: str
) -> None:
    (home / "config.toml").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError, match=complaint) as refusal:
        read(home, cwd)
    assert str(home / "config.toml") in str(refusal.value)
    assert refusal.value.exit_code == 3


def test_variables_are_read_like_files_and_refused_by_name(home: Path, cwd: Path) -> None:
    variables = {
        "KVCHAT_KV_DISK_BYTES": "2GiB",
        "KVCHAT_TOP_K": "40",
        "KVCHAT_STATS": "no",
        "KVCHAT_DTYPE": "float32",
    }
    settings = read(home, cwd, variables)
    assert settings.engine.disk_bytes == 2 * 1024**3
    assert (settings.sampling.top_k, settings.display.stats, settings.engine.dtype) == (40, False, "float32")
    with pytest.raises(ConfigError, match="KVCHAT_SEED: seed must be a whole number"):
        read(home, cwd, {"KVCHAT_SEED": "x"})
    with pytest.raises(ConfigError, match=r"KVCHAT_MODLE.*did you mean 'KVCHAT_MODEL'"):
        read(home, cwd, {"KVCHAT_MODLE": "x"})


def test_a_home_holds_everything(home: Path, cwd: Path) -> None:
    paths = read(home, cwd).paths
    for path in (paths.sessions_db, paths.cache_dir, paths.log_file, paths.config_file, paths.runtime_dir):
        assert path.is_relative_to(home)


def test_without_a_home_the_xdg_directories_are_used(
    tmp_path: Path, cwd: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CONFIG", "DATA", "CACHE", "STATE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name))
    paths = read_settings(environ={}, cwd=cwd).paths
    assert paths.config_file == tmp_path / "CONFIG" / "kvchat" / "config.toml"
    assert paths.data_dir == tmp_path / "DATA" / "kvchat"
    assert paths.cache_dir == tmp_path / "CACHE" / "kvchat"
    assert paths.state_dir == tmp_path / "STATE" / "kvchat"


def test_directories_can_be_moved_and_the_engine_caches_where_the_paths_say(home: Path, cwd: Path) -> None:
    settings = read(home, cwd, {"KVCHAT_DATA_DIR": "~/words"}, paths__cache_dir=cwd / "blocks")
    assert settings.paths.data_dir == Path("~/words").expanduser()
    assert settings.paths.cache_dir == settings.engine.cache_dir == cwd / "blocks"


def test_a_named_configuration_file_replaces_the_users_and_must_exist(home: Path, cwd: Path) -> None:
    (home / "config.toml").write_text('model = "user"')
    other = home / "other.toml"
    other.write_text('system = "other"')
    settings = read(home, cwd, {"KVCHAT_CONFIG": str(other)})
    assert (settings.model, settings.system) == ("starter", "other")
    with pytest.raises(ConfigError, match="there is no configuration file"):
        read(home, cwd, {"KVCHAT_CONFIG": str(home / "none.toml")})


def test_every_setting_reaches_its_field_by_file_and_by_variable(home: Path, cwd: Path) -> None:
    written = {
        "model": "m",
        "system": "s",
        "when_full": "compress:int4",
        "sampling.max_tokens": 5,
        "sampling.temperature": 0.5,
        "sampling.top_p": 0.5,
        "sampling.top_k": 5,
        "sampling.min_p": 0.5,
        "sampling.repetition_penalty": 1.5,
        "sampling.seed": 5,
        "display.color": True,
        "display.stats": False,
        "display.theme": "nord",
        "engine.device": "cpu",
        "engine.dtype": "float32",
        "engine.weights": "int8",
        "engine.adapter": "/adapter",
        "engine.cache_format": "fp8",
        "engine.block_size": 16,
        "engine.device_bytes": 5,
        "engine.host_bytes": 6,
        "engine.disk_bytes": 5,
        "engine.disk_daily_bytes": 7,
        "engine.eviction": "lru",
        "engine.idle_demote_s": 5.5,
        "engine.max_batch_tokens": 5,
        "engine.max_context": 5,
        "engine.speculate": "off",
        "engine.threads": 2,
        **{f"keys.{name}": f"f{number}" for number, name in enumerate(KEY_NAMES, 1)},
        "remote.url": "http://127.0.0.1:8000/v1",
        "remote.key_file": "/key",
        "paths.data_dir": "/data",
        "paths.cache_dir": "/cache",
    }
    assert written.keys() == KEYS.keys()
    by_variable = read(home, cwd, {KEYS[name].variable: str(value) for name, value in written.items()})
    lines = (f"{name} = {json.dumps(value)}" for name, value in written.items())
    (home / "config.toml").write_text("\n".join(lines))
    assert read(home, cwd) == by_variable
    for name, value in written.items():
        assert str(value_of(by_variable, name)) == str(value), name


def test_the_word_none_lifts_a_limit(home: Path, cwd: Path) -> None:
    assert read(home, cwd).engine.disk_bytes == 20 * 2**30
    assert read(home, cwd, {"KVCHAT_KV_DISK_BYTES": "none"}).engine.disk_bytes is None
    assert read(home, cwd, sampling__max_tokens="none").sampling.max_tokens is None


def test_what_happens_when_the_cache_is_full_is_one_of_two_things(home: Path, cwd: Path) -> None:
    assert read(home, cwd).when_full == "evict"
    for good in ("evict", "compress", "compress:int8", "compress:int2"):
        assert read(home, cwd, {"KVCHAT_WHEN_FULL": good}).when_full == good
    for bad in ("", "drop", "evict:int8", "compress:", "compress:exact", "compress:window", "compress:int3"):
        with pytest.raises(ConfigError, match="compress"):
            read(home, cwd, {"KVCHAT_WHEN_FULL": bad})
