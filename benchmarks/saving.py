"""Decoding while a session is written to disk, beside decoding while nothing is, and what a turn writes."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import torch
import transformers

from benchmarks.table import Row
from kvchat.engine import Engine, EngineConfig, Request, SamplingParams
from kvchat.engine.api.events import TokenEmitted
from kvchat.engine.api.ids import BlockId, BlockKey, block_key, root_key
from kvchat.engine.cache.block_operations import Save
from kvchat.engine.memory.disk.open_tier import WRITE_QUEUE_BYTES
from kvchat.engine.memory.disk.write_queue import BlockWriteQueue
from kvchat.engine.memory.saver import Saver

PAIRS, QUICK_PAIRS = 10, 5
SESSION_LEN = 4096
NUM_TOKENS = 48
TURN_LEN, NUM_TURNS = 24, 8
SHAPE_360M = {"hidden_size": 960, "intermediate_size": 2560, "num_attention_heads": 15, "vocab_size": 49152}
FEWER_WEIGHTS = {"hidden_size": 320, "intermediate_size": 640, "num_attention_heads": 5, "vocab_size": 4096}
"""The same cache, 40 KiB per token. It decodes several times faster, so that writing weighs more."""


def measure(*, quick: bool = False) -> list[Row]:
    with TemporaryDirectory() as directory:
        model_dir = str(_write_model(Path(directory) / "model", FEWER_WEIGHTS if quick else SHAPE_360M))
        engine = Engine.load(model_dir, EngineConfig(cache_dir=Path(directory) / "cache", speculate="off"))
        session = Session(engine)
        rows = loss_rows(session, QUICK_PAIRS if quick else PAIRS)
        per_bound, per_new = _written_of_turns(engine, session.text)
        engine.close()
    turn = f"of a turn of {TURN_LEN}+{NUM_TOKENS} tokens behind {SESSION_LEN:,}"
    return [
        *rows,
        Row.of(f"bytes written {turn}, per byte of its blocks and its tail", "x", per_bound, "at most 1"),
        Row.of(f"bytes written {turn}, per byte that is new", "x", per_new),
    ]


def loss_rows(session: "Session", num_pairs: int) -> list[Row]:
    """Decode with and without writing, in pairs."""
    without, beside, written = [], [], []
    for number in range(num_pairs):
        for is_saved in (False, True) if number % 2 else (True, False):  # the session grows
            if not is_saved:
                without.append(session.decode_rate())
                continue
            with session.being_saved() as saving:
                beside.append(session.decode_rate(saving))
            written.append(saving.bytes_per_s / 1e6)
    return [
        Row.of("decode while nothing is written", "tokens/s", without),
        Row.of(f"decode while {session.what} are written all the time", "tokens/s", beside),
        Row.of("loss", "%", [100 * (1 - b / a) for a, b in zip(without, beside, strict=True)], "less than 5"),
        Row.of("written meanwhile", "MB/s", written),
    ]


class Session:
    """A conversation whose blocks are on the device and on disk, and that goes on."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        has_states = any(group.is_state for group in engine._manager.groups)
        self.what = "states" if has_states else f"blocks of {SESSION_LEN:,} tokens"
        self.text = [5 + (11 * index) % 2500 for index in range(SESSION_LEN)]
        handle = engine.submit(Request(token_ids=tuple(self.text), sampling=SamplingParams(max_tokens=1)))
        self.text += [event.token_id for event in handle if isinstance(event, TokenEmitted)]
        self._sequence = handle.sequence
        engine.drain_saves()
        self._num_saved = 0

    def decode_rate(self, saving: "_Saving | None" = None) -> float:
        """Return the rate of one answer behind the session, from its first token to its last."""
        self.text.append(5 + len(self.text) % 2500)
        sampling = SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True)
        request = Request(token_ids=tuple(self.text), sampling=sampling, sequence=self._sequence)
        self.engine.submit(request)
        times: list[float] = []
        while self.engine.has_work:
            if saving is not None:
                saving.feed()
            found = [event for event in self.engine.step() if isinstance(event, TokenEmitted)]
            self.text += [event.token_id for event in found]
            times += [perf_counter() for _ in found]
        self.engine.drain_saves()
        return (len(times) - 1) / (times[-1] - times[0])

    @contextmanager
    def being_saved(self) -> "Iterator[_Saving]":
        saving = _Saving(self.engine, self.text[:SESSION_LEN], f"copy {self._num_saved}")
        self._num_saved += 1
        yield saving
        saving.end()


class _Saving:
    """Writes a session's blocks over and over, under names of their own, as an engine saves blocks."""

    def __init__(self, engine: Engine, token_ids: list[int], name: str) -> None:
        assert engine._store is not None
        self._engine, self._store = engine, engine._store
        self._token_ids, self._name = token_ids, name
        self._writer = BlockWriteQueue(self._store, max_bytes=WRITE_QUEUE_BYTES)
        self._saver = Saver(engine._parts.pool, self._store, self._writer, lambda _: True)
        self._keys: list[BlockKey] = []
        self._num_rounds = 0
        self._start_s = perf_counter()

    def feed(self) -> None:
        """Let the writer have something to do until the next call."""
        self._saver.step_aside(True)
        if not self._saver.num_waiting:
            self._saver.save_blocks(self._saves())
        self._saver.pump()
        assert self._writer.queued_bytes

    def end(self) -> None:
        """Stop, and remove what was written."""
        self.bytes_per_s = self._writer.written_bytes / (perf_counter() - self._start_s)
        self._saver.give_up()
        self._writer.close()
        self._store.remove_keys(self._keys)

    def _saves(self) -> list[Save]:
        size = self._engine.info.block_size
        group = max(self._engine._manager.groups, key=lambda group: group.is_state)
        token_ids = self._token_ids[: size if group.is_state else None]  # one state at a time, as turns end
        parent = root_key(bytes.fromhex(self._engine.info.fingerprint), f"{self._name}, {self._num_rounds}")
        self._num_rounds += 1
        saves = []
        for number in range(len(token_ids) // size):
            ids = tuple(token_ids[number * size : (number + 1) * size])
            key = block_key(parent, ids)
            saves.append(Save(group=group.id, block=BlockId(number), key=key, parent=parent, token_ids=ids))
            self._keys.append(key)
            parent = key
        return saves


def _written_of_turns(engine: Engine, session: list[int]) -> tuple[list[float], list[float]]:
    """Return for each turn of a conversation what goes to disk for a byte of the blocks that it fills and of
    its tail, and for a byte that it adds.
    """
    group = engine.snapshot().groups[0]
    size = engine.info.block_size
    text = list(session)
    per_bound, per_new = [], []
    for turn in range(NUM_TURNS + 1):
        before, before_len = engine.snapshot().moved.to_disk, len(text) - 1
        text += [5 + (13 * index + turn) % 2500 for index in range(TURN_LEN)]
        (result,) = engine.generate([text], SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True))
        engine.drain_saves()
        text += result.token_ids
        stored_len = len(text) - 1  # the last token was never fed
        written = engine.snapshot().moved.to_disk - before
        num_blocks = -(-stored_len // size) - before_len // size
        per_bound.append(written / (num_blocks * group.block_bytes))
        per_new.append(written / ((stored_len - before_len) * group.block_bytes / size))
    return per_bound[1:], per_new[1:]  # the first one begins where another sequence ends


def _write_model(directory: Path, shape: dict[str, int]) -> Path:
    """Write a model of 32 layers with random weights."""
    config = transformers.LlamaConfig(
        num_hidden_layers=32, num_key_value_heads=5, max_position_embeddings=8192, **shape
    )
    torch.manual_seed(0)
    transformers.utils.logging.disable_progress_bar()
    transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(directory)
    return directory
