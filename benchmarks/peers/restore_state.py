"""llama.cpp's restore of a saved state, in a process of its own: `PYTHON restore_state.py DIRECTORY TOKENS`.

Needs the packages `llama-cpp-python` and `gguf`, and nothing of kvchat, so that any interpreter that has them
can run it. It writes a model with random weights whose cache has 40 KiB per token, fills it, saves the state
to `DIRECTORY/state`, and prints how many bytes are keys and values. Then each line of its input makes it
restore the state once and print the seconds: `file` by llama.cpp's own function for files, `bytes` as
`llama_cpp.Llama.load_state` does, from bytes that were read from `DIRECTORY/bytes`.
"""

import ctypes
import os
import sys
from pathlib import Path
from time import perf_counter

import gguf
import llama_cpp
import numpy as np

NUM_LAYERS, NUM_HEADS, HEAD_DIM = 32, 5, 64
HIDDEN = NUM_HEADS * HEAD_DIM
FEED_FORWARD = 128
VOCABULARY = 256
CHUNK = 512
KV_BYTES_PER_TOKEN = NUM_LAYERS * NUM_HEADS * HEAD_DIM * 2 * 2


def main(directory: Path, num_tokens: int) -> None:
    _write_model(directory / "model.gguf")
    context = _open(directory / "model.gguf", num_tokens)
    tokens = (llama_cpp.llama_token * num_tokens)(*[number % VOCABULARY for number in range(num_tokens)])
    for start in range(0, num_tokens, CHUNK):
        length = min(CHUNK, num_tokens - start)
        chunk = (llama_cpp.llama_token * length)(*tokens[start : start + length])
        assert llama_cpp.llama_decode(context, llama_cpp.llama_batch_get_one(chunk, length)) == 0
    state = str(directory / "state").encode()
    assert llama_cpp.llama_state_save_file(context, state, tokens, num_tokens)
    descriptor = os.open(state, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)
    print(num_tokens * KV_BYTES_PER_TOKEN, flush=True)
    (directory / "bytes").write_bytes(_state_bytes(context))
    for line in sys.stdin:
        from_file = line.strip() == "file"
        seconds = (
            _restore_s(context, state, num_tokens) if from_file else _set_s(context, directory / "bytes")
        )
        print(seconds, flush=True)


def _restore_s(context: object, state: bytes, num_tokens: int) -> float:
    llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), False)
    tokens, count = (llama_cpp.llama_token * num_tokens)(), ctypes.c_size_t()
    begun_s = perf_counter()
    is_loaded = llama_cpp.llama_state_load_file(context, state, tokens, num_tokens, ctypes.byref(count))
    seconds = perf_counter() - begun_s
    assert is_loaded
    assert count.value == num_tokens
    return seconds


def _state_bytes(context: object) -> bytes:
    place = (ctypes.c_uint8 * llama_cpp.llama_state_get_size(context))()
    num_bytes = llama_cpp.llama_state_get_data(context, place, len(place))
    return bytes(place)[:num_bytes]


def _set_s(context: object, path: Path) -> float:
    llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), False)
    begun_s = perf_counter()
    data = path.read_bytes()
    place = (ctypes.c_uint8 * len(data)).from_buffer_copy(data)
    assert llama_cpp.llama_state_set_data(context, place, len(data)) == len(data)
    return perf_counter() - begun_s


def _open(path: Path, num_tokens: int) -> object:
    llama_cpp.llama_backend_init()
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), llama_cpp.llama_model_default_params())
    params = llama_cpp.llama_context_default_params()
    params.n_ctx = -(-num_tokens // 256) * 256
    params.n_batch = CHUNK
    params.n_threads = params.n_threads_batch = len(os.sched_getaffinity(0))
    context = llama_cpp.llama_init_from_model(model, params)
    assert context is not None
    return context


def _write_model(path: Path) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(NUM_LAYERS)
    writer.add_context_length(1 << 15)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(NUM_HEADS)
    writer.add_head_count_kv(NUM_HEADS)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(VOCABULARY)
    writer.add_tokenizer_model("no_vocab")
    random = np.random.default_rng(0)
    square, wide, narrow = (HIDDEN, HIDDEN), (FEED_FORWARD, HIDDEN), (HIDDEN, FEED_FORWARD)
    shapes = {"token_embd": (VOCABULARY, HIDDEN), "output_norm": (HIDDEN,)}
    for layer in range(NUM_LAYERS):
        shapes |= {f"blk.{layer}.{name}": square for name in ("attn_q", "attn_k", "attn_v", "attn_output")}
        shapes |= {f"blk.{layer}.{name}": wide for name in ("ffn_gate", "ffn_up")}
        shapes |= {f"blk.{layer}.ffn_down": narrow}
        shapes |= {f"blk.{layer}.{name}": (HIDDEN,) for name in ("attn_norm", "ffn_norm")}
    for name, shape in shapes.items():
        dtype = np.float32 if len(shape) == 1 else np.float16
        writer.add_tensor(f"{name}.weight", random.normal(0, 0.05, shape).astype(dtype))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
