"""Shadow view: exact blocks, of which each step behind a long prompt chooses what it looks at."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from kvchat.engine.api.view import View
from kvchat.engine.formats.shadow.settings import ShadowSettings, least_prompt, most_bytes, settings_for
from kvchat.engine.formats.spec import CacheSpec, Group, Selection, heads_for
from kvchat.engine.kernels.attention_shapes import ShadowSizes


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowSpec(CacheSpec):
    """A layer that a sequence looks at through a shadow, once a long prompt has been read.

    Args:
        view: how much a step looks at.
    """

    kind: ClassVar[str] = "shadow"
    selection: ClassVar[Selection] = Selection.EACH_STEP

    view: View

    def beside_bytes(self, num_tokens: int, *, in_host_memory: bool) -> int:
        if num_tokens < least_prompt(self.view):
            return 0
        return most_bytes(settings_for(self.view, num_tokens, is_remote=in_host_memory), self, num_tokens)

    def shadow_sizes(self, num_heads: int) -> ShadowSizes:
        """Return the sizes in which the kernels of shadows are called, for a model's query heads."""
        return ShadowSizes(
            num_heads=heads_for(num_heads, self.num_kv_heads),
            num_kv_heads=self.num_kv_heads,
            dim=self.head_dim_k,
            value_dim=self.head_dim_v,
            rank=ShadowSettings().rank_for(self.num_kv_heads * self.head_dim_k),
        )


def shadow_specs(groups: Sequence[Group]) -> dict[int, ShadowSpec]:
    """Return the specs of layers that are looked at through shadows, by layer."""
    return {
        layer: group.spec for group in groups for layer in group.layers if isinstance(group.spec, ShadowSpec)
    }
