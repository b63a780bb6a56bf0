"""Capacity check: tests that a conversation fits into the device pool beside pinned blocks."""

from collections import abc
from collections.abc import Iterable

from kvchat.engine.api.ids import BlockKey, GroupId, chain_keys
from kvchat.engine.cache.manager import CacheManager
from kvchat.engine.formats.pool_sizing import least_blocks
from kvchat.engine.formats.shadow.memory import beside_bytes
from kvchat.engine.sequences.completion_sequence import Completion
from kvchat.engine.sequences.sequence import Sequence
from kvchat.errors import PoolExhausted

MIB = 2**20


class CapacityCheck:
    """What conversations need of the pools."""

    def __init__(
        self, manager: CacheManager, chunk_len: int, max_context: int, shadow_bytes: int | None = None
    ) -> None:
        """Args:
        chunk_len: most tokens computed in one step.
        max_context: longest conversation.
        shadow_bytes: that shadows may take; None: there are none.
        """
        self._shadow_bytes = shadow_bytes
        self._manager = manager
        self._chunk_len = chunk_len
        self._max_context = max_context

    def check(self, token_ids: abc.Sequence[int], root: BlockKey, least_new: int = 1) -> None:
        """Raise PoolExhausted if a prompt can never be answered with the blocks that may be had for it.

        The answers to a request, and the beams of a search, take turns if need be: what one of them needs
        is enough for all.

        Args:
            least_new: tokens that the answer has in any case; the last of them takes no place.
        """
        self._check_shadow(len(token_ids))
        for group, needed in self._needs(len(token_ids) + max(1, least_new - 1)).items():
            pool = self._manager.pools[group]
            if needed > pool.num_blocks:
                raise PoolExhausted(
                    f"the conversation of {len(token_ids)} tokens does not fit into the cache; its answer "
                    f"needs {needed} blocks and there are {pool.num_blocks}, so give it more with "
                    "--kv-device-bytes"
                )
            if needed > pool.num_blocks - pool.num_pinned:
                keys = chain_keys(root, token_ids, self._manager.block_size)
                num_pinned = self._manager.pins.num_others(group, keys)
                if needed > pool.num_blocks - num_pinned:
                    raise PoolExhausted(
                        f"the conversation of {len(token_ids)} tokens needs {needed} of the cache's "
                        f"{pool.num_blocks} blocks, and {num_pinned} are pinned for others; unpin something, "
                        "or give the cache more with --kv-device-bytes"
                    )

    def _check_shadow(self, num_tokens: int) -> None:
        needed = beside_bytes(self._manager.groups, num_tokens)
        if self._shadow_bytes is not None and needed > self._shadow_bytes:
            in_host_memory = any(group.in_host_memory for group in self._manager.groups)
            place = "the device" if in_host_memory else "host memory beside its blocks"
            raise PoolExhausted(
                f"the shadow of a conversation of {num_tokens} tokens may take {needed / MIB:,.1f} MiB of "
                f"{place}, and {self._shadow_bytes / MIB:,.1f} are allowed; give it more with "
                f"--kv-{'device' if in_host_memory else 'host'}-bytes, or use --cache-format exact"
            )

    def needs_of(self, completions: Iterable[Completion]) -> list[tuple[Sequence, dict[GroupId, int]]]:
        """Return what each request needs when it has generated all that it may, its sequence first. Pure."""
        return [
            (
                completion.sequence,
                self._needs(min(completion.prompt_len + completion.max_tokens, self._max_context)),
            )
            for completion in completions
        ]

    def _needs(self, num_tokens: int) -> dict[GroupId, int]:
        size = self._manager.block_size
        return {
            group.id: least_blocks(group, num_tokens, self._chunk_len, size) for group in self._manager.groups
        }
