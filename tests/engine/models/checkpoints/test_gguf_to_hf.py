"""GGUF files become checkpoints that compute what their numbers say."""

from collections.abc import Collection, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from safetensors.torch import load_file

from kvchat.engine.kernels.quantized_linear import dequantize
from kvchat.engine.models.checkpoints.gguf_file import open_gguf
from kvchat.engine.models.checkpoints.gguf_to_hf import write_converted
from kvchat.engine.models.checkpoints.prepared import WEIGHTS_FILE, prepared_bytes
from kvchat.engine.models.linear.quantized import QuantizedLinear
from kvchat.engine.models.load import load_model
from kvchat.engine.models.locate import locate_model
from kvchat.errors import KvchatError, ModelUnreadable, UnsupportedModel
from tests.engine.conftest import OpenEngine, TinyModels
from tests.engine.models import gguf_recurrent
from tests.engine.models.gguf_writer import ATTENTION, tiny, write_gguf
from tests.engine.tiny_models import answer, token_ids

pytestmark = pytest.mark.cpu

IDS = torch.arange(2, 66)[None] % 60 + 2
CPU = torch.device("cpu")


@pytest.fixture(name="small")
def small_models(request: pytest.FixtureRequest) -> TinyModels:
    """The tiny models that are directories."""
    found: TinyModels = request.getfixturevalue("tiny")
    return found


def some(kinds: Collection[str], forms: Sequence[Kind]) -> Iterator[Any]:
    """Return each kind in each form; by default in one of them, another one for the next kind."""
    for (number, kind), (place, form) in product(enumerate(kinds), enumerate(forms)):
        is_chosen = place == number % len(forms)
        yield pytest.param(kind, form, marks=() if is_chosen else pytest.mark.slow)


@pytest.mark.parametrize(
    ("kind", "quantized"),
    [
        *some(ATTENTION, [Kind.Q8_0, Kind.Q4_0, Kind.F16, Kind.F32]),
        *some(gguf_recurrent.KINDS, [Kind.Q8_0, Kind.F16]),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_a_file_computes_what_transformers_computes_with_its_numbers(
    kind: str, quantized: Kind, tmp_path: Path
) -> None:
    model = tiny(kind)
    expected = write_gguf(model, tmp_path / "model.gguf", kind, quantized)
    loaded = load_model(read(tmp_path / "model.gguf", tmp_path / "made"), "float32", CPU)
    layers = [name for name, layer in loaded.module.named_modules() if isinstance(layer, QuantizedLinear)]
    assert bool(layers) == quantized.name.startswith("Q")
    rest = {Kind.F32: torch.float32, Kind.F16: torch.float16}.get(quantized, torch.bfloat16)
    for name, numbers in expected.items():
        if name.removesuffix(".weight") not in layers:
            expected[name] = numbers.to(rest).float()
    model.load_state_dict(expected, strict=False)
    with torch.inference_mode():
        wanted, found = model(IDS).logits, loaded.module(IDS).logits
    # Where the embedding is the last layer too, the model here has its numbers in 16 bits for both.
    most = 2e-3 if layers and model.config.tie_word_embeddings else 1e-4
    assert float((found - wanted).abs().max() / wanted.abs().max()) < most


def test_quantized_numbers_are_taken_over_as_they_are(tmp_path: Path) -> None:
    """Rows of queries and keys are in another order in files of Llama; their codes move with them."""
    model = tiny("llama")
    expected = write_gguf(model, tmp_path / "model.gguf", "llama", Kind.Q4_0)
    module = load_model(read(tmp_path / "model.gguf", tmp_path / "made"), "auto", CPU).module
    names = [name for name, layer in module.named_modules() if isinstance(layer, QuantizedLinear)]
    assert len(names) == 7 * 2 + 1
    for name in names:
        layer = module.get_submodule(name)
        assert isinstance(layer, QuantizedLinear)
        assert torch.equal(dequantize(layer.quantized), expected[f"{name}.weight"])


def test_a_last_layer_that_shares_the_embedding_stays_quantized(tmp_path: Path) -> None:
    model = tiny("llama", tie_word_embeddings=True)
    write_gguf(model, tmp_path / "model.gguf", "llama", Kind.Q8_0)
    module = load_model(read(tmp_path / "model.gguf", tmp_path / "made"), "auto", CPU).module
    assert isinstance(module.get_submodule("lm_head"), QuantizedLinear)


def test_factors_of_the_rotary_embedding_divide_every_frequency(tmp_path: Path) -> None:
    factors = [1.0 + 0.25 * step for step in range(32)]
    write_gguf(tiny("llama"), tmp_path / "model.gguf", "llama", Kind.Q8_0, factors)
    loaded = load_model(read(tmp_path / "model.gguf", tmp_path / "made"), "auto", CPU)
    rotary = loaded.module.get_submodule("model.rotary_emb")
    plain = 10000.0 ** (-torch.arange(0, 64, 2) / 64)
    found = rotary.inv_freq
    assert isinstance(found, torch.Tensor)
    torch.testing.assert_close(found, plain / torch.tensor(factors))
    assert loaded.max_context == 512


def test_the_tokenizer_of_the_file_is_written_beside_the_weights(tmp_path: Path) -> None:
    write_gguf(tiny("qwen2"), tmp_path / "model.gguf", "qwen2", Kind.Q8_0)
    made = read(tmp_path / "model.gguf", tmp_path / "made")
    assert (made / "tokenizer.json").is_file()
    assert "m['content']" in (made / "chat_template.jinja").read_text()


def test_room_is_made_for_all_of_a_file_before_the_first_byte_is_written(tmp_path: Path) -> None:
    write_gguf(tiny("llama"), tmp_path / "model.gguf", "llama", Kind.Q8_0)
    asked: list[tuple[int, int]] = []
    directory = tmp_path / "made"
    directory.mkdir()

    def make_room(num_bytes: int) -> None:
        asked.append((num_bytes, len(list(directory.iterdir()))))

    write_converted(open_gguf(tmp_path / "model.gguf"), directory, lambda _: None, make_room)
    ((num_bytes, num_files),) = asked
    assert num_files == 0
    written = sum(path.stat().st_size for path in directory.iterdir())
    assert num_bytes >= (directory / "tokenizer.json").stat().st_size + weight_bytes(directory)
    assert written <= num_bytes + num_bytes // 256 + (1 << 16)


def test_blocks_make_room_for_what_is_made_of_a_file_before_their_store_is_opened(
    small: TinyModels, open_engine: OpenEngine, tmp_path: Path
) -> None:
    """The limit holds from the start on: nothing but the file has been looked for yet."""
    write_gguf(tiny("llama"), tmp_path / "model.gguf", "llama", Kind.Q8_0)
    model, cache_dir = str(tmp_path / "model.gguf"), tmp_path / "cache"
    directory = locate_model(model, cache_dir=tmp_path / "sized").path
    weights = prepared_bytes(directory.parent)
    engine = open_engine(small("llama"), cache_dir=cache_dir)
    answer(engine, token_ids(900), 8)
    engine.close()
    before = blocks_bytes(cache_dir)
    slack = weights // 128 + 2 * (1 << 16)
    assert before > 2 * slack
    limit = weights + slack + before // 2
    assert locate_model(model, cache_dir=cache_dir, disk_bytes=limit).path.name == directory.name
    assert before > blocks_bytes(cache_dir) > 0
    assert blocks_bytes(cache_dir) + prepared_bytes(cache_dir / "weights") <= limit


def blocks_bytes(cache_dir: Path) -> int:
    return sum(path.stat().st_size for path in (cache_dir / "blocks").rglob("*.*"))


def weight_bytes(directory: Path) -> int:
    return sum(tensor.nbytes for tensor in load_file(directory / WEIGHTS_FILE).values())


@pytest.mark.parametrize("num_bytes", [0, 3, 4, 20, 400, 3000, 100_000])
def test_a_file_that_is_cut_short_is_refused(num_bytes: int, tmp_path: Path) -> None:
    write_gguf(tiny("llama"), tmp_path / "whole.gguf", "llama", Kind.Q8_0)
    (tmp_path / "cut.gguf").write_bytes((tmp_path / "whole.gguf").read_bytes()[:num_bytes])
    with pytest.raises(ModelUnreadable):
        read(tmp_path / "cut.gguf", tmp_path / "made")


def test_another_architecture_is_refused_by_name(tmp_path: Path) -> None:
    from gguf import GGUFWriter

    writer = GGUFWriter(tmp_path / "model.gguf", "rwkv7")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UnsupportedModel, match="'rwkv7'"):
        open_gguf(tmp_path / "model.gguf")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["llama", "nemotron_h_moe"])
def test_no_flipped_byte_of_a_header_ends_in_anything_but_a_message(kind: str, tmp_path: Path) -> None:
    write_gguf(tiny(kind), tmp_path / "whole.gguf", kind, Kind.Q4_0)
    whole = (tmp_path / "whole.gguf").read_bytes()
    refused = []
    for position in range(0, 4000, 7):
        damaged = whole[:position] + bytes([whole[position] ^ 0xFF]) + whole[position + 1 :]
        (tmp_path / "damaged.gguf").write_bytes(damaged)
        made = tmp_path / str(position)
        try:
            read(tmp_path / "damaged.gguf", made)
        except KvchatError:
            refused.append(position)
    assert refused[0] == 0, "the first bytes say that it is a GGUF file"


def read(path: Path, directory: Path) -> Path:
    directory.mkdir()
    write_converted(open_gguf(path), directory, lambda _: None)
    return directory
