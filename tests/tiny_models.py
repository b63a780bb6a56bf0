"""Model directories with a real tokenizer and a real chat template, and no weights."""

import json
from functools import cache
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

_TEXT = [
    "Hello! How can I help you today? My name is Ana and I live in Oslo.",
    "What is a KV cache? It stores keys and values of the tokens seen so far.",
    "user assistant system model You are a helpful assistant. end of turn",
    "Grüße aus Köln: 1, 2, 3, 4, 5, 6, 7, 8, 9, 0. The answer is no.",
] * 4

# Published templates, condensed to what decides the form of a conversation.
STARTER = (
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
LLAMA3 = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'"
    " + message['content'] | trim + '<|eot_id|>' }}"
    "{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"
)
GEMMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}{% for message in messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant') }}{% endif %}"
    "{% if message['role'] == 'assistant' %}{% set role = 'model' %}{% else %}"
    "{% set role = message['role'] %}{% endif %}"
    "{{ '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"
)
MISTRAL = (
    "{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] %}"
    "{% set messages = messages[1:] %}{% endif %}{{ bos_token }}{% for message in messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}{% if message['role'] == 'user' %}"
    "{% if loop.last and system is defined %}"
    "{{ '[INST] ' + system + '\\n\\n' + message['content'] + '[/INST]' }}{% else %}"
    "{{ '[INST] ' + message['content'] + '[/INST]' }}{% endif %}{% else %}"
    "{{ ' ' + message['content'] + eos_token }}{% endif %}{% endfor %}"
)
QWEN_THINKING = (
    "{% set ns = namespace(last=0) %}{% for message in messages %}{% if message.role == 'user' %}"
    "{% set ns.last = loop.index0 %}{% endif %}{% endfor %}{% for message in messages %}"
    "{% set content = message.content %}"
    "{% if message.role == 'assistant' and '</think>' in content and loop.index0 < ns.last %}"
    "{% set content = content.split('</think>')[-1].lstrip('\\n') %}{% endif %}"
    "{{ '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
DATED = (
    "{{ bos_token }}{{ 'Today is ' + strftime_now('%d %b %Y') + '.' }}{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

_SPECIALS = {
    STARTER: ["<|pad|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"],
    CHATML: ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
    LLAMA3: ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
    GEMMA: ["<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"],
    MISTRAL: ["<s>", "</s>", "[INST]", "[/INST]"],
    QWEN_THINKING: ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
    DATED: ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
}
_ENDS = {
    STARTER: "<|end|>",
    CHATML: "<|im_end|>",
    LLAMA3: "<|eot_id|>",
    GEMMA: "<eos>",
    MISTRAL: "</s>",
    QWEN_THINKING: "<|im_end|>",
    DATED: "<|im_end|>",
}
TEMPLATES = {
    "starter": STARTER,
    "chatml": CHATML,
    "llama3": LLAMA3,
    "gemma": GEMMA,
    "mistral": MISTRAL,
    "qwen-thinking": QWEN_THINKING,
    "dated": DATED,
}


def write_model(model_dir: Path, template: str | None = STARTER, *, sentencepiece: bool = False) -> Path:
    """Write tokenizer, template and configuration; `template` None: no template at all."""
    model_dir.mkdir(parents=True, exist_ok=True)
    specials = _SPECIALS[template or STARTER]
    thinks = ("<think>", "</think>") if template == QWEN_THINKING else ()
    text = _sentencepiece(tuple(specials)) if sentencepiece else _byte_level(tuple(specials), thinks)
    (model_dir / "tokenizer.json").write_text(text)
    config = {"bos_token": specials[0], "eos_token": _ENDS[template or STARTER]}
    (model_dir / "tokenizer_config.json").write_text(json.dumps(config))
    if template is not None:
        (model_dir / "chat_template.jinja").write_text(template)
    return model_dir


@cache
def _byte_level(specials: tuple[str, ...], thinks: tuple[str, ...]) -> str:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=list(specials),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_TEXT, trainer)
    tokenizer.add_tokens([AddedToken(think, special=False, normalized=False) for think in thinks])
    return tokenizer.to_str()


@cache
def _sentencepiece(specials: tuple[str, ...]) -> str:
    """A BPE with byte fallback and blanks as `▁`, as Llama 2, Mistral and Gemma have."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=700, special_tokens=["<unk>", *specials], show_progress=False, max_token_length=8
    )
    tokenizer.train_from_iterator(_TEXT, trainer)
    data = json.loads(tokenizer.to_str())
    vocab = data["model"]["vocab"]
    for token in tokens:
        vocab[token] = len(vocab)
    return json.dumps(data)
