"""Self-check cache: results and measurements of earlier starts with the same model.

A model is held to itself when it is loaded (`self_check`, `fused_check`), and what its steps allocate is
measured (`activation_memory`). All of it follows from the weights' bytes, their config, and what computes:
the code of kvchat, torch and transformers, the native kernels, the processor, and how many threads. A record
is named by a digest of these, so whatever changes one of them has everything looked at anew. Only what was
passed is kept: what failed is tried again, and says why again (but for compiled layers, see
`compile_choice`).
"""

import json
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

import torch
import transformers
from torch import nn

from kvchat.engine.kernels.machine_report import processor_name
from kvchat.engine.kernels.native.build import library_path
from kvchat.engine.kernels.native.library import library
from kvchat.engine.models.fingerprint import Checkpoint
from kvchat.engine.models.load import LoadedModel
from kvchat.platform.cached_results import read_kept, write_kept

FILE_NAME: Final = "checks"
VERSION: Final = 1
MAX_MODELS: Final = 32
MAX_FINDINGS: Final = 64
"""Of one model: one or two for each setting that it was started with."""
_DIGEST_BYTES = 16
_ENGINE = Path(__file__).parent.parent
_SETTINGS = ("ATEN_", "DNNL_", "MKL_", "OMP_", "ONEDNN_", "TORCH_", "TRITON_")
"""How variables begin that decide what computes, and with what."""

Findings = dict[str, Any]
Records = dict[str, Findings]
"""By what they are of, the newest last."""


class SelfCheckCache:
    """What is known of one model as it is computed here.

    Args:
        file: None: nothing is kept.
        subject: names all that findings follow from.
    """

    def __init__(self, file: Path | None = None, subject: str = "") -> None:
        self._file = file
        self._subject = subject
        self._found = {} if file is None else _records(file).get(subject, {})

    def find(self, name: str) -> Any:
        """Return what was kept under a name; None: nothing."""
        return self._found.get(name)

    def keep(self, name: str, finding: Any) -> None:
        """Keep what was found. Several processes may do so at once; the last to write counts."""
        if self._file is None:
            return
        self._found[name] = finding
        records = _records(self._file)
        found = records.pop(self._subject, {})
        found.pop(name, None)
        found[name] = finding
        records[self._subject] = _newest(found, MAX_FINDINGS)
        write_kept(self._file, {"version": VERSION, "models": _newest(records, MAX_MODELS)})


def checks_of(cache_dir: Path | None, checkpoint: Checkpoint, loaded: LoadedModel) -> SelfCheckCache:
    """Return what is known of a model that was loaded from a checkpoint.

    Nothing is known of one on a GPU: its driver and its compiler have a say, and checks take no time there.
    """
    if cache_dir is None or next(loaded.module.parameters()).device.type != "cpu":
        return SelfCheckCache()
    return SelfCheckCache(cache_dir / FILE_NAME, subject_of(checkpoint, loaded))


def name_of(check: str, *settings: object) -> str:
    """Return the name of a check made with settings, values whose `repr` says all there is."""
    return f"{check} {_digest(repr(settings))}" if settings else check


def subject_of(checkpoint: Checkpoint, loaded: LoadedModel) -> str:
    """Return the name of a model as it is computed here and now."""
    module: Any = loaded.module
    parts = {
        "checkpoint": asdict(checkpoint),
        "config": module.config.to_json_string(use_diff=False),
        "dtype": loaded.dtype,
        "modules": _state_of(_files_of(module)),
        "computing": computing(),
    }
    return _digest(json.dumps(parts, sort_keys=True))


def computing() -> Mapping[str, Any]:
    """Return what decides how numbers come about in this process, whatever the model."""
    native = library()
    return {
        "code": _state_of(sorted(_ENGINE.rglob("*.py"))),
        "native": None if native is None else [native.level, _state_of([library_path()])],
        "torch": [torch.__version__, str(torch.version.git_version)],
        "transformers": transformers.__version__,
        "processor": [processor_name(), torch.backends.cpu.get_cpu_capability()],
        "instructions": {name: bool(known) for name, known in torch.cpu.get_capabilities().items()},
        "threads": torch.get_num_threads(),
        "precision": torch.get_float32_matmul_precision(),
        "settings": {name: value for name, value in os.environ.items() if name.startswith(_SETTINGS)},
    }


def _files_of(module: nn.Module) -> list[Path]:
    """Return the files of the classes that a model consists of."""
    names = {kind.__module__ for part in module.modules() for kind in type(part).__mro__}
    files = (getattr(sys.modules.get(name), "__file__", None) for name in names)
    return sorted({Path(file) for file in files if file})


def _state_of(files: Iterable[Path]) -> str:
    """Return a digest that is another one once a file was written anew, without reading any."""
    return _digest(repr([(str(file), *_state(file)) for file in files]))


def _state(file: Path) -> tuple[int, ...]:
    try:
        status = file.stat()
    except OSError:  # inside an archive, for example
        return ()
    return status.st_size, status.st_mtime_ns


def _records(file: Path) -> Records:
    """Return the records of a file of this version; none of another, nor of one that is damaged."""
    fields: dict[str, Any] = read_kept(file) or {}
    records: Records = fields["models"] if fields.get("version") == VERSION else {}
    return records


def _newest(listed: dict[str, Any], number: int) -> dict[str, Any]:
    return dict(list(listed.items())[-number:])


def _digest(text: str) -> str:
    return blake2b(text.encode(), digest_size=_DIGEST_BYTES).hexdigest()
