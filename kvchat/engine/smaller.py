"""In which smaller formats a conversation would go on that has outgrown an exact cache. Arithmetic alone."""

from collections.abc import Sequence

from kvchat.engine.api.cache_format import EXACT
from kvchat.engine.api.config import EngineInfo
from kvchat.engine.cache.formats import stored_groups
from kvchat.engine.cache.manager import CacheManager
from kvchat.engine.cache.sizing import least_blocks, pool_blocks
from kvchat.engine.cache.spec import Group
from kvchat.errors import ConfigError, PoolExhausted

TRIED = ("int8", "fp8", "int4", "int2")
"""The one that loses least comes first; latents have a form in `fp8` alone."""


class Smaller:
    """Knows what the present pools' bytes would hold in another format."""

    def __init__(self, manager: CacheManager, info: EngineInfo, chunk_len: int) -> None:
        """Args:
        chunk_len: most tokens computed in one step.
        """
        self._manager = manager
        self._info = info
        self._chunk_len = chunk_len

    def hinted(self, error: PoolExhausted, num_tokens: int) -> PoolExhausted:
        """Return a refusal that also says in which formats so many tokens and one more would fit. Pure."""
        fits_in = self.formats_for(num_tokens + 1)
        hint = f", or keep it in fewer bits with --cache-format {fits_in[0]}" if fits_in else ""
        return PoolExhausted(f"{error}{hint}", fits_in=fits_in)

    def formats_for(self, num_tokens: int) -> tuple[str, ...]:
        """Return the formats in which a conversation of so many tokens would fit; none where this cache is
        not exact, or the model attends by itself to all that its cache has. Pure.
        """
        if self._info.cache_format != EXACT or self._info.route == "cache":
            return ()
        return tuple(name for name in TRIED if self._fits(name, num_tokens))

    def _fits(self, name: str, num_tokens: int) -> bool:
        size, present = self._manager.block_size, self._manager.groups
        limit = sum(group.block_bytes(size) * self._manager.pools[group.id].num_blocks for group in present)
        lengths = {"chunk_len": self._chunk_len, "block_size": size}
        try:
            groups: Sequence[Group] = stored_groups(present, name, size)
            pools = pool_blocks(groups, limit, context_len=self._info.max_context, **lengths)
        except (ConfigError, PoolExhausted):
            return False
        needed = {group.id: least_blocks(group, num_tokens, self._chunk_len, size) for group in groups}
        return all(needed[group.id] <= pools[group.id] for group in groups)
