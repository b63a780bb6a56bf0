"""A model's config without its weights: from a file, a directory, the starter, or a hub id."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvchat import starter
from kvchat.engine.models.locate import GGUF_SUFFIX, NETWORK_TIMEOUT_S, STARTER
from kvchat.errors import ModelNotFound, ModelUnreadable

_FLOAT = "__float__"


def read_config(name: str) -> Mapping[str, Any]:
    """Return the config of a model.

    Effect: a hub id that is not in the local cache is asked for on the network, its config alone.

    Raises:
        ModelNotFound: no such file, directory or hub id.
        ModelUnreadable: what is there is no config.
    """
    path = Path(*starter.__path__) / "model" if name == STARTER else Path(name).expanduser()
    if path.is_dir():
        path = path / "config.json"
    if not path.is_file():
        path = _from_hub(name, path)
    if path.suffix == GGUF_SUFFIX:
        raise ModelUnreadable(
            f"{path} is a GGUF file, whose config is read when it is loaded. "
            "Give the config.json, or the Hugging Face id, of the model that it was made from."
        )
    try:
        config = json.loads(path.read_bytes(), object_hook=_number)
    except (OSError, ValueError, RecursionError) as error:
        raise ModelUnreadable(f"{path} is not a config: {error}") from error
    if not isinstance(config, dict):
        raise ModelUnreadable(f"{path} is not a config: not a JSON object")
    return config


def normalised(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the config as transformers completes it, None where it does not know the model type."""
    from transformers import CONFIG_MAPPING

    model_type = config.get("model_type")
    if model_type not in CONFIG_MAPPING:
        return None
    whole = CONFIG_MAPPING[model_type].from_dict(dict(config))
    text = whole.get_text_config()
    completed: dict[str, Any] = text.to_dict()
    for name in ("num_hidden_layers", "layer_types", "sliding_window"):
        if hasattr(text, name):  # some models derive it and do not write it down
            completed[name] = getattr(text, name)
    if completed.get("dtype") is None:  # models of several parts name it once, beside the parts
        completed["dtype"] = whole.to_dict().get("dtype")
    return completed


def _number(value: dict[str, Any]) -> Any:
    """Read what transformers writes for a number that JSON does not have."""
    return float(value[_FLOAT]) if value.keys() == {_FLOAT} else value


def _from_hub(name: str, path: Path) -> Path:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    tried = f"There is no config {path}"
    if name.count("/") != 1 or name.startswith((".", "~", "/")):
        raise ModelNotFound(
            f"{tried}. Give a config.json, a model's directory, a Hugging Face id, or `starter`."
        )
    try:
        return Path(hf_hub_download(name, "config.json", etag_timeout=NETWORK_TIMEOUT_S))
    except HFValidationError:
        raise ModelNotFound(f"{tried}, and {name!r} is not a Hugging Face id (owner/name)") from None
    except LocalEntryNotFoundError:
        raise ModelNotFound(
            f"{tried}, the Hugging Face id {name!r} is not in the local cache, and the network was not "
            "reachable. Give a config.json, or `starter`."
        ) from None
    except (HfHubHTTPError, OSError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ModelNotFound(f"{tried}, and the hub does not give {name!r}: {reason}") from error
