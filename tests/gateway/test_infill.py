"""Filling in the middle: `suffix` of text completions."""

from __future__ import annotations

import httpx
import pytest
from tokenizers import AddedToken

from engine.text.tokenizer import Tokenizer
from gateway.translate.infill import FORMATS, Infill, InfillFormat
from tests.engine.text.vocabularies import byte_level, token_id
from tests.fakes import ScriptedEngine, repeats, scripted_client, text_model
from tests.gateway.wire import TEXT, refused, stream, text, whole


def coder(form: InfillFormat, *, without: str = "") -> Tokenizer:
    """A tokenizer with the marks of a format."""
    library = byte_level()
    marks = [mark for mark in (form.prefix, form.suffix, form.middle, *form.ends) if mark and mark != without]
    library.add_special_tokens([AddedToken(mark, special=True, normalized=False) for mark in marks])
    return Tokenizer(library, bos_token_id=token_id(library, "<|begin|>"), adds_bos=True)


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.prefix)
async def test_prompt_and_suffix_are_arranged_as_the_model_learned_it(form: InfillFormat) -> None:
    model = text_model()
    model = type(model)(path=model.path, tokenizer=coder(form), chat_template=None)
    engine = ScriptedEngine(model, repeats(40))
    async with scripted_client(engine, model) as client:
        await whole(client, text(prompt="def f(", suffix="return x"), TEXT)
        given = model.tokenizer.decode(engine.last.prompt_ids, skip_special=False)
        expected = f"{form.prefix}def f({form.suffix}return x{form.middle}"
        if form.middle is None:
            expected = f"{form.suffix}return x{form.prefix}def f("
        assert given == "<|begin|>" + expected
        ends = [model.tokenizer.decode([end], skip_special=False) for end in engine.last.sampling.stop_token_ids]
        assert ends == list(form.ends)
        ids = model.tokenizer.encode("def f(", add_special=False)
        parts = await stream(client, text(prompt=ids, suffix="return x", add_special_tokens=False), TEXT)
        assert parts
        assert model.tokenizer.decode(engine.last.prompt_ids, skip_special=False) == expected


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.prefix)
def test_a_vocabulary_without_one_of_the_marks_cannot_fill_in(form: InfillFormat) -> None:
    assert Infill.find(coder(form)) is not None
    for mark in (form.prefix, form.suffix, form.middle):
        if mark is not None:
            assert Infill.find(coder(form, without=mark)) is None


async def test_a_suffix_is_refused_where_the_model_has_no_tokens_for_it(client: httpx.AsyncClient) -> None:
    assert (await refused(client, text(suffix="x"), TEXT, param="suffix"))["code"] == "unsupported_parameter"
    for harmless in ("", None):
        await whole(client, text(suffix=harmless), TEXT)


@pytest.mark.parametrize("other", [{"echo": True}, {"truncate_prompt_tokens": 3}])
async def test_a_suffix_goes_with_nothing_that_shows_or_cuts_the_prompt(
    client: httpx.AsyncClient, other: dict[str, object]
) -> None:
    await refused(client, text(suffix="x", **other), TEXT, param="suffix")


async def test_an_overlong_suffix_is_refused_by_name() -> None:
    model = text_model()
    model = type(model)(path=model.path, tokenizer=coder(FORMATS[0]), chat_template=None)
    engine = ScriptedEngine(model, repeats(40), max_model_len=64)
    async with scripted_client(engine, model) as client:
        error = await refused(client, text(suffix="x" * 5_000), TEXT, param="suffix")
        assert error["code"] == "context_length_exceeded"
        error = await refused(client, text(prompt="a b c d " * 10, suffix="x y z " * 10), TEXT, param="prompt")
        assert error["code"] == "context_length_exceeded"
