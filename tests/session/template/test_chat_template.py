import json
from datetime import datetime
from pathlib import Path

import pytest

from kvchat.errors import ModelUnreadable, UnsupportedModel
from kvchat.session.template.chat_template import SYSTEM, ChatTemplate, Message
from kvchat.session.tree import Role
from tests.tiny_models import CHATML, DATED, GEMMA, MISTRAL, QWEN_THINKING, TEMPLATES, write_model

pytestmark = pytest.mark.pure

HISTORY = [
    Message(SYSTEM, "Be kind."),
    Message(Role.USER, "My name is Ana."),
    Message(Role.ASSISTANT, "Hello, Ana!"),
]
ENDS = {
    "starter": "<|end|>",
    "chatml": "<|im_end|>",
    "llama3": "<|eot_id|>",
    "gemma": "<end_of_turn>",
    "mistral": "</s>",
    "qwen-thinking": "<|im_end|>",
    "dated": "<|im_end|>",
}
SPELLINGS = [(name, False) for name in TEMPLATES] + [("gemma", True), ("mistral", True), ("starter", True)]


def template_of(tmp_path: Path, source: str | None, *, sentencepiece: bool = False) -> ChatTemplate:
    return ChatTemplate.from_dir(write_model(tmp_path / "model", source, sentencepiece=sentencepiece))


def text_of(template: ChatTemplate, ids: list[int]) -> str:
    return template.tokenizer.decode(ids, keep_control=True)


@pytest.mark.parametrize(("name", "sentencepiece"), SPELLINGS)
def test_a_question_behind_an_answer_continues_what_the_model_saw(
    tmp_path: Path, name: str, sentencepiece: bool
) -> None:
    """Trap 29: ids of old answers stay, and what follows them is what the template would write."""
    template = template_of(tmp_path, TEMPLATES[name], sentencepiece=sentencepiece)
    end = template.tokenizer.id_of(ENDS[name])
    assert end in template.end_ids
    answer = [*template.tokenizer.encode("Hello, Ana!"), end]
    seen = template.whole((), "My name is Ana.") + answer
    ids = seen + template.following(HISTORY[1:], "What is my name?", sorted(template.end_ids))
    rendered = text_of(template, template.whole(HISTORY[1:], "What is my name?"))
    if name == "mistral":
        # The template writes a blank before an answer, the model did not; everything else is as rendered.
        rendered = rendered.replace("[/INST] ", "[/INST]")
    assert text_of(template, ids) == rendered


@pytest.mark.parametrize("name", TEMPLATES)
def test_an_answer_that_was_cut_short_is_ended_by_the_next_question(tmp_path: Path, name: str) -> None:
    template = template_of(tmp_path, TEMPLATES[name])
    ended = text_of(template, template.following(HISTORY, "And?", sorted(template.end_ids)))
    cut = text_of(template, template.following(HISTORY, "And?", ()))
    assert cut.startswith(ENDS[name])
    assert cut == ENDS[name] + ended


@pytest.mark.parametrize("name", TEMPLATES)
def test_what_follows_does_not_depend_on_how_the_answer_is_spelt(tmp_path: Path, name: str) -> None:
    """Trap 30: blanks and reasoning in an answer change nothing behind it."""
    template = template_of(tmp_path, TEMPLATES[name])
    expected = template.following(HISTORY, "And?", sorted(template.end_ids))
    for content in ("", "  \n", "Hello \n\n", "<think>\n\n</think>\n\n", "a" + ENDS[name]):
        history = [*HISTORY[:-1], Message(Role.ASSISTANT, content)]
        assert template.following(history, "And?", sorted(template.end_ids)) == expected


def test_the_line_end_behind_an_end_of_turn_belongs_to_the_next_question(tmp_path: Path) -> None:
    template = template_of(tmp_path, CHATML)
    ids = template.following(HISTORY, "And?", sorted(template.end_ids))
    assert text_of(template, ids) == "\n<|im_start|>user\nAnd?<|im_end|>\n<|im_start|>assistant\n"


def test_a_template_that_drops_reasoning_is_reported(tmp_path: Path) -> None:
    template = template_of(tmp_path, QWEN_THINKING)
    thought = [*HISTORY[:-1], Message(Role.ASSISTANT, "Hello, Ana!", "She says her name.")]
    rewrite = template.history_rewrite(thought)
    assert rewrite is not None
    assert "('<think>" in rewrite
    assert "would become 'Hello, Ana!" in rewrite
    assert "kvchat keeps" in str(rewrite)
    assert template.history_rewrite(HISTORY) is None


def test_a_template_that_moves_the_system_prompt_is_reported_and_not_followed(tmp_path: Path) -> None:
    template = template_of(tmp_path, MISTRAL)
    rewrite = template.history_rewrite(HISTORY)
    assert rewrite is not None
    assert "('Be kind." in rewrite
    ids = template.following(HISTORY, "And?", sorted(template.end_ids))
    assert text_of(template, ids) == "[INST] And?[/INST]"


def test_a_system_prompt_that_the_template_refuses_goes_before_the_first_message(tmp_path: Path) -> None:
    template = template_of(tmp_path, GEMMA)
    text = text_of(template, template.whole([Message("system", "Be kind.")], "Hello"))
    assert text == "<bos><start_of_turn>user\nBe kind.\n\nHello<end_of_turn>\n<start_of_turn>model\n"
    assert any("system prompt" in warning for warning in template.warnings)
    following = text_of(template, template.following(HISTORY, "And?", sorted(template.end_ids)))
    assert following == "\n<start_of_turn>user\nAnd?<end_of_turn>\n<start_of_turn>model\n"


def test_an_end_of_turn_that_swallows_blanks_swallows_them_here_too(tmp_path: Path) -> None:
    """Some models' control tokens take the white space behind them with them."""
    model_dir = write_model(tmp_path, CHATML)
    data = json.loads((model_dir / "tokenizer.json").read_text())
    for token in data["added_tokens"]:
        token["rstrip"] = token["content"] == "<|im_end|>"
    (model_dir / "tokenizer.json").write_text(json.dumps(data))
    template = ChatTemplate.from_dir(model_dir)
    end = template.tokenizer.id_of("<|im_end|>")
    answer = [*template.tokenizer.encode("Hello, Ana!"), end]
    ids = template.whole((), "My name is Ana.") + answer
    ids += template.following(HISTORY[1:], "And?", sorted(template.end_ids))
    assert ids == template.whole(HISTORY[1:], "And?")


def test_the_date_in_a_template_is_the_one_that_it_is_told(tmp_path: Path) -> None:
    template = template_of(tmp_path, DATED)
    text = text_of(template, template.whole((), "Hello", now=datetime(2026, 2, 3)))
    assert "Today is 03 Feb 2026." in text


def test_a_model_without_template_is_spoken_to_plainly_and_says_so(tmp_path: Path) -> None:
    template = template_of(tmp_path, None)
    assert (
        text_of(template, template.whole([Message("system", "Be kind.")], "Hello"))
        == "Be kind.\n\nUser: Hello\nAssistant:"
    )
    assert any("no chat template" in warning for warning in template.warnings)
    assert template.stop_strings == ("\nUser:",)
    history = [Message(Role.USER, "Hello"), Message(Role.ASSISTANT, "Hi")]
    assert text_of(template, template.following(history, "And?", ())) == "\nUser: And?\nAssistant:"


def test_a_prompt_that_opens_the_reasoning_is_noticed(tmp_path: Path) -> None:
    template = template_of(tmp_path, QWEN_THINKING)
    opening, closing = template.tokenizer.think_ids or (0, 0)
    token = template.tokenizer.encode("Hello")[0]
    for prompt, reasoning in (([1, opening], True), ([opening, closing], False), ([1], False)):
        assert template.stream(prompt).feed(token)[0].reasoning is reasoning


@pytest.mark.parametrize("where", ["chat_template.json", "tokenizer_config.json", "named"])
def test_a_template_is_found_wherever_models_keep_it(tmp_path: Path, where: str) -> None:
    model_dir = write_model(tmp_path, CHATML)
    (model_dir / "chat_template.jinja").unlink()
    if where == "chat_template.json":
        (model_dir / where).write_text(json.dumps({"chat_template": CHATML}))
    else:
        named = [{"name": "tool_use", "template": "x"}, {"name": "default", "template": CHATML}]
        config = {
            "eos_token": {"content": "<|im_end|>"},
            "chat_template": CHATML if where != "named" else named,
        }
        (model_dir / "tokenizer_config.json").write_text(json.dumps(config))
    template = ChatTemplate.from_dir(model_dir)
    assert not template.is_plain
    assert text_of(template, template.whole((), "Hello")).startswith("<|im_start|>user\nHello")


@pytest.mark.parametrize("ends", [2, [1, 2], None])
def test_end_of_turn_ids_come_from_every_file_that_names_them(tmp_path: Path, ends: object) -> None:
    model_dir = write_model(tmp_path, CHATML)
    (model_dir / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    (model_dir / "config.json").write_text(json.dumps({"eos_token_id": 0}))
    named = {0} | set(ends if isinstance(ends, list) else [] if ends is None else [ends])
    template = ChatTemplate.from_dir(model_dir)
    assert named <= template.end_ids
    assert template.tokenizer.id_of("<|im_end|>") in template.end_ids


def test_a_broken_template_is_named_with_its_file(tmp_path: Path) -> None:
    model_dir = write_model(tmp_path, CHATML)
    (model_dir / "chat_template.jinja").write_text("{% for %}")
    with pytest.raises(ModelUnreadable, match=r"chat_template\.jinja"):
        ChatTemplate.from_dir(model_dir)
    (model_dir / "chat_template.jinja").write_text(CHATML)
    (model_dir / "tokenizer_config.json").write_text("{")
    with pytest.raises(ModelUnreadable, match=r"tokenizer_config\.json"):
        ChatTemplate.from_dir(model_dir)


def test_a_template_that_refuses_or_forgets_is_unsupported(tmp_path: Path) -> None:
    refusing = "{{ raise_exception('no') }}"
    model_dir = write_model(tmp_path / "a", CHATML)
    (model_dir / "chat_template.jinja").write_text(refusing)
    with pytest.raises(UnsupportedModel, match="refuses"):
        ChatTemplate.from_dir(model_dir).whole((), "Hello")
    (model_dir / "chat_template.jinja").write_text("{{ messages[-1].content }}")
    with pytest.raises(UnsupportedModel, match="leaves out"):
        ChatTemplate.from_dir(model_dir).following(HISTORY, "Hello", ())


@pytest.mark.parametrize(
    "attack",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{% set x = messages.__init__.__globals__ %}{{ x['os'] }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    ],
)
def test_a_template_is_a_stranger_and_gets_nowhere(tmp_path: Path, attack: str) -> None:
    model_dir = write_model(tmp_path, CHATML)
    (model_dir / "chat_template.jinja").write_text(attack)
    with pytest.raises(UnsupportedModel):
        ChatTemplate.from_dir(model_dir).whole((), "Hello")


def test_templates_render_as_the_published_library_renders_them(tmp_path: Path) -> None:
    sources = {
        "{% for m in messages %}\n  {% if loop.first %}{% continue %}{% endif %}\n  {{ m.content }}\n"
        "{% endfor %}": "two",
        "{{ messages | tojson }}": '"<&\'é"',
        "{% generation %}{{ messages[0].content }}{% endgeneration %}": "one",
    }
    for at, (source, content) in enumerate(sources.items()):
        model_dir = write_model(tmp_path / str(at), CHATML)
        (model_dir / "chat_template.jinja").write_text(source)
        template = ChatTemplate.from_dir(model_dir)
        history = [Message(Role.USER, "one"), Message(Role.ASSISTANT, "x")]
        text = text_of(template, template.whole(history, content.strip('"')))
        assert content.strip('"') in text
