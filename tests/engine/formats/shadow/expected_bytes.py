"""What a shadow of a prompt should take of a device, from its settings alone."""

from kvchat.engine.formats.shadow.settings import CHUNK_SIZE, NUM_LOCAL, ShadowSettings
from kvchat.engine.formats.spec import ITEM_BYTES, CacheSpec


def expected_device_bytes(settings: ShadowSettings, spec: CacheSpec, num_tokens: int) -> int:
    """Return what a layer keeps on the device of a prompt of `num_tokens`, keys on one basis.

    Projections, the basis, landmarks, compressed chunks that every step sees, the working set, the tail.
    """
    width, element_size = spec.num_kv_heads * spec.head_dim_k, ITEM_BYTES[spec.dtype]
    size, rank = CHUNK_SIZE, settings.rank_for(width)
    num_compressed = num_tokens // size - NUM_LOCAL
    tail_len = num_tokens - num_compressed * size
    low_rank = (num_compressed * size + width) * rank * element_size
    landmarks = num_compressed * width * element_size
    exact_len = settings.num_always * size + settings.budget + tail_len
    return low_rank + landmarks + exact_len * spec.token_bytes
