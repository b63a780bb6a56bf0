"""Model locator: resolves the name a person gives (the starter, a directory, a GGUF file or a hub id) to a
directory that can be loaded.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

from kvchat import starter
from kvchat.engine.models.checkpoints.model_directory_check import check_model
from kvchat.errors import ModelError, ModelNotFound, ModelUnreadable

if TYPE_CHECKING:
    from kvchat.platform.encryptor import Encryptor

STARTER = "starter"
GGUF_SUFFIX = ".gguf"
NETWORK_TIMEOUT_S = 10.0

# huggingface_hub is imported where it is needed: a command that names a directory should not wait for it.

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_WANTED = [
    "config*.json",
    "*.safetensors",
    "*.safetensors.index.json",
    "tokenizer*",
    "chat_template*",
    "generation_config.json",
    "*.jinja",
]
_INSTEAD = "Use `-m starter` for the model that comes with kvchat."
_UNWANTED = ["*/*", "consolidated*"]  # the same weights again, in another layout


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLocation:
    """A model directory, and the name under which it was asked for."""

    name: str
    path: Path


def locate_model(
    name: str,
    *,
    cache_dir: Path | None = None,
    disk_bytes: int | None = None,
    encryptor: "Encryptor | None" = None,
    network_timeout_s: float = NETWORK_TIMEOUT_S,
) -> ModelLocation:
    """Return the directory of a model; only for a hub id that is not in the local cache, from the network.

    Args:
        cache_dir: where the checkpoint made from a GGUF file is kept; without one such files are refused.
        disk_bytes: most bytes of such checkpoints and of blocks, which make room for it; None: no limit.
        encryptor: what those blocks are encrypted with.
        network_timeout_s: how long to wait for the hub's first answer; a download may take longer.

    Effect: may download, with progress on stderr. Looks at headers and config, loads no weights.

    Raises:
        ModelNotFound: no such directory or hub id, or the hub cannot be reached.
        ModelUnreadable: found, but damaged, incomplete or without safetensors weights.
        UnsupportedModel: it needs code of its own.
    """
    path = _starter_dir() if name == STARTER else Path(name).expanduser()
    if path.is_dir():
        check_model(path)
        return ModelLocation(name=name, path=path.resolve())
    if path.is_file() and path.suffix == GGUF_SUFFIX and cache_dir is not None:
        # Not for those who name a directory.
        from kvchat.engine.models.checkpoints.converted_gguf import checkpoint_of
        from kvchat.engine.models.checkpoints.disk_budget import DiskBudget

        room = DiskBudget(cache_dir=cache_dir, disk_bytes=disk_bytes, encryptor=encryptor)
        return ModelLocation(name=name, path=checkpoint_of(path.resolve(), cache_dir, room))
    if path.is_file():
        wanted = "a cache directory" if path.suffix == GGUF_SUFFIX else "the model's directory"
        raise ModelUnreadable(f"{path} is a file. Give {wanted}, or `-m starter`.")
    if not _HUB_ID.fullmatch(name):
        raise ModelNotFound(
            f"There is no model {name!r}: {path.absolute()} is neither a directory nor a Hugging Face id "
            f"(owner/name). {_INSTEAD}"
        )
    return ModelLocation(name=name, path=_from_hub(name, path.absolute(), network_timeout_s))


def installed_model(name: str) -> ModelLocation | None:
    """Return a model that is here under a name that means the same everywhere; asks no network.

    For names that nobody here has typed: a path among them means nothing, and a hub id is not fetched.
    """
    if name == STARTER:
        return locate_model(STARTER)
    if not _HUB_ID.fullmatch(name):
        return None
    from huggingface_hub import try_to_load_from_cache

    config = try_to_load_from_cache(name, "config.json")
    if not isinstance(config, str):
        return None
    try:
        check_model(Path(config).parent)
    except ModelError:
        return None
    return ModelLocation(name=name, path=Path(config).parent)


def lasting_name(location: ModelLocation) -> str:
    """Return a name that means the same model from any directory, since sessions keep it."""
    path = Path(location.name).expanduser().resolve()
    is_place = path == location.path or (path.suffix == GGUF_SUFFIX and path.is_file())
    return str(path) if is_place else location.name


def _starter_dir() -> Path:
    path = Path(*starter.__path__) / "model"
    if not path.is_dir():
        raise ModelNotFound(
            f"The starter model is missing from this installation ({path}). Install kvchat again."
        )
    return path


def _from_hub(name: str, path: Path, timeout_s: float) -> Path:
    """Return the snapshot of a hub id: the cached one if it is whole, else a download."""
    from huggingface_hub import constants, try_to_load_from_cache

    tried = f"There is no directory {path}, and the hub id {name!r} is not in {constants.HF_HUB_CACHE}"
    config = try_to_load_from_cache(name, "config.json")
    if isinstance(config, str):
        try:
            check_model(Path(config).parent)
            return Path(config).parent
        except ModelUnreadable as error:
            # Perhaps a download that stopped half-way: going on with it mends that.
            tried = f"The hub id {name!r} is cached, but {str(error).removesuffix('.')}"
    if constants.HF_HUB_OFFLINE:
        raise ModelNotFound(f"{tried}. The network was not asked, because HF_HUB_OFFLINE is set. {_INSTEAD}")
    if (refusal := _ask_hub(name, timeout_s)) is not None:
        raise ModelNotFound(f"{tried}. {refusal}. {_INSTEAD}")
    snapshot = _download(name, tried)
    check_model(snapshot)
    return snapshot


def _download(name: str, tried: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    try:
        return Path(snapshot_download(name, allow_patterns=_WANTED, ignore_patterns=_UNWANTED))
    except (OSError, ValueError, RuntimeError, HfHubHTTPError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ModelNotFound(
            f"{tried}. The network was reachable, but the download stopped: {reason}. "
            f"The same command goes on with it. {_INSTEAD}"
        ) from error


def _ask_hub(name: str, timeout_s: float) -> str | None:
    """Return why the hub does not give a model, None if it does. Gives up after `timeout_s`."""
    answers: list[str | None] = []
    # The client bounds each phase of a request, not their sum, and the look-up of the host's name not at all.
    asking = Thread(target=lambda: answers.append(_refusal(name, timeout_s)), daemon=True)
    asking.start()
    asking.join(timeout_s)
    return answers[0] if answers else f"The network did not answer within {timeout_s:.0f} s"


def _refusal(name: str, timeout_s: float) -> str | None:
    from huggingface_hub import HfApi
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    try:
        info = HfApi().model_info(name, timeout=timeout_s)
    except GatedRepoError:
        return "The network was reachable, but the hub gives it only to accounts that accepted its terms"
    except RepositoryNotFoundError:
        return "The network was reachable, but the hub has no such model, or it is private"
    except Exception as error:  # whatever the client makes of a dead network is the same to the person
        return f"The network was not reachable ({type(error).__name__})"
    if not any(file.rfilename.endswith(".safetensors") for file in info.siblings or ()):
        return (
            "The network was reachable, but the hub has it without safetensors weights; no others are opened"
        )
    return None
