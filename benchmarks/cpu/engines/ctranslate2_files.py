"""What CTranslate2 reads: `python -m benchmarks.cpu.engines.ctranslate2_files CHECKPOINT TARGET TYPE`."""

import sys
from types import SimpleNamespace
from typing import Any

from ctranslate2.converters import TransformersConverter


class _Converter(TransformersConverter):
    """The random models have no tokenizer: their tokens are named by their ids."""

    def load_tokenizer(self, tokenizer_class: Any, model_name_or_path: str, **kwargs: Any) -> Any:
        return SimpleNamespace(get_vocab=dict, bos_token="<s>", eos_token=name(2), unk_token=name(0))


def name(token_id: int) -> str:
    """Return the token that CTranslate2's Llama loader makes up for an id that no tokenizer knows."""
    return f"<extra_id_{token_id}>"


def main() -> int:
    source, target, compute_type = sys.argv[1:]
    _Converter(source).convert(target, quantization=compute_type, force=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
