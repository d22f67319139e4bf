"""A running generation: text, tokens, ends."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import ContextTooLong, EngineError, EngineStopped, InvalidRequest, OutOfPages, QueueFull
from engine.request import ErrorReport, FinishReason, TokenLogprob
from engine.sampling.params import SamplingParams
from extensions.errors import GenerationClosed
from extensions.generation import Generation
from extensions.output import GenerateOptions, GenerationStep
from extensions.runtime import Runtime
from tests.extensions.scripted_engine import Script, ScriptedEngine
from tests.extensions.vocabulary import END, Words

ROCKET = "ok 👩‍🚀🚀 done"


def options(
    *stop: str, n: int = 1, include_stop_str: bool = False, skip: bool = True, **sampling: Any
) -> GenerateOptions:
    return GenerateOptions(
        sampling=SamplingParams(**{"max_tokens": 100, **sampling}),
        n=n,
        stop=stop,
        include_stop_str=include_stop_str,
        skip_special_tokens=skip,
    )


async def start(words: Words, asked: GenerateOptions, prompt: str = "prompt") -> tuple[Script, Generation]:
    engine = ScriptedEngine()
    script = engine.expect()
    generation = await Runtime(engine, words.text).context(words.spell(prompt)).generate(asked)
    return script, generation


async def read(generation: Generation) -> list[GenerationStep]:
    return [step async for step in generation]


def text_of(steps: list[GenerationStep], index: int = 0) -> str:
    return "".join(step.text for step in steps if step.index == index)


def ids_of(steps: list[GenerationStep], index: int = 0) -> list[int]:
    return [token_id for step in steps if step.index == index for token_id in step.token_ids]


async def play(
    words: Words, token_ids: list[int], asked: GenerateOptions, *, chunk: int = 1, finish: FinishReason | None = None
) -> tuple[list[GenerationStep], Generation, Script]:
    """Lets the engine emit tokens in chunks, the last one with `finish` (length by default), and reads all steps."""
    script, generation = await start(words, asked)
    groups = [token_ids[at : at + chunk] for at in range(0, len(token_ids), chunk)] or [[]]
    for group in groups[:-1]:
        script.emit(group)
    script.emit(groups[-1], finish=finish or FinishReason.LENGTH)
    return await read(generation), generation, script


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 100])
async def test_characters_split_over_tokens_arrive_whole(chunk: int) -> None:
    words = Words()
    steps, generation, script = await play(words, words.spell(ROCKET), options(), chunk=chunk)
    assert text_of(steps) == ROCKET
    assert all("\ufffd" not in step.text for step in steps)
    assert b"".join(token.data for step in steps for token in step.tokens) == ROCKET.encode()
    assert ids_of(steps) == words.spell(ROCKET)
    assert steps[-1].finish_reason == "length"
    assert generation.usage.num_completion_tokens == len(ROCKET.encode())
    assert script.is_closed


@pytest.mark.parametrize("chunk", [1, 2, 100])
@pytest.mark.parametrize("finish", [FinishReason.LENGTH, FinishReason.STOP, FinishReason.ABORT])
async def test_an_unfinished_character_at_the_end_is_no_text_but_its_tokens_are(
    chunk: int, finish: FinishReason
) -> None:
    words = Words()
    ids = [0x61, 0xF0, 0x9F]
    steps, generation, _ = await play(words, ids, options(), chunk=chunk, finish=finish)
    assert text_of(steps) == "a"
    assert [token.data for step in steps for token in step.tokens] == [b"a", b"\xf0", b"\x9f"]
    assert ids_of(steps) == ids
    assert generation.usage.num_completion_tokens == 3


async def test_a_token_that_ends_in_an_unfinished_character_is_reported_with_what_it_shows() -> None:
    words = Words(b"ab\xf0")
    steps, _, _ = await play(words, [*words.ids(b"ab\xf0"), 0x9F], options())
    assert text_of(steps) == "ab"
    assert [token.data for step in steps for token in step.tokens] == [b"ab\xf0", b"\x9f"]


async def test_bytes_that_nothing_can_mend_are_replaced_inside_the_text() -> None:
    words = Words()
    steps, _, _ = await play(words, [0x61, 0xF0, 0x9F, 0x62, 0xC3], options())
    assert text_of(steps) == "a\ufffdb"
    assert [token.data for step in steps for token in step.tokens] == [b"a", b"\xf0", b"\x9f", b"b", b"\xc3"]


async def test_steps_without_tokens_are_otherwise_the_same() -> None:
    words = Words("ab", "cd")
    ids = [*words.ids("ab", "cd"), *words.spell("é!"), 0xC3]
    full, _, _ = await play(words, ids, options("d!"))
    bare, _, _ = await play(words, ids, replace(options("d!"), report_tokens=False))
    assert any(step.tokens for step in full)
    assert bare == [msgspec.structs.replace(step, tokens=()) for step in full]


@pytest.mark.parametrize("chunk", [1, 2, 3, 100])
@pytest.mark.parametrize(
    ("stop", "pieces", "visible", "num_tokens"),
    [
        ("DEFGHIJ", ["A", "B", "C", "D", "E", "F", "G", "H", "I", "J", "K", "L"], "ABC", 10),
        ("DEFGHIJ", ["ABCDE", "FGHIJKL", "M"], "ABC", 2),
        ("beta gamma", ["alpha", " beta", " gamma", " delta"], "alpha ", 3),
        ("wor", ["hello", " world", "!"], "hello ", 2),
        ("..", ["wait", "...", " go"], "wait", 2),
        ("\n\n", ["one", "\n", "\n", "two"], "one", 3),
    ],
)
async def test_a_stop_string_cuts_the_text_wherever_tokens_end(
    chunk: int, stop: str, pieces: list[str], visible: str, num_tokens: int
) -> None:
    words = Words(*[piece for piece in pieces if len(piece.encode()) > 1])
    steps, generation, script = await play(words, words.ids(*pieces), options(stop), chunk=chunk)
    assert text_of(steps) == visible
    assert (steps[-1].finish_reason, steps[-1].stop_reason) == ("stop", stop)
    assert ids_of(steps) == words.ids(*pieces)[:num_tokens]
    assert generation.usage.num_completion_tokens == num_tokens
    assert script.is_closed
    is_last_read = script.num_read == math.ceil(len(pieces) / chunk)
    assert script.stopped == ([] if is_last_read else [0])


async def test_a_steps_text_is_that_of_its_tokens() -> None:
    words = Words(b" \xf0\x9f", b"\x99\x82", b"\xa9\xc3", "done.")
    ids = words.ids(b" \xf0\x9f", b"\x99\x82", b"\xc3", b"\xa9\xc3", b"\xa9", "done.", "x", "done.", "\n")
    steps, _, _ = await play(words, ids, options(".\n"))
    assert [step.text for step in steps] == [" 🙂", "éé", "done.x", "done"]
    for step in steps[:-1]:
        assert b"".join(token.data for token in step.tokens).decode() == step.text
    assert [token.text for token in steps[-1].tokens] == ["done."]


async def test_held_text_is_delivered_when_no_stop_string_comes_of_it() -> None:
    words = Words()
    steps, _, _ = await play(words, words.spell("a < b ZZ end ZZ"), options("ZZZZZZ"))
    assert text_of(steps) == "a < b ZZ end ZZ"
    assert [step.text for step in steps if "Z" in step.text] == ["ZZ ", "ZZ"]
    held = next(step for step in steps if step.text == "ZZ ")
    assert [token.text for token in held.tokens] == ["Z", "Z", " "]


async def test_a_stop_string_is_kept_on_request() -> None:
    words = Words("world")
    steps, generation, _ = await play(words, words.ids("h", "world", "!"), options("wor", include_stop_str=True))
    assert text_of(steps) == "hwor"
    assert [token.text for step in steps for token in step.tokens] == ["h", "world"]
    assert generation.usage.num_completion_tokens == 2


async def test_a_token_that_is_partly_visible_before_a_stop_string_is_reported() -> None:
    words = Words("ab", "cST", "OP", "tail")
    steps, generation, _ = await play(words, words.ids("ab", "cST", "OP", "tail"), options("STOP"), chunk=4)
    assert text_of(steps) == "abc"
    assert [token.text for step in steps for token in step.tokens] == ["ab", "cST"]
    assert ids_of(steps) == words.ids("ab", "cST", "OP")
    assert generation.usage.num_completion_tokens == 3


async def test_a_token_that_completes_a_stop_string_and_begins_a_character_counts() -> None:
    words = Words(b"P\xf0\x9f")
    steps, generation, _ = await play(words, [*words.spell("xSTO"), *words.ids(b"P\xf0\x9f"), 0x61], options("STOP"))
    assert text_of(steps) == "x"
    assert ids_of(steps) == [*words.spell("xSTO"), *words.ids(b"P\xf0\x9f")]
    assert generation.usage.num_completion_tokens == 5


async def test_of_several_stop_strings_the_one_complete_first_wins() -> None:
    words = Words("xabc")
    steps, _, _ = await play(words, words.ids("xabc"), options("abc", "b"))
    assert (text_of(steps), steps[-1].stop_reason) == ("xa", "b")


async def test_stop_strings_do_not_end_the_text_before_the_least_number_of_tokens() -> None:
    words = Words()
    for chunk in (1, 3, 100):
        steps, _, _ = await play(words, words.spell("a.b.c.d"), options(".", min_tokens=5), chunk=chunk)
        assert text_of(steps) == "a.b.c"
        assert steps[-1].stop_reason == "."
    steps, _, _ = await play(words, words.spell("ab--cd--"), options("--", min_tokens=4))
    assert text_of(steps) == "ab"


async def test_the_models_end_token_ends_silently() -> None:
    words = Words()
    script, generation = await start(words, options())
    script.emit(words.spell("hi"))
    script.emit([words.end_id], finish=FinishReason.STOP, stop_token_id=words.end_id)
    steps = await read(generation)
    assert text_of(steps) == "hi"
    assert (steps[-1].finish_reason, steps[-1].stop_reason, steps[-1].tokens) == ("stop", None, ())
    assert ids_of(steps) == [*words.spell("hi"), words.end_id]
    assert generation.usage.num_completion_tokens == 3


@pytest.mark.parametrize(
    ("stop_id", "include", "skip", "visible"),
    [
        ("!", False, True, "hi"),
        ("!", True, True, "hi!"),
        (END, False, False, "hi"),
        (END, True, False, "hi" + END),
        (END, True, True, "hi"),
    ],
)
async def test_a_stop_token_of_the_caller_is_named_and_shown_only_on_request(
    stop_id: str, include: bool, skip: bool, visible: str
) -> None:
    words = Words()
    token_id = words.end_id if stop_id == END else ord(stop_id)
    asked = options(include_stop_str=include, skip=skip, stop_token_ids=(token_id,))
    script, generation = await start(words, asked)
    script.emit([*words.spell("hi"), token_id], finish=FinishReason.STOP, stop_token_id=token_id)
    steps = await read(generation)
    assert text_of(steps) == visible
    assert steps[-1].stop_reason == token_id
    assert generation.usage.num_completion_tokens == 3


async def test_a_stop_string_before_the_engines_own_end_wins() -> None:
    words = Words()
    script, generation = await start(words, options("b"))
    script.emit([*words.spell("abc"), words.end_id], finish=FinishReason.STOP, stop_token_id=words.end_id)
    steps = await read(generation)
    assert (text_of(steps), steps[-1].stop_reason) == ("a", "b")
    assert generation.usage.num_completion_tokens == 2


async def test_special_tokens_are_left_out_or_kept() -> None:
    words = Words()
    ids = [0x61, words.end_id, 0x62]
    hidden, _, _ = await play(words, ids, options())
    shown, _, _ = await play(words, ids, options(skip=False))
    assert text_of(hidden) == "ab"
    assert [token.text for step in hidden for token in step.tokens] == ["a", "b"]
    assert ids_of(hidden) == ids
    assert text_of(shown) == f"a{END}b"


async def test_each_continuation_has_its_own_text_and_end() -> None:
    words = Words()
    script, generation = await start(words, options("!", n=3))
    script.emit(words.spell("one"), index=0, num_cached_tokens=4)
    script.emit(words.spell("tw"), index=1, num_cached_tokens=4)
    script.emit(words.spell("three!x"), index=2, num_cached_tokens=4)
    script.emit(words.spell("o!"), index=1)
    script.emit(words.spell("zzz"), index=1)
    script.emit(words.spell("!"), index=0)
    steps = await read(generation)
    assert [text_of(steps, index) for index in range(3)] == ["one", "two", "three"]
    assert [step.finish_reason for step in steps].count("stop") == 3
    assert script.stopped == [2, 1, 0]
    assert script.is_closed
    usage = generation.usage
    assert usage.per_choice == {0: 4, 1: 4, 2: 6}
    assert (usage.num_prompt_tokens, usage.num_completion_tokens, usage.num_cached_tokens) == (6, 14, 4)


async def test_late_events_of_a_stopped_continuation_change_nothing() -> None:
    words = Words()
    script, generation = await start(words, options("!", n=2))
    script.emit(words.spell("a!"), index=0)
    step = await anext(generation)
    script.emit(words.spell("late"), index=0, finish=FinishReason.ABORT)
    script.emit(words.spell("b"), index=1, finish=FinishReason.LENGTH)
    steps = [step, *await read(generation)]
    assert [text_of(steps, 0), text_of(steps, 1)] == ["a", "b"]
    assert generation.usage.per_choice == {0: 2, 1: 1}


def report(value: float, *top: tuple[int, float]) -> TokenLogprob:
    return TokenLogprob(value, [token_id for token_id, _ in top], [one for _, one in top], 1)


async def test_log_probabilities_come_with_the_text_of_their_tokens() -> None:
    words = Words("cST")
    script, generation = await start(words, options("STOP", logprobs=1))
    ids = [*words.spell("🙂"), *words.ids("cST"), *words.spell("OPx")]
    for at, token_id in enumerate(ids):
        script.emit([token_id], logprobs=[report(-float(at), (token_id, -float(at)))])
    steps = await read(generation)
    assert [(step.text, [token.logprob for token in step.tokens]) for step in steps] == [
        ("🙂", [0.0, -1.0, -2.0, -3.0]),
        ("c", [-4.0]),
    ]
    tokens = [token for step in steps for token in step.tokens]
    assert [token.data for token in tokens] == [b"\xf0", b"\x9f", b"\x99", b"\x82", b"cST"]
    assert tokens[0].text == "\ufffd"
    assert tokens[0].top[0].data == b"\xf0"
    assert all(math.isfinite(token.logprob or 0.0) for token in tokens)


async def test_prompt_log_probabilities_come_first_with_every_prompt_token() -> None:
    words = Words()
    engine = ScriptedEngine()
    script = engine.expect()
    prompt = [words.end_id, 0x0A, 0xC3, 0xA9]
    asked = GenerateOptions(sampling=SamplingParams(max_tokens=1), prompt_logprobs=1)
    generation = await Runtime(engine, words.text).context(prompt).generate(asked)
    script.emit([], prompt_logprobs=[report(-1.0, (1, -0.5)), report(-2.0, (1, -0.5)), report(-3.0, (1, -0.5))])
    script.emit([0x61], finish=FinishReason.LENGTH)
    steps = await read(generation)
    tokens = steps[0].prompt_tokens
    assert tokens is not None
    assert [token.logprob for token in tokens] == [None, -1.0, -2.0, -3.0]
    assert [token.data for token in tokens] == [b"", b"\n", b"\xc3", b"\xa9"]
    assert tokens[1].top[0].token_id == 1
    assert all(step.prompt_tokens is None for step in steps[1:])


@settings(deadline=None)
@given(data=st.data())
def test_any_grouping_of_tokens_gives_the_same_output(data: st.DataObject) -> None:
    words = Words("ab", "bS", "ST", b"\x99\x82P", b"\xf0\x9f")
    ids = data.draw(st.lists(st.sampled_from([*range(256, 261), *words.spell("abSTOP🙂")]), min_size=1, max_size=20))
    asked = options("STOP", "bSa", "🙂", min_tokens=data.draw(st.integers(0, 4)), logprobs=0)
    cuts = sorted(data.draw(st.sets(st.integers(1, len(ids)))) | {len(ids)})

    async def play_groups(borders: list[int]) -> tuple[Any, ...]:
        script, generation = await start(words, asked)
        for begin, end in zip([0, *borders], borders, strict=False):
            reports = [report(-float(at)) for at in range(begin, end)]
            script.emit(ids[begin:end], logprobs=reports, finish=FinishReason.LENGTH if end == len(ids) else None)
        steps = await read(generation)
        tokens = [token for step in steps for token in step.tokens]
        assert script.is_closed
        return text_of(steps), ids_of(steps), tokens, steps[-1].finish_reason, steps[-1].stop_reason, generation.usage

    assert asyncio.run(play_groups(cuts)) == asyncio.run(play_groups([len(ids)]))


@pytest.mark.parametrize("error", [EngineStopped("gone"), OSError("pipe")])
async def test_an_engine_that_dies_raises_after_what_it_had_said(error: Exception) -> None:
    words = Words()
    script, generation = await start(words, options())
    script.emit(words.spell("ab"))
    script.die(error)
    assert (await anext(generation)).text == "ab"
    with pytest.raises(type(error)):
        await anext(generation)
    assert script.is_closed
    assert await read(generation) == []


async def test_a_stream_that_ends_early_is_an_engine_that_stopped() -> None:
    words = Words()
    script, generation = await start(words, options(n=2))
    script.emit(words.spell("ab"), finish=FinishReason.LENGTH)
    script.end()
    await anext(generation)
    with pytest.raises(EngineStopped, match="before its last token"):
        await anext(generation)


@pytest.mark.parametrize(
    ("reported", "expected"),
    [
        (ErrorReport("OutOfPages", "few", {"needed_pages": 3, "free_pages": 1}), OutOfPages),
        (ErrorReport("EngineStopped", "bye"), EngineStopped),
        (ErrorReport("Unheard", "what"), EngineError),
        (None, EngineError),
    ],
)
async def test_an_error_event_becomes_the_engines_error(reported: ErrorReport | None, expected: type) -> None:
    script, generation = await start(Words(), options(n=2))
    script.emit(index=1, finish=FinishReason.ERROR, error=reported)
    with pytest.raises(expected):
        await anext(generation)
    assert script.is_closed


async def test_an_aborted_sequence_says_so() -> None:
    words = Words()
    steps, _, _ = await play(words, words.spell("ab"), options(), finish=FinishReason.ABORT)
    assert (text_of(steps), steps[-1].finish_reason) == ("ab", "abort")


async def test_a_slow_reader_loses_nothing_and_is_not_read_ahead_for() -> None:
    words = Words()
    script, generation = await start(words, options())
    script.emit_each(words.spell("hello"), finish=FinishReason.LENGTH)
    await anext(generation)
    for _ in range(5):
        await asyncio.sleep(0)
    assert script.num_read == 1
    assert text_of(await read(generation)) == "ello"


async def played_past(
    words: Words, groups: list[str], asked: GenerateOptions, takes: Callable[[GenerationStep], bool]
) -> tuple[list[GenerationStep], list[GenerationStep], Script]:
    """All steps in the order in which they were seen, and those of them that were taken past the reader."""
    script, generation = await start(words, asked)
    seen: list[GenerationStep] = []
    taken: list[GenerationStep] = []
    see = seen.append

    def take(step: GenerationStep) -> bool:
        if not takes(step):
            return False
        see(step)
        taken.append(step)
        return True

    async def read_all() -> None:
        async for step in generation:
            see(step)

    generation.divert(take)
    reader = asyncio.ensure_future(read_all())
    for at, group in enumerate(groups):
        script.emit(
            words.spell(group),
            num_cached_tokens=0 if at == 0 else None,
            finish=FinishReason.LENGTH if at == len(groups) - 1 else None,
        )
        for _ in range(4 * (at % 3)):
            await asyncio.sleep(0)
    await reader
    return seen, taken, script


@pytest.mark.parametrize("takes", [lambda step: True, lambda step: False, lambda step: "o" not in step.text])
async def test_steps_taken_past_the_reader_are_those_it_would_have_read(
    takes: Callable[[GenerationStep], bool],
) -> None:
    words = Words("STOP")
    groups = ["a", "b", "o ", "S", "TO", "x", "y", "👩", "o", "z", "end"]
    seen, taken, script = await played_past(words, groups, options("STOP"), takes)
    assert text_of(seen) == "".join(groups)
    assert ids_of(seen) == words.spell("".join(groups))
    assert seen[-1].finish_reason == "length"
    assert all(step.finish_reason is None for step in taken)
    assert bool(taken) == takes(GenerationStep(index=0))
    assert script.is_closed


async def test_a_stop_string_ends_a_continuation_whose_steps_are_taken() -> None:
    words = Words()
    seen, taken, script = await played_past(words, ["a", "b", "c", "d!e", "f", "g"], options("!"), lambda step: True)
    assert text_of(seen) == "abcd"
    assert (seen[-1].finish_reason, seen[-1].stop_reason) == ("stop", "!")
    assert taken
    assert seen[-1] not in taken
    assert script.stopped == [0]
    assert script.is_closed


async def test_what_taking_a_step_raises_is_raised_to_the_reader_and_ends_the_work() -> None:
    def refuse(step: GenerationStep) -> bool:
        raise ArithmeticError(step.text)

    with pytest.raises(ArithmeticError, match="c"):
        await played_past(Words(), ["a", "b", "c", "d"], options(), refuse)


async def test_closing_ends_the_engines_work_once_in_every_state() -> None:
    words = Words()
    script, generation = await start(words, options())
    await generation.aclose()
    await generation.aclose()
    assert script.num_closes == 1
    assert await read(generation) == []

    script, generation = await start(words, options())
    script.emit(words.spell("ab"))
    async with generation:
        await anext(generation)
    assert script.num_closes == 1

    script, generation = await start(words, options())
    script.emit(words.spell("ab"), finish=FinishReason.LENGTH)
    async with generation:
        await read(generation)
        assert script.num_closes == 1
    await generation.aclose()
    assert script.num_closes == 1


async def test_leaving_by_an_error_closes_too() -> None:
    script, generation = await start(Words(), options())
    with pytest.raises(KeyError):
        async with generation:
            raise KeyError
    assert script.num_closes == 1


async def test_a_cancelled_reader_closes_the_generation() -> None:
    script, generation = await start(Words(), options())
    reader = asyncio.ensure_future(anext(generation))
    await asyncio.sleep(0)
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    assert script.num_closes == 1


async def test_closing_completes_although_the_closer_is_cancelled() -> None:
    script, generation = await start(Words(), options())
    gate = asyncio.Event()
    close = script.aclose

    async def slow_close() -> None:
        await gate.wait()
        await close()

    script.aclose = slow_close  # type: ignore[method-assign]  # the slow stream is the point of the test
    closer = asyncio.ensure_future(generation.aclose())
    await asyncio.sleep(0)
    closer.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closer
    gate.set()
    await generation.aclose()
    assert script.num_closes == 1


async def test_a_reader_learns_that_another_task_closed_the_generation() -> None:
    _, generation = await start(Words(), options())
    reader = asyncio.ensure_future(anext(generation))
    await asyncio.sleep(0)
    await generation.aclose()
    with pytest.raises(GenerationClosed):
        await reader


async def test_what_the_engine_refuses_is_raised_before_anything_runs() -> None:
    words = Words()
    engine = ScriptedEngine()
    context = Runtime(engine, words.text).context(words.spell("prompt"))
    with pytest.raises(InvalidRequest) as caught:
        await context.generate(options("x", ""))
    assert caught.value.param == "stop"
    with pytest.raises(ContextTooLong):
        await context.generate(options(max_tokens=10**6))
    engine.refusal = QueueFull(7)
    with pytest.raises(QueueFull):
        await context.generate(options())
    engine.refusal, engine.is_ready = None, False
    with pytest.raises(EngineStopped):
        await context.generate(options())
    assert engine.requests == []


async def test_requests_carry_what_was_asked_under_an_id_of_our_own() -> None:
    words = Words()
    engine = ScriptedEngine()
    runtime = Runtime(engine, words.text)
    context = runtime.context(words.spell("prompt"), account="tenant", salt="pepper")
    asked = GenerateOptions(sampling=SamplingParams(max_tokens=3, seed=7), n=2, priority=5, prompt_logprobs=0)
    for _ in range(2):
        engine.expect()
        await context.generate(asked)
    first, second = engine.requests
    assert first.request_id != second.request_id
    assert (first.account, first.salt, first.n, first.priority, first.prompt_logprobs) == ("tenant", "pepper", 2, 5, 0)
    assert first.sampling == asked.sampling
    assert first.prompt_ids == context.token_ids == words.spell("prompt")
    assert (runtime.info, runtime.stats, runtime.is_ready) == (engine.info, engine.stats, True)
