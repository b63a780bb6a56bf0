"""Format advisor: names cache formats for a conversation too long for the exact cache."""

from collections.abc import Sequence

from kvchat.engine.api.cache_format import EXACT
from kvchat.engine.api.config import EngineInfo
from kvchat.engine.api.view import OFFERED_SHADOW, parse_view
from kvchat.engine.cache.manager import CacheManager
from kvchat.engine.formats.groups_in_format import stored_groups
from kvchat.engine.formats.pool_sizing import Lengths, least_blocks, pool_blocks
from kvchat.engine.formats.shadow.memory import beside_bytes, divided
from kvchat.engine.formats.shadow.settings import least_prompt
from kvchat.engine.formats.spec import Group, Selection
from kvchat.errors import ConfigError, PoolExhausted

TRIED = ("int8", "fp8", "int4", "int2")
"""The one that loses least comes first; latents have a form in `fp8` alone."""
OFFERED = (*TRIED[:2], OFFERED_SHADOW, *TRIED[2:])
"""With a shadow, which takes no fewer bits: it lets blocks lie in host memory."""
MIB = 2**20


class FormatAdvisor:
    """Knows what the present pools' bytes would hold in another format."""

    def __init__(
        self, manager: CacheManager, info: EngineInfo, chunk_len: int, host_bytes: int | None
    ) -> None:
        """Args:
        chunk_len: most tokens computed in one step.
        host_bytes: that a format with shadows could have beside; None: there is none on this device.
        """
        self._manager = manager
        self._info = info
        self._chunk_len = chunk_len
        self._host_bytes = host_bytes

    def hinted(self, error: PoolExhausted, num_tokens: int) -> PoolExhausted:
        """Return a refusal that also says in which formats so many tokens and one more would fit. Pure."""
        fits_in = self.formats_for(num_tokens + 1)
        smaller = [name for name in fits_in if name != OFFERED_SHADOW]
        hint = f", or keep it in fewer bits with --cache-format {smaller[0]}" if smaller else ""
        if OFFERED_SHADOW in fits_in:
            hint += self._shadow_hint(num_tokens + 1)
        return PoolExhausted(f"{error}{hint}", fits_in=fits_in)

    def formats_for(self, num_tokens: int) -> tuple[str, ...]:
        """Return the formats in which a conversation of so many tokens would fit; none where this cache is
        not exact, or the model attends by itself to all that its cache has. Pure.
        """
        if self._info.cache_format != EXACT or self._info.route == "cache":
            return ()
        return tuple(name for name in OFFERED if self._fits(name, num_tokens))

    def _fits(self, name: str, num_tokens: int) -> bool:
        size, present = self._manager.block_size, self._manager.groups
        lengths = Lengths(context_len=self._info.max_context, chunk_len=self._chunk_len, block_size=size)
        limit = sum(group.block_bytes(size) * self._manager.pools[group.id].num_blocks for group in present)
        try:
            groups: Sequence[Group] = stored_groups(present, name, size)
            if name == OFFERED_SHADOW:
                if self._host_bytes is None or num_tokens < least_prompt(parse_view(name)):
                    return False
                memory = divided(groups, limit, self._host_bytes, lengths)
                if beside_bytes(groups, num_tokens) > memory.shadow_bytes:
                    return False
                limit = memory.block_bytes
            pools = pool_blocks(groups, limit, lengths)
        except (ConfigError, PoolExhausted):
            return False
        needed = {group.id: least_blocks(group, num_tokens, self._chunk_len, size) for group in groups}
        return all(needed[group.id] <= pools[group.id] for group in groups)

    def _shadow_hint(self, num_tokens: int) -> str:
        size = self._manager.block_size
        groups = stored_groups(self._manager.groups, OFFERED_SHADOW, size)
        num_bytes = sum(
            group.block_bytes(size) * group.num_blocks(num_tokens, size)
            for group in groups
            if group.spec.selection is Selection.EACH_STEP
        )
        return (
            f", or look at its {num_bytes / MIB:,.1f} MiB in host memory through a shadow of at most"
            f" {beside_bytes(groups, num_tokens) / MIB:,.1f} with --cache-format {OFFERED_SHADOW}"
        )
