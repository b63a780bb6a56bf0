"""Paged, shared and persistent blocks for a model that plain transformers code runs.

The same parts as in the engine, without scheduler and runner: whoever holds the model decides what is
computed. One process may have any number of caches over one `HFBlocks` (see `hf_cache`); other processes find
what was saved on disk, as far as their weights are the same to the last byte.

    with kvchat.HFBlocks(model, cache_dir=Path("blocks")) as blocks:
        model.generate(input_ids, past_key_values=kvchat.HFCache(blocks), max_new_tokens=100)
"""

import json
import time
from collections import abc
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from kvchat.engine.api.config import BLOCK_SIZE, EngineConfig
from kvchat.engine.api.ids import GroupId
from kvchat.engine.cache.block_operations import Move
from kvchat.engine.cache.device_tier import DeviceTier
from kvchat.engine.cache.manager import CacheManager
from kvchat.engine.formats.attention_metadata import AttentionMetadata
from kvchat.engine.formats.pool_sizing import Lengths, pool_blocks
from kvchat.engine.formats.spec import Group, group_layers
from kvchat.engine.kernels.paged_attention.args import SequenceSpan
from kvchat.engine.memory.device_pool import DevicePool
from kvchat.engine.memory.disk.open_tier import open_saver, open_store
from kvchat.engine.memory.host_copies import Transport
from kvchat.engine.memory.host_pool import HostPool
from kvchat.engine.memory.rates import Rates
from kvchat.engine.memory.reader import Reader
from kvchat.engine.memory.tier_mover import TierMover
from kvchat.engine.models.fingerprint import Checkpoint, Storage, digest_of, fields_of, meaning_of
from kvchat.engine.models.hook import implementation_of
from kvchat.engine.models.probing.attention_probe import probe_gathered_layers
from kvchat.engine.sequences.sequence import Sequence
from kvchat.engine.tiering.in_flight_loads import InFlightLoads
from kvchat.engine.tiering.save_policy import SavePolicy
from kvchat.errors import InvalidRequest, PoolExhausted, UnsupportedModel
from kvchat.platform.host_memory import available_bytes

_MEMORY_SHARE = 4
"""Without a limit the blocks take at most this part of the memory that is free."""
_CONTEXTS = 8
"""Without a limit there is room for so many texts of full length, memory permitting."""
_DEFAULT_CONTEXT = 2048
_READ_QUEUE_BYTES = 1 << 30
_WAIT_S = 0.05


class HFBlocks:
    """The blocks of one model in memory. Belongs to one thread.

    Args:
        model: a causal language model of transformers whose layers keep keys and values.
        cache_dir: where blocks are on disk; None: nowhere.
        device_bytes: most memory for blocks, on the model's device; None: chosen from what is free.
        disk_bytes: most disk space, over all that `cache_dir` has; None: no limit.
        block_size: tokens of a block.

    Raises:
        UnsupportedModel: a layer keeps something else, such as a recurrent state.
        CapacityError: the smallest cache does not fit.

    Effect:
        Runs one short pass, and reads every byte of the weights once, which the names of blocks hang on.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        cache_dir: Path | str | None = None,
        device_bytes: int | None = None,
        disk_bytes: int | None = None,
        block_size: int = BLOCK_SIZE,
    ) -> None:
        self.model = model
        config = EngineConfig(
            cache_dir=Path(cache_dir) if cache_dir is not None else None,
            device_bytes=device_bytes,
            disk_bytes=disk_bytes,
            block_size=block_size,
        )
        self.block_size = block_size
        self._state = _state_of(model)
        device = next(model.parameters()).device
        layers = probe_gathered_layers(model)
        if layers.states:
            raise UnsupportedModel(f"{type(model).__name__} keeps a state, which these blocks do not hold")
        self._groups = group_layers(layers.specs)
        num_blocks = _num_blocks(self._groups, config, _context_len(model), device)
        self.pool = DevicePool(self._groups, num_blocks, block_size, device)
        digest = _fingerprint(model, self.pool, block_size)
        self.fingerprint = digest.hex()
        self._store, self.disk_problem = open_store(config, self.pool, digest)
        rates = Rates()
        self._mover = TierMover(self.pool, self._store, Transport(self.pool, HostPool({}, {}), rates))
        tier = DeviceTier(self._groups, num_blocks, block_size=block_size)
        self._manager = CacheManager(tier, fingerprint=digest, slow=self._mover)
        reader = Reader(self._mover.fetch, max_bytes=_READ_QUEUE_BYTES, read_ahead=self._mover.read_ahead)
        self._loads = InFlightLoads(tier, reader, rates, self._carry_out)
        saver = open_saver(self.pool, self._store, self._manager)
        self._save_policy = SavePolicy(self._manager, saver, time.monotonic, self.disk_problem, rates)
        self._is_closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self, token_ids: abc.Sequence[int]) -> Sequence:
        """Return a sequence of these tokens with as much computed as is known, from memory and disk; all but
        the last at most. Waits for the disk.

        Raises:
            InvalidRequest: the weights have changed since the blocks were named.
        """
        if self._is_closed:
            raise InvalidRequest("these blocks are closed; make new ones with HFBlocks(model)")
        if _state_of(self.model) != self._state:
            raise InvalidRequest(
                "the model's weights have changed, and its blocks are those of the old ones;"
                " make new ones with HFBlocks(model)"
            )
        sequence = self._manager.open("", token_ids)
        match = self._manager.match(sequence)
        is_here = not self._loads.missing_bytes(match, sequence.root)
        load = None if is_here else self._loads.begin(match, sequence.root)
        while load is not None and not load.is_over:
            self._loads.wait(_WAIT_S)
            self._loads.collect()
        moves = self._manager.admit(sequence, self._manager.match(sequence, resident=True))
        if load is not None:
            self._loads.leave(load)
        self._carry_out(moves or ())
        return sequence

    def begin(self, sequence: Sequence) -> dict[GroupId, AttentionMetadata]:
        """Return where the tokens of a sequence go that are not computed yet.

        Raises:
            PoolExhausted: there is no room for them.
        """
        start, end = sequence.computed_len, len(sequence.token_ids)
        moves = self._manager.extend(sequence, end - start)
        if moves is None:
            raise PoolExhausted(
                f"there is no room for {end} tokens; give HFBlocks more device_bytes, or let caches go that"
                " are not needed any more"
            )
        self._carry_out(moves)
        self._manager.log.take()  # nobody else keeps tables
        return {group.id: self._step(sequence, group, start, end) for group in self._groups}

    def commit(self, sequence: Sequence) -> None:
        """Note that all tokens of a sequence are computed: they are shared and saved from now on."""
        self._manager.commit(sequence, len(sequence.token_ids) - sequence.computed_len)
        self._save_policy.after_step()

    def take_back(self, sequence: Sequence) -> None:
        """Forget the tokens of a sequence that were to be computed, because a pass has failed."""
        del sequence.token_ids[sequence.computed_len :]
        self._manager.retract(sequence)

    def release(self, sequence: Sequence) -> None:
        """Save a sequence and let go of it; its blocks stay as long as there is room."""
        if not self._is_closed and sequence.id in self._manager.sequences:
            self.take_back(sequence)
            self._save_policy.save_sequence(sequence)
            self._manager.release(sequence)
            self._manager.log.take()

    def close(self) -> None:
        """Wait until everything is on disk. May be called twice; caches over these blocks end with it."""
        if self._is_closed:
            return
        for sequence in self._manager.sequences.values():
            self.take_back(sequence)
        self._is_closed = True
        self._loads.close()
        self._mover.settle()
        self._save_policy.close(self._manager.sequences.values())
        if self._store is not None:
            self._store.close()

    def check_integrity(self) -> None:
        """Raise AssertionError on any broken invariant of the bookkeeping."""
        self._manager.check_integrity()
        self._loads.check_integrity()

    def _step(self, sequence: Sequence, group: Group, start: int, end: int) -> AttentionMetadata:
        device = self.pool.device
        table = [block for block in sequence.tables[group.id] if block is not None]
        assert len(table) == -(-end // self.block_size), "nothing leaves a window here"
        blocks = torch.tensor(table, dtype=torch.long, device=device)
        positions = torch.arange(start, end, device=device)
        slots = blocks[positions // self.block_size] * self.block_size + positions % self.block_size
        return AttentionMetadata(slots=slots, spans=[SequenceSpan(0, end - start, start, 0, blocks)])

    def _carry_out(self, moves: abc.Sequence[Move]) -> None:
        self._mover.execute(moves)
        self._manager.device.finish_moves()


def _state_of(model: nn.Module) -> tuple[tuple[int, int], ...]:
    """Return what changes whenever a weight is written in place or exchanged."""
    return tuple(
        (id(tensor), 0 if tensor.is_inference() else tensor._version) for _, tensor in _tensors(model)
    )


def _tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()


def _fingerprint(model: Any, pool: DevicePool, block_size: int) -> bytes:
    """Return the digest of all that keys and values of this model depend on, besides the tokens."""
    text_config = model.config.get_text_config()
    checkpoint = Checkpoint(
        weights=(_weights_digest(model),), config=meaning_of(json.loads(model.config.to_json_string(False)))
    )
    storage = Storage(
        route=f"transformers {implementation_of(text_config)}",
        dtype=str(model.dtype),
        cache_format="exact",
        block_size=block_size,
        layouts=pool.layouts(),
    )
    return digest_of(fields_of(checkpoint, storage))


def _weights_digest(model: nn.Module) -> str:
    digest = blake2b(digest_size=32)
    for name, tensor in sorted(_tensors(model)):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        plain = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        digest.update(plain.numpy().data)
    return digest.hexdigest()


def _context_len(model: Any) -> int:
    return getattr(model.config.get_text_config(), "max_position_embeddings", None) or _DEFAULT_CONTEXT


def _num_blocks(
    groups: abc.Sequence[Group], config: EngineConfig, context_len: int, device: torch.device
) -> dict[GroupId, int]:
    block_bytes = sum(group.block_bytes(config.block_size) for group in groups)
    limit = config.device_bytes
    if limit is None:
        free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else available_bytes()
        limit = min(free // _MEMORY_SHARE, _CONTEXTS * context_len * block_bytes // config.block_size)
    lengths = Lengths(context_len=context_len, chunk_len=context_len, block_size=config.block_size)
    return pool_blocks(groups, limit, lengths)
