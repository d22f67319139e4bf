"""Chat messages to prompt text."""

from __future__ import annotations

import itertools
import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from engine.errors import ModelLoadError
from engine.text.chat_template import RESERVED, ChatTemplate
from engine.text.errors import TemplateError
from engine.text.model import TextModel
from engine.text.sandbox import Limits
from tests.engine.text import templates
from tests.engine.text.vocabularies import byte_level, byte_level_parts, token_id, write_directory, write_gguf

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "x": "<é&'>"}}}]
CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": {"city": "Oslo", "n": 1.5}}}
HI = {"role": "user", "content": "Hi <b> & 'you' \n"}
CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "one": [HI],
    "system": [{"role": "system", "content": " Be kind.\n"}, HI],
    "turns": [HI, {"role": "assistant", "content": " Hello 🙂 "}, {"role": "user", "content": ""}],
    "thought": [HI, {"role": "assistant", "content": "<think>\nhm\n</think>\n\nyes"}, HI],
    "reasoning": [HI, {"role": "assistant", "content": "yes", "reasoning": "hm", "refusal": None}],
    "tools": [
        HI,
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "rain"},
    ],
    "parts": [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image"}, {"type": "text", "text": "b"}]}
    ],
    "twice": [HI, HI],
}


def theirs(source: str | dict[str, str], messages: list[dict[str, Any]], **options: Any) -> str | None:
    """What `transformers` renders; None if it raises."""
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=byte_level(), chat_template=source, **SPECIAL)
    try:
        text = tokenizer.apply_chat_template(messages, tokenize=False, **options)
    except Exception:
        return None
    assert isinstance(text, str)
    return text


def ours(source: str | dict[str, str], messages: list[dict[str, Any]], **options: Any) -> str | None:
    """What we render; None if it raises."""
    try:
        return ChatTemplate(source, SPECIAL).render(messages, **options)
    except TemplateError:
        return None


@pytest.mark.parametrize("style", templates.ALL)
@pytest.mark.parametrize("conversation", CONVERSATIONS)
def test_the_text_is_what_transformers_renders(style: str, conversation: str) -> None:
    source, messages = templates.ALL[style], CONVERSATIONS[conversation]
    for tools, prompt in itertools.product((None, TOOLS), (True, False)):
        options: dict[str, Any] = {"tools": tools, "add_generation_prompt": prompt}
        assert ours(source, messages, **options) == theirs(source, messages, **options)
    options = {"add_generation_prompt": False, "continue_final_message": True}
    assert ours(source, messages, **options) == theirs(source, messages, **options)


def test_further_variables_reach_the_template() -> None:
    for thinking in (True, False):
        rendered = ours(templates.QWEN3, [HI], enable_thinking=thinking)
        assert rendered == theirs(templates.QWEN3, [HI], add_generation_prompt=True, enable_thinking=thinking)
    assert rendered is not None
    assert rendered.endswith("<think>\n\n</think>\n\n")


def test_a_template_that_raises_gives_its_own_words() -> None:
    with pytest.raises(TemplateError, match="conversation roles must alternate user/assistant!"):
        ChatTemplate(templates.MISTRAL, SPECIAL).render([HI, HI])


def test_named_templates_are_chosen_by_the_presence_of_tools() -> None:
    named = {"default": "plain", "tool_use": "{{ tools | length }} tools"}
    assert ours(named, [HI]) == theirs(named, [HI]) == "plain"
    assert ours(named, [HI], tools=TOOLS) == theirs(named, [HI], tools=TOOLS) == "1 tools"


def test_continuing_ends_inside_the_last_message_even_if_the_template_trims_it() -> None:
    messages = [HI, {"role": "assistant", "content": "The answer is "}]
    options: dict[str, Any] = {"add_generation_prompt": False, "continue_final_message": True}
    kept, trimmed = ours(templates.CHATML, messages, **options), ours(templates.MISTRAL, messages, **options)
    assert kept is not None
    assert trimmed is not None
    assert kept.endswith("assistant\nThe answer is ")
    assert trimmed.endswith(" The answer is")
    assert trimmed == theirs(templates.MISTRAL, messages, **options)


@pytest.mark.parametrize(
    ("messages", "options"),
    [
        ([], {}),
        ([HI], {"continue_final_message": True}),
        ([{"role": "assistant"}], {"continue_final_message": True, "add_generation_prompt": False}),
        ([{"role": "user", "content": object()}], {}),
        (["text"], {}),
    ],
)
def test_what_makes_no_sense_is_refused(messages: list[Any], options: dict[str, Any]) -> None:
    with pytest.raises(TemplateError):
        ChatTemplate(templates.CHATML, SPECIAL).render(messages, **options)


def test_the_callers_messages_stay_as_they_are() -> None:
    messages: list[dict[str, Any]] = [
        HI,
        {"role": "assistant", "content": [{"type": "text", "text": "x"}], "name": None},
    ]
    before = json.dumps(messages)
    ours(templates.PARTS, messages, add_generation_prompt=False, continue_final_message=True)
    assert json.dumps(messages) == before


def test_the_date_comes_from_the_given_clock() -> None:
    template = ChatTemplate("{{ strftime_now('%d %b %Y') }}", now=lambda: datetime(2026, 3, 4))
    assert template.render([HI]) == "04 Mar 2026"


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{% set ns = namespace() %}{% set ns._x = 1 %}",
        "{{ 'a' * 100000000 }}",
        "{{ [0] * 100000000 }}",
        "{{ 10 ** 100000000 }}",
        "{% for i in range(1000000) %}{% endfor %}",
        "{{ undefined.attribute }}",
        "{{ messages[7].role }}",
        "{{ 1 + 'a' }}",
        "{{ 1 // 0 }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% include 'secrets' %}",
    ],
)
def test_whatever_goes_wrong_while_rendering_is_one_kind_of_error(source: str) -> None:
    template = ChatTemplate(source)
    with pytest.raises(TemplateError) as caught:
        template.render([HI])
    assert caught.value.message


def test_a_template_that_writes_too_much_is_ended() -> None:
    source = "{% for i in range(1000) %}0123456789{% endfor %}"
    assert len(ChatTemplate(source).render([HI])) == 10_000
    with pytest.raises(TemplateError, match="more than 5000 characters"):
        ChatTemplate(source, limits=Limits(max_chars=5000)).render([HI])


def test_a_template_that_runs_too_long_is_ended() -> None:
    source = "{% for i in range(99999) %}{% for j in range(99999) %}x{% endfor %}{% endfor %}"
    with pytest.raises(TemplateError, match="longer than"):
        ChatTemplate(source, limits=Limits(max_s=0.05)).render([HI])


def test_a_silent_loop_is_ended_too() -> None:
    source = (
        "{% for i in range(99999) %}{% for j in range(99999) %}{% if i.real < 0 %}x{% endif %}{% endfor %}{% endfor %}"
    )
    with pytest.raises(TemplateError, match="longer than"):
        ChatTemplate(source, limits=Limits(max_s=0.05)).render([HI])


def test_a_template_is_found_wherever_directories_keep_it(tmp_path: Path) -> None:
    library = byte_level()
    text = "{{ bos_token }}{{ messages[0].content }}"
    config = {"bos_token": {"content": "<s>"}, "chat_template": text}
    in_config = ChatTemplate.load(write_directory(tmp_path / "config", library, config))
    named = [{"name": "default", "template": text}, {"name": "tool_use", "template": "x"}]
    in_list = ChatTemplate.load(write_directory(tmp_path / "list", library, config | {"chat_template": named}))
    directory = write_directory(tmp_path / "file", library, config | {"chat_template": "the file wins"})
    (directory / "chat_template.jinja").write_text(text, encoding="utf-8")
    in_file = ChatTemplate.load(directory)
    for template in (in_config, in_list, in_file):
        assert template is not None
        assert template.render([HI]) == "<s>" + HI["content"]


def test_a_gguf_file_holds_template_and_special_tokens(tmp_path: Path) -> None:
    library = byte_level()
    path = write_gguf(
        tmp_path / "model.gguf",
        **byte_level_parts(library),
        ids={"bos_token_id": token_id(library, "<|begin|>")},
        chat_template="{{ bos_token }}{{ messages[0].content }}",
    )
    template = ChatTemplate.load(path)
    assert template is not None
    assert template.render([HI]) == "<|begin|>" + HI["content"]


def test_a_model_without_a_template_has_none(tmp_path: Path) -> None:
    library = byte_level()
    assert ChatTemplate.load(write_directory(tmp_path / "a", library, {})) is None
    assert ChatTemplate.load(write_gguf(tmp_path / "a.gguf", **byte_level_parts(library))) is None


@pytest.mark.parametrize("value", ["{% if %}", 7, [{"name": "other", "template": "x"}], [{"name": "default"}]])
def test_a_template_that_is_none_is_refused_at_loading(tmp_path: Path, value: object) -> None:
    directory = write_directory(tmp_path, byte_level(), {"chat_template": value})
    with pytest.raises(ModelLoadError, match="template"):
        ChatTemplate.load(directory)


def test_a_template_tells_which_words_it_uses() -> None:
    template = ChatTemplate(templates.QWEN3)
    assert template.uses("tools")
    assert template.uses("enable_thinking")
    assert not template.uses("documents")


def test_names_that_steer_rendering_are_reserved() -> None:
    assert {"messages", "tools", "add_generation_prompt", "chat_template", "tokenize", "max_length"} <= RESERVED
    assert "enable_thinking" not in RESERVED


@pytest.mark.real_model
def test_the_real_template_renders_a_conversation(smollm2: TextModel) -> None:
    assert smollm2.chat_template is not None
    text = smollm2.chat_template.render([{"role": "user", "content": "Hi"}])
    assert text == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    for messages in (CONVERSATIONS["turns"], CONVERSATIONS["system"]):
        source = smollm2.chat_template.source
        assert smollm2.chat_template.render(messages) == theirs(source, messages, add_generation_prompt=True)
