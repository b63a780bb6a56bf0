"""What KV is a function of, besides the token ids: one digest that parts the blocks of different models."""

import hashlib
import json
import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any

from kvchat.directories import make_private
from kvchat.engine.models.weight_files import read_config, weight_files

FINGERPRINT_BYTES = 32
_PERSON = b"kvchat.print1"
_SHA256 = re.compile(r"[0-9a-f]{64}")
_RACY_NS = 2_000_000_000
"""A file changed this recently may change again within the same tick of its file system's clock."""

# Keys of config.json that say nothing about K and V. A key that is not listed counts, whatever it means: a
# fingerprint that is too narrow costs time, one that is too wide costs truth.
_VOLATILE = frozenset(
    {
        "_attn_implementation",
        "_name_or_path",
        "auto_map",
        "bos_token_id",
        "dtype",  # the dtype in use is part of the digest by itself
        "eos_token_id",
        "finetuning_task",
        "id2label",
        "label2id",
        "output_attentions",
        "output_hidden_states",
        "pad_token_id",
        "problem_type",
        "return_dict",
        "torch_dtype",
        "torchscript",
        "transformers.js_config",
        "transformers_version",
        "use_cache",
    }
)


def fingerprint(
    model_dir: Path,
    *,
    dtype: str,
    cache_format: str,
    block_size: int,
    rope: str = "",
    adapter: str = "",
    cache_file: Path | None = None,
) -> bytes:
    """Return the 32-byte digest that every block key of a model descends from.

    It depends on the weights' bytes, on what config.json means, and on the arguments; not on where the
    files lie or what they are called, nor on device, thread count or library version.

    Args:
        dtype: in which K and V are computed and, in the exact format, stored.
        rope: what rotates K, where something other than the config decides it.
        adapter: digest of an adapter's weights; empty: none.
        cache_file: where the digests of weight files are kept between runs; None: computed every time.

    Raises: ModelUnreadable: config or weights are missing.
    """
    digests = WeightDigests(cache_file)
    parts = {
        "weights": [digests.digest(path) for path in weight_files(model_dir)],
        "config": _meaning(read_config(model_dir)),
        "dtype": dtype,
        "cache_format": cache_format,
        "block_size": block_size,
        "rope": rope,
        "adapter": adapter,
    }
    digests.save()
    canonical = json.dumps(parts, sort_keys=True, separators=(",", ":")).encode()
    return blake2b(canonical, digest_size=FINGERPRINT_BYTES, person=_PERSON).digest()


class WeightDigests:
    """SHA-256 of weight files, remembered for as long as a file is the same file."""

    def __init__(self, cache_file: Path | None, clock_ns: Callable[[], int] = time.time_ns) -> None:
        self.num_read = 0
        """Files whose bytes had to be read."""
        self._cache_file = cache_file
        self._clock_ns = clock_ns
        self._known = _load(cache_file)
        self._is_changed = False

    def digest(self, path: Path) -> str:
        """Return the SHA-256 of a file in hex: from a hub blob's name, from the cache, or by reading it.

        The cache knows a file by place, inode, size and both its times; ctime cannot be set back by a
        program that wants to keep mtime.
        """
        path = Path(os.path.realpath(path))
        if path.parent.name == "blobs" and _SHA256.fullmatch(path.name):
            return path.name
        before = _identity(path)
        known = self._known.get(str(path))
        if known is not None and known[:-1] == before:
            return str(known[-1])
        with open(path, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        self.num_read += 1
        if _identity(path) == before and self._clock_ns() - max(before[2:]) > _RACY_NS:
            self._known[str(path)] = [*before, digest]
            self._is_changed = True
        return digest

    def save(self) -> None:
        """Write the cache if it changed, whole or not at all; not being able to costs the next start time."""
        if self._cache_file is None or not self._is_changed:
            return
        temporary = self._cache_file.with_name(f".{self._cache_file.name}.{os.getpid()}.tmp")
        try:
            make_private(self._cache_file.parent)
            temporary.write_text(json.dumps(self._known), encoding="utf-8")
            temporary.chmod(0o600)
            temporary.replace(self._cache_file)
        except OSError:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)


def _identity(path: Path) -> list[int]:
    status = path.stat()
    return [status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def _load(cache_file: Path | None) -> dict[str, list[Any]]:
    """Return the remembered digests; what is not exactly in their form was not written by `save`."""
    try:
        known = json.loads(cache_file.read_text(encoding="utf-8")) if cache_file is not None else {}
    except (OSError, ValueError, RecursionError):
        return {}
    entries = known.items() if isinstance(known, dict) else ()
    return {path: entry for path, entry in entries if _is_entry(entry)}


def _is_entry(entry: object) -> bool:
    if not isinstance(entry, list) or len(entry) != 5:
        return False
    *numbers, digest = entry
    return all(type(number) is int for number in numbers) and bool(_SHA256.fullmatch(str(digest)))


def _meaning(config: Any) -> Any:
    """Return a config without the keys that say nothing about K and V, at every depth."""
    if isinstance(config, dict):
        return {key: _meaning(value) for key, value in config.items() if key not in _VOLATILE}
    if isinstance(config, list):
        return [_meaning(value) for value in config]
    return config
