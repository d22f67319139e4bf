"""Messages behind a history, whatever is in it."""

from __future__ import annotations

from typing import Any

import pytest

from engine.text.chat_template import ChatTemplate
from engine.text.errors import TemplateError
from extensions.programs.transcript import ChatWriter, Edit, Transcript, read_messages
from tests.engine.text.templates import ALL as FAMILIES
from tests.fakes import TEMPLATE, text_model

TEXT = text_model()
END = TEXT.tokenizer.encode("<|end|>", add_special=False)
TRIMS = (
    "{% if messages[0].role != 'system' %}<|begin|>system\nBe good.<|end|>\n{% endif %}"
    "{% for message in messages %}<|begin|>{{ message.role }}\n{{ message.content | trim }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|begin|>assistant\n{% endif %}"
)
FORGETS = (
    "{% for message in messages %}{% if message.role != 'assistant' or loop.last %}"
    "<|begin|>{{ message.role }}\n{{ message.content }}<|end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|begin|>assistant\n{% endif %}"
)
OPENS = "{{ bos_token }}" + TEMPLATE


class Talk:
    """A history that is edited as a context edits its own."""

    def __init__(self, template: str | None = TEMPLATE) -> None:
        compiled = None if template is None else ChatTemplate(template, {"bos_token": "<|begin|>"})
        self.writer = ChatWriter(compiled, TEXT.tokenizer, frozenset(END))
        self.ids: list[int] = []
        self.transcript = Transcript()

    def add(self, *messages: tuple[str, str]) -> None:
        given = [{"role": role, "content": content} for role, content in messages]
        self._take(self.writer.append(self.transcript, self.ids, given))

    def answer(self, text: str, *, ends: bool = True) -> None:
        if self.transcript.awaits_answer:
            self._take(self.writer.open_answer(self.transcript, self.ids))
        self.raw(text + ("<|end|>" if ends else ""))

    def raw(self, text: str) -> None:
        self.ids += TEXT.tokenizer.encode(text, add_special=False)
        self.transcript = self.transcript.fixed(len(self.ids))

    @property
    def text(self) -> str:
        return TEXT.tokenizer.decode(self.ids, skip_special=False)

    def _take(self, edit: Edit) -> None:
        assert edit.num_kept >= self.transcript.num_fixed
        self.ids = [*self.ids[: edit.num_kept], *edit.token_ids]
        self.transcript = edit.transcript


def rendered(messages: list[dict[str, Any]], *, opens: bool, template: str = TEMPLATE) -> str:
    return ChatTemplate(template).render(messages, add_generation_prompt=opens)


def test_messages_are_what_the_template_makes_of_them_however_they_come() -> None:
    messages = [("system", "Be kind."), ("user", "Hi"), ("assistant", "Yes?"), ("user", "Why?")]
    whole = Talk()
    whole.add(*messages)
    parts = Talk()
    for message in messages:
        parts.add(message)
    as_dicts = [{"role": role, "content": content} for role, content in messages]
    assert whole.ids == parts.ids
    assert whole.text == rendered(as_dicts, opens=False)
    whole.answer("")
    assert whole.text == rendered(as_dicts, opens=True) + "<|end|>"


def test_a_conversation_goes_on_as_the_template_would_have_it() -> None:
    talk = Talk()
    talk.add(("user", "Hi"))
    talk.answer("Yes?")
    talk.add(("user", "Why?"))
    talk.answer("So.")
    assert talk.text == rendered(
        [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "Yes?"},
            {"role": "user", "content": "Why?"},
            {"role": "assistant", "content": "So."},
        ],
        opens=False,
    ).removesuffix("\n")


def test_an_answer_that_was_cut_short_is_closed() -> None:
    talk = Talk()
    talk.add(("user", "Hi"))
    talk.answer("Well, I", ends=False)
    talk.add(("user", "Stop"))
    assert talk.text.endswith("Well, I<|end|>\n<|begin|>user\nStop<|end|>\n")
    assert talk.text.count("<|end|>") == 3


def test_text_behind_an_answer_stays_in_its_turn() -> None:
    talk = Talk()
    talk.add(("user", "Hi"))
    talk.answer("Let me see.", ends=False)
    talk.raw("\nResults: 3")
    talk.answer(" Three.")
    talk.add(("user", "Thanks"))
    assert talk.text == (
        "<|begin|>user\nHi<|end|>\n<|begin|>assistant\nLet me see.\nResults: 3 Three.<|end|>\n"
        "<|begin|>user\nThanks<|end|>\n"
    )


def test_what_the_model_said_stays_as_it_said_it() -> None:
    talk = Talk(TRIMS)
    talk.add(("user", "Hi"))
    talk.answer("  spaces  ")
    before = list(talk.ids)
    talk.add(("user", "Why?"))
    assert talk.ids[: len(before)] == before
    assert talk.text == (
        "<|begin|>system\nBe good.<|end|>\n<|begin|>user\nHi<|end|>\n<|begin|>assistant\n  spaces  <|end|>\n"
        "<|begin|>user\nWhy?<|end|>\n"
    )


def test_a_template_that_cannot_go_on_says_so() -> None:
    talk = Talk(FORGETS)
    talk.add(("user", "Hi"))
    talk.raw("x")
    talk.add(("user", "more"))
    forgetful = Talk(FORGETS)
    forgetful.add(("user", "Hi"), ("assistant", "Yes"))
    forgetful.raw("!")
    with pytest.raises(TemplateError, match="cannot go on"):
        forgetful.add(("user", "Why?"))


def test_a_template_that_leaves_old_answers_out_cannot_write_behind_one_that_it_left_out() -> None:
    talk = Talk(FORGETS)
    talk.add(("user", "Hi"))
    talk.answer("Yes")
    before = talk.text
    with pytest.raises(TemplateError, match="cannot go on"):
        talk.add(("user", "Why?"))
    assert talk.text == before


def test_the_opening_of_a_conversation_is_written_once() -> None:
    talk = Talk(OPENS)
    talk.raw("Some text.")
    talk.add(("user", "Hi"))
    assert talk.text == "Some text.<|begin|>user\nHi<|end|>\n"
    chat = Talk(OPENS)
    chat.add(("user", "Hi"))
    chat.answer("Yes")
    chat.add(("user", "Why"))
    assert chat.text.startswith("<|begin|><|begin|>user")
    assert chat.text.count("<|begin|>") == 4


def test_messages_that_the_template_refuses_are_refused() -> None:
    talk = Talk()
    talk.add(("user", "Hi"))
    before = list(talk.ids)
    with pytest.raises(TemplateError, match="roles must alternate"):
        talk.add(("user", "Hi again"))
    assert talk.ids == before


def test_a_model_without_a_template_takes_no_messages() -> None:
    with pytest.raises(TemplateError, match="no chat template"):
        Talk(None).add(("user", "Hi"))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([1], r"messages\[0\] must be a dict"),
        ([{"content": "x"}], r"messages\[0\] has no role"),
        ([{"role": "user", "content": "x"}, {"role": 3}], r"messages\[1\] has no role"),
        ([{"role": "user", "content": [1]}], r"messages\[0\]: content must be text"),
    ],
)
def test_what_is_no_message_is_refused(given: list[Any], message: str) -> None:
    with pytest.raises(TemplateError, match=message):
        read_messages(given)


def test_a_cut_history_forgets_what_was_not_settled() -> None:
    talk = Talk()
    talk.add(("user", "Hi"))
    talk.answer("Yes?")
    settled = talk.transcript
    talk.add(("user", "Why?"))
    cut = talk.transcript.cut(len(talk.ids) - 1)
    assert cut.messages == settled.messages
    assert cut.num_fixed == len(talk.ids) - 1


@pytest.mark.parametrize(
    ("family", "turn"),
    [
        (
            "chatml",
            "<|im_start|>user\n<tool_response>\n21 degrees\n</tool_response><|im_end|>\n<|im_start|>assistant\n",
        ),
        ("qwen3", "<|im_start|>user\n<tool_response>\n21 degrees\n</tool_response><|im_end|>\n<|im_start|>assistant\n"),
        (
            "llama3",
            "<|start_header_id|>ipython<|end_header_id|>\n\n21 degrees<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n",
        ),
    ],
)
def test_tools_are_told_and_their_answers_come_as_the_models_family_has_them(family: str, turn: str) -> None:
    talk = Talk(FAMILIES[family])
    talk.add(("user", "Weather?"))
    weather = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
    talk._take(talk.writer.offer(talk.transcript, talk.ids, [weather]))
    assert talk.text.count('"weather"') == 1
    talk.answer("I ask.", ends=False)
    before = talk.text
    talk.add(("tool", "21 degrees"))
    talk.answer("", ends=False)
    assert talk.text.startswith(before)
    assert talk.text.endswith(turn)
    assert talk.text.count('"weather"') == 1


def test_a_tool_that_the_model_knows_is_not_told_again() -> None:
    talk = Talk()
    talk.add(("user", "Weather?"))
    weather = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
    for _ in range(2):
        talk._take(talk.writer.offer(talk.transcript, talk.ids, [weather]))
        assert talk.text.count('"weather"') == 1
    talk.answer("None.")
    talk._take(talk.writer.offer(talk.transcript, talk.ids, [weather]))
    assert talk.text.count('"weather"') == 1


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("21 degrees", "21 degrees"),
        ({"sky": "clair", "à": [1, None]}, '{"sky": "clair", "à": [1, null]}'),
        ([{"n": 1}], '[{"n": 1}]'),
        (21.5, "21.5"),
        (False, "false"),
        (None, ""),
    ],
)
def test_what_a_tool_answered_is_told_as_json_where_it_is_no_text(content: object, told: str) -> None:
    (message,) = read_messages([{"role": "tool", "content": content}])
    assert message["content"] == told


def test_others_than_tools_say_text_and_tools_say_json() -> None:
    with pytest.raises(TemplateError, match=r"messages\[0\]: content must be text"):
        read_messages([{"role": "user", "content": {"sky": "clear"}}])
    for content in (float("nan"), {"x": {1}}):
        with pytest.raises(TemplateError, match=r"messages\[0\]: content must be text or a JSON value"):
            read_messages([{"role": "tool", "content": content}])
