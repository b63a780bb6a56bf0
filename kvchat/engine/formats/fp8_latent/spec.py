"""Latents in 8-bit records: approximate, each token by itself."""

from dataclasses import dataclass
from typing import ClassVar

from kvchat.engine.formats.latent.spec import LatentSpec
from kvchat.engine.kernels.fp8_record import Fp8Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Fp8LatentSpec(LatentSpec):
    """A latent layer whose rows are packed into 8-bit records of `head_dim_k` bytes; see `Fp8Record`.

    A record follows from its own token alone, so the last block of a sequence is packed like all others.
    """

    kind: ClassVar[str] = "latent fp8"
    is_exact: ClassVar[bool] = False

    @property
    def record(self) -> Fp8Record:
        return Fp8Record(self.rank, self.rope_dim)
