"""A chat on a tiny model of DeepSeek-V3's shape, at the real interface, engine and store."""

import json
from collections.abc import Callable
from pathlib import Path
from time import monotonic

import pytest
from textual.pilot import Pilot

from kvchat.app.composition import opened, start_worker
from kvchat.app.config import read_settings
from kvchat.app.engine_swap import EngineSwap
from kvchat.app.interface_host import InterfaceHost
from kvchat.engine.api.status import EnginePhase
from kvchat.ui.app import KvchatApp
from kvchat.ui.widgets.cache.panel import CachePanel
from kvchat.ui.widgets.cache.panel_rows import row_text
from tests.patience import PATIENCE_S
from tests.tiny_models import write_model

pytestmark = [pytest.mark.cpu, pytest.mark.tui]


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import transformers

    from tests.engine.latent_models import KINDS, SIZES
    from tests.engine.tiny_models import save_model

    directory = write_model(tmp_path_factory.mktemp("deepseek"))
    num_tokens = len(json.loads((directory / "tokenizer.json").read_text())["model"]["vocab"])
    changes = {"vocab_size": num_tokens, "max_position_embeddings": 4096}
    return save_model(transformers.DeepseekV3Config(**SIZES | KINDS["V3, YaRN"][1] | changes), directory)


async def until(pilot: Pilot[None], is_so: Callable[[], bool]) -> None:
    deadline = monotonic() + PATIENCE_S
    while not is_so():
        assert monotonic() < deadline
        await pilot.pause(0.05)


@pytest.mark.parametrize(("cache_format", "kind"), [("exact", "latent"), ("fp8", "latent fp8")])
async def test_the_latent_group_is_seen_in_the_cache_panel(
    model_dir: Path, tmp_path: Path, cache_format: str, kind: str
) -> None:
    flags: dict[str, object] = {"engine.cache_format": cache_format, "sampling.max_tokens": 6}
    settings = read_settings(flags)
    with opened(settings, start_worker) as kvchat:
        chat = kvchat.load(None, str(model_dir))
        host = InterfaceHost(settings, kvchat, chat, EngineSwap())
        app = KvchatApp(chat, kvchat.engine, host, None, log_path=tmp_path / "log")
        async with app.run_test(size=(140, 40)) as pilot:
            await until(pilot, lambda: kvchat.engine.status().phase is EnginePhase.READY)
            await pilot.press(*"Hello", "enter")
            turns = app.chat_screen.turns
            await until(pilot, lambda: bool(turns.conversation and len(turns.conversation.turns) == 2))
            await until(pilot, lambda: not turns.is_running)
            panel = app.chat_screen.query_one(CachePanel)
            await until(
                pilot,
                lambda: any(f" {kind} " in row_text(row) and "▓" in row_text(row) for row in panel.rows),
            )
            (row,) = (row_text(row) for row in panel.rows if row_text(row).startswith("L0"))
            assert row.startswith("L0-L2 ×3 ▓")
            assert turns.conversation is not None
            assert turns.conversation.turns[-1].exact is (cache_format == "exact")
