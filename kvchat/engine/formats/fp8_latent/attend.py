"""Latent attention over 8-bit records."""

from torch import Tensor

from kvchat.engine.formats.attention_metadata import LayerPool
from kvchat.engine.formats.fp8_latent.spec import Fp8LatentSpec
from kvchat.engine.formats.latent.attend import LatentAttention, UpProjection
from kvchat.engine.kernels.latent_record import store_records
from kvchat.engine.kernels.paged_attention.args import KVPair


class Fp8LatentAttention(LatentAttention):
    """Attention of one layer over records, each of its own token alone."""

    def __init__(self, pool: LayerPool, projection: UpProjection) -> None:
        super().__init__(pool, projection)
        assert isinstance(pool.spec, Fp8LatentSpec)
        self.record = pool.spec.record

    def store(self, new: KVPair, slots: Tensor) -> None:
        assert self.record is not None
        store_records(new.keys[:, 0], new.values[:, 0], self.pool.keys, slots, self.record)
