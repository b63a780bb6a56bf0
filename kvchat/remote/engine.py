"""What stands where the engine is, when a server computes: it is ready, and nothing of it is known."""

from collections.abc import Sequence
from typing import NoReturn

from kvchat.engine.api.config import EngineInfo
from kvchat.engine.api.ids import BranchId
from kvchat.engine.api.inspection import InspectedBlock, InspectionWish
from kvchat.engine.api.request import Request
from kvchat.engine.api.status import EnginePhase, EngineStatus
from kvchat.errors import UsageError


class RemoteEngine:
    """Implements `EngineClient`.

    Args:
        detail: which model answers, and where.
    """

    def __init__(self, detail: str) -> None:
        self.detail = detail

    def status(self) -> EngineStatus:
        return EngineStatus(phase=EnginePhase.READY, detail=self.detail)

    def info(self) -> EngineInfo:
        return EngineInfo(
            model=self.detail,
            model_dir="",
            fingerprint="",
            dtype="",
            device="",
            block_size=0,
            max_context=0,
            vocab_size=0,
            eos_token_ids=(),
            num_layers=0,
            disk_enabled=False,
            is_exact=False,
        )

    def submit(self, request: Request) -> NoReturn:
        raise UsageError("a server takes text, no tokens")

    def prioritise_branch(self, branch: BranchId, priority: int) -> None:
        pass

    def fork(self, branch: BranchId) -> NoReturn:
        raise UsageError("a server has no branches")

    def release(self, branch: BranchId) -> None:
        pass

    def drain_saves(self) -> None:
        pass

    def reusable_len(self, token_ids: Sequence[int], namespace: str = "") -> int:
        return 0

    def prefetch(self, token_ids: Sequence[int], *, beside: Sequence[int] = (), namespace: str = "") -> None:
        pass

    def inspect(self, wish: InspectionWish) -> tuple[InspectedBlock, ...]:
        return ()

    def snapshot(self) -> None:
        return None

    def close(self) -> None:
        pass
