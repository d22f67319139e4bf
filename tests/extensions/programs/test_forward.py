"""Passes over several contexts as scripts have them, over a real engine."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from engine.connection import EngineConnection
from engine.request import GenerateRequest
from engine.streams import RequestStream
from tests.extensions.programs.stage import Stage, main_of, until

HEAD = """
GUIDE = '''
def sample(lanes, key, scale):
    probe.sure = max(softmax(lanes[0].logits))
    return gumbel_argmax(lanes[1].logits + scale * (lanes[0].logits - lanes[1].logits), key)
'''
VERIFY = '''
def sample(lanes, d0, d1):
    first = int(argmax(lanes[0].logits) == d0)
    second = first * int(argmax(lanes[1].logits) == d1)
    probe.kept = 1 + first + second
    behind = where(second == 0, argmax(lanes[1].logits), argmax(lanes[2].logits))
    return where(first == 0, argmax(lanes[0].logits), behind)
'''
NOTES = '''
def sample(logits, step):
    values, places = topk(logits, 2)
    probe.turn = step
    probe.two = places
    return argmax(logits)
'''
"""

GUIDED = """
good = await lm.context(request.messages)
plain = await lm.context("Continue.")
fwd = lm.forward()
await fwd.embed_next([good, plain])
await fwd.epilogue(await lm.program(GUIDE, scale=%s))
pipe = lm.pipeline()
"""


@pytest.fixture
def stage(real_stage: Stage) -> Stage:
    """All of these programs run over a real engine."""
    return real_stage


def guided(lines: str, *, scale: float = 1.5) -> str:
    """A program that has set up guidance before these lines."""
    return HEAD + main_of(GUIDED.strip() % scale + "\n" + lines.strip())


async def value(stage: Stage, source: str) -> Any:
    """What a program returns."""
    return (await stage.run(source)).result


async def test_guided_tokens_go_to_every_history_and_come_with_what_was_noted(stage: Stage) -> None:
    outcome = await stage.run(
        guided(
            """
before = [good.length, plain.length]
tokens = await pipe.run_ahead(fwd, 12, seed=5, stop=None)
more = await pipe.run_ahead(fwd, 3, seed=6, stop=None)
return [before, tokens, more, [good.length, plain.length], pipe.finish_reason, pipe.probes]
"""
        )
    )
    before, tokens, more, after, reason, probes = outcome.result
    assert len(tokens) == 12
    assert len(more) == 3
    # The prompt's chat is closed by the opening of the answer; text is as it was.
    assert after[1] == before[1] + 15
    assert after[0] >= before[0] + 15
    assert reason == "length"
    assert list(probes) == ["sure"]
    assert len(probes["sure"]) == 3
    assert all(0.0 < one < 1.0 for one in probes["sure"])
    assert outcome.usage.num_completion_tokens == 15
    assert outcome.exec_path == "device"


async def test_a_weight_of_one_draws_what_the_first_context_draws_alone(stage: Stage) -> None:
    tokens, alone = await value(
        stage,
        guided(
            """
alone = await lm.context(request.messages)
tokens = await pipe.run_ahead(fwd, 10, seed=5, stop=None)
answer = await alone.generate(max_tokens=10, temperature=1.0, top_p=1.0, top_k=0, min_p=0.0, seed=5,
                              repetition_penalty=1.0, template_stops=False)
return [tokens, answer.tokens]
""",
            scale=1.0,
        ),
    )
    assert tokens == alone


async def test_single_passes_draw_the_tokens_that_run_ahead_draws(stage: Stage) -> None:
    one_by_one, ahead, probes = await value(
        stage,
        guided(
            """
marks = [await good.mark(), await plain.mark()]
single = []
for _ in range(4):
    made = await fwd.run(seed=5)
    single.append(made.token)
await good.rewind(marks[0])
await plain.rewind(marks[1])
return [single, await pipe.run_ahead(fwd, 4, seed=5, stop=None), made.probes]
"""
        ),
    )
    assert one_by_one == ahead
    assert 0.0 < probes["sure"] < 1.0


async def test_it_ends_with_the_models_own_end_or_a_token_of_the_scripts(stage: Stage) -> None:
    eos = stage.engine.info.eos_token_ids[0]
    ended, own, reason = await stage.value(
        f"""
        ctx = [await lm.context("a b"), await lm.context("c")]
        fwd = lm.forward()
        await fwd.embed_next(ctx)
        await fwd.epilogue(
            await lm.program("def sample(lanes, step):\\n    return where(step == 2, {eos}, 7 + step)\\n"))
        pipe = lm.pipeline()
        own = await pipe.run_ahead(fwd, 9, stop_token_ids=[8])
        ended = await pipe.run_ahead(fwd, 9)
        return [ended, own, pipe.finish_reason]
        """
    )
    assert ended == [7, 8, eos]
    assert own == [7, 8]
    assert reason == "stop"


async def test_text_is_streamed_as_it_comes(stage: Stage) -> None:
    outcome = await stage.run(guided("return await pipe.run_ahead(fwd, 6, seed=5, stop=None, emit=True)"))
    streamed = "".join(getattr(event, "text", "") for event in stage.events)
    assert streamed
    assert outcome.content == streamed


async def test_what_a_sampler_notes_down_is_in_the_completion(stage: Stage) -> None:
    tokens, probes = await value(
        stage,
        guided(
            """
ctx = await lm.context(request.messages)
answer = await ctx.generate(max_tokens=5, sampler=await lm.program(NOTES), template_stops=False)
return [answer.tokens, answer.probes]
"""
        ),
    )
    assert probes["turn"] == [0, 1, 2, 3, 4]
    assert [two[0] for two in probes["two"]] == tokens


async def test_rows_of_a_tree_are_what_their_paths_are_alone(stage: Stage) -> None:
    tree, alone, length = await stage.value(
        """
        ctx = await lm.context("a b c d")
        n = ctx.length
        fwd = lm.forward()
        await fwd.embed([20, 21, 22, 23])
        await fwd.state([ctx], {"positions": [n, n + 1, n + 1, n + 2]})
        await fwd.mask([None, None, [[0, n + 1]], [[0, n + 1], [n + 2, n + 3]]])
        await fwd.readout([1, 3], top=3)
        made = await fwd.run()
        tree = [[[one.token, one.logprob] for one in row.candidates] for row in made.rows]
        alone = []
        for path in ([20, 21], [20, 22, 23]):
            fork = await ctx.fork()
            await fork.append(path)
            alone.append([[one.token, one.logprob] for one in (await fork.next(top=3)).candidates])
        return [tree, alone, [n, ctx.length, made.token, made.folded]]
        """
    )
    assert length[0] == length[1]
    assert length[2:] == [-1, [0]]
    for row, wanted in zip(tree, alone, strict=True):
        assert [token for token, _ in row] == [token for token, _ in wanted]
        assert [logprob for _, logprob in row] == pytest.approx([logprob for _, logprob in wanted], abs=1e-4)


async def test_guesses_that_a_program_accepts_stay_and_the_rest_is_gone(stage: Stage) -> None:
    source = HEAD + main_of(
        """
answer = await (await lm.context(request.messages)).generate(
    max_tokens=14, temperature=0.0, repetition_penalty=1.0, template_stops=False)
ctx = await lm.context(request.messages)
ahead = await ctx.next(top=1)
out, accepted = [ahead.candidates[0].token], []
while len(out) < 10:
    right = [1, 2, 0, 1][len(accepted) % 4]
    guesses = [token if at < right else (token + 1) % 300 for at, token in enumerate(answer.tokens[len(out):][:2])]
    fwd = lm.forward()
    await fwd.embed([out[-1], *guesses])
    await fwd.state([ctx], {"fold": "probe.kept"})
    await fwd.readout([0, 1, 2])
    await fwd.epilogue(await lm.program(VERIFY, d0=guesses[0], d1=guesses[1]))
    made = await fwd.run()
    accepted.append(made.folded[0] - 1)
    out += [*guesses[:made.folded[0] - 1], made.token]
more = await ctx.next(top=1)
return [out, answer.tokens, accepted, more.candidates[0].token]
"""
    )
    out, plain, accepted, behind = await value(stage, source)
    assert out[:10] == plain[:10]
    assert accepted[:4] == [1, 2, 0, 1]
    assert behind == out[-1]


async def test_rows_may_lie_in_any_order_of_slots(stage: Stage) -> None:
    straight, turned, gained = await stage.value(
        """
        ctx = await lm.context("a b c d")
        n = ctx.length
        rows = []
        turned = [n + 2, n, n + 1]
        for tokens, slots, read in (([20, 21, 22], None, [0, 1, 2]), ([22, 20, 21], turned, [1, 2, 0])):
            fwd = lm.forward()
            await fwd.embed(tokens)
            await fwd.state([ctx], {} if slots is None else {"slots": slots})
            await fwd.readout(read, top=2)
            rows.append([row.candidates[0].logprob for row in (await fwd.run()).rows])
        await fwd.state([ctx], {"slots": turned, "fold": 2})
        await fwd.run()
        fork = await lm.context("a b c d")
        await fork.append([20, 21])
        same = (await ctx.next(top=1)).candidates == (await fork.next(top=1)).candidates
        return [rows[0], rows[1], [ctx.length - n, same]]
        """
    )
    assert straight == turned
    assert gained == [2, True]


async def test_what_kv_len_leaves_out_is_not_seen(stage: Stage) -> None:
    short, masked, bits, whole = await stage.value(
        """
        ctx = await lm.context("a b c d")
        found = []
        for geometry, mask in (({"kv_len": [3]}, None), ({}, [[[0, 3]]]), ({}, [[1, True, 1]]), ({}, None)):
            fwd = lm.forward()
            await fwd.embed([20])
            await fwd.state([ctx], geometry)
            if mask is not None:
                await fwd.mask(mask)
            found.append((await fwd.run()).rows[0].entropy)
        return found
        """
    )
    assert short == masked == bits
    assert short != whole


async def test_a_program_reads_rows_of_several_contexts(stage: Stage) -> None:
    drawn, wanted = await stage.value(
        """
        one, two = await lm.context("a b c"), await lm.context("d")
        fwd = lm.forward()
        await fwd.embed([20, 21, 22], [0, 2, 3])
        await fwd.state([one, two], {"fold": ["all", "none"]})
        await fwd.readout([0, 2])
        less = "def sample(lanes):\\n    return argmax(lanes[1].logits - lanes[0].logits)\\n"
        await fwd.epilogue(await lm.program(less))
        made = await fwd.run()
        rows = []
        for text, ids in (("a b c", [20]), ("d", [22])):
            ctx = await lm.context(text)
            await ctx.append(ids)
            rows.append((await ctx.next(top="all")).logprobs)
        best = max(range(len(rows[0])), key=lambda at: rows[1][at] - rows[0][at])
        return [[made.token, made.folded, made.rows], [best, [2, 0], []]]
        """
    )
    assert drawn == wanted


async def test_submitted_passes_follow_each_other_and_fail_with_the_one_before(stage: Stage) -> None:
    tokens, length, errors = await value(
        stage,
        guided(
            """
start = plain.length
handles = await pipe.submit_frame([fwd, fwd, fwd], seed=5)
tokens = [(await handle.result()).token for handle in handles]
bad = lm.forward()
await bad.embed_next([good, plain])
first, second = await pipe.submit_frame([bad, fwd])
errors = []
for handle in (second, first):
    try:
        await handle.result()
    except ValueError as error:
        errors.append(str(error))
return [tokens, plain.length - start, errors]
"""
        ),
    )
    assert len(tokens) == length == 3
    assert len(errors) == 2
    assert all("nothing draws the token" in one for one in errors)


async def test_lanes_that_draw_together_keep_to_a_constraint(stage: Stage) -> None:
    regex, choice, schema, reasons, lengths = await value(
        stage,
        guided(
            """
before = [good.length, plain.length]
texts, reasons, drawn = [], [], 0
regex = await lm.constraint({"regex": "[a-c]{3}[xyz]"})
choice = await lm.constraint({"choice": ["the river", "the road"]})
for seed, constrain in enumerate([regex, choice, await lm.constraint({"json_schema": {"type": "boolean"}})]):
    tokens = await pipe.run_ahead(fwd, 40, seed=seed, constrain=constrain)
    drawn += len(tokens)
    texts.append(await lm.decode(tokens))
    reasons.append(pipe.finish_reason)
return [*texts, reasons, [before[1] + drawn, plain.length]]
"""
        ),
    )
    assert re.fullmatch("[a-c]{3}[xyz]", regex)
    assert choice in ("the river", "the road")
    assert schema in ("true", "false")
    assert reasons == ["stop"] * 3
    assert lengths[0] == lengths[1]


async def test_a_constrained_mixture_of_one_lane_alone_is_what_that_lane_draws(stage: Stage) -> None:
    tokens, alone = await value(
        stage,
        guided(
            """
alone = await lm.context(request.messages)
letters = await lm.constraint({"regex": "([a-z] )+[a-z]"})
tokens = await pipe.run_ahead(fwd, 10, constrain=letters, presence_penalty=1.5, min_tokens=4, logit_bias={30: 5.0},
                              repetition_penalty=1.3, seed=5)
answer = await alone.generate(max_tokens=10, temperature=1.0, top_p=1.0, top_k=0, min_p=0.0, constrain=letters,
                              presence_penalty=1.5, min_tokens=4, logit_bias={30: 5.0}, repetition_penalty=1.3, seed=5)
return [tokens, answer.tokens]
""",
            scale=1.0,
        ),
    )
    assert tokens == alone
    assert len(tokens) >= 4


async def test_a_program_that_returns_what_must_not_come_fails_and_no_lane_has_it(stage: Stage) -> None:
    error, change = await value(
        stage,
        guided(
            """
before = [good.length, plain.length]
await fwd.epilogue(await lm.program("def sample(lanes, step):\\n    return 7 + 0 * step\\n"))
try:
    await pipe.run_ahead(fwd, 5, logit_bias={7: -100.0}, constrain={"regex": "[0-9]+"})
except ValueError as failed:
    error = str(failed)
return [error, plain.length - before[1]]
"""
        ),
    )
    assert "a token that may not come here" in error
    assert change == 0


async def test_it_ends_where_a_stop_text_begins_and_all_histories_with_it(stage: Stage) -> None:
    tokens, lengths, reason, text = await stage.value(
        """
        ctx = [await lm.context("a b"), await lm.context("c")]
        before = [one.length for one in ctx]
        words = await lm.tokenize("one two three")
        fwd = lm.forward()
        await fwd.embed_next(ctx)
        source = "def sample(lanes, step):\\n    return " + "".join(
            f"where(step == {at}, {token}, " for at, token in enumerate(words)) + "9" + ")" * len(words) + "\\n"
        await fwd.epilogue(await lm.program(source))
        pipe = lm.pipeline()
        tokens = await pipe.run_ahead(fwd, 60, stop=["two"], emit=True)
        return [len(tokens), [one.length - start for one, start in zip(ctx, before)], pipe.finish_reason,
                await lm.decode(tokens)]
        """
    )
    assert reason == "stop"
    assert lengths == [tokens, tokens]
    assert "three" not in text
    assert "".join(getattr(event, "text", "") for event in stage.events) == "one "


LOOKS = """
async def look(token, fold="none", read=(0,)):
    fwd = lm.forward()
    await fwd.embed([token, 7])
    await fwd.state([ctx], {"fold": fold})
    await fwd.readout(list(read), top=3)
    return fwd

async def found(handle):
    made = await handle.result()
    return [[one.token, one.logprob] for one in made.rows[0].candidates]
"""


def looking(lines: str, context: str = '"a b c d"') -> str:
    """A program with a context `ctx` and passes that look at it."""
    return HEAD + main_of(f"ctx = await lm.context({context})\n{LOOKS.strip()}\n{lines.strip()}")


async def test_looks_at_one_context_are_with_the_engine_at_once(
    stage: Stage, engine: EngineConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrived, submit = asyncio.Barrier(5), engine.submit

    async def submit_together(request: GenerateRequest) -> RequestStream:
        if request.passes:
            await asyncio.wait_for(arrived.wait(), 60)
        return await submit(request)

    monkeypatch.setattr(engine, "submit", submit_together)
    together, alone = await value(
        stage,
        looking(
            """
one, two = lm.pipeline(), lm.pipeline()
handles = await one.submit_frame([await look(20), await look(21), await look(22)])
handles += [await two.submit(await look(23)), await two.submit(await look(20))]
together = [await found(handle) for handle in handles]
alone = []
for token in (20, 21, 22, 23, 20):
    fork = await ctx.fork()
    await fork.append([token])
    alone.append([[one.token, one.logprob] for one in (await fork.next(top=3)).candidates])
return [together, alone]
"""
        ),
    )
    for row, wanted in zip(together, alone, strict=True):
        assert [token for token, _ in row] == [token for token, _ in wanted]
        assert [logprob for _, logprob in row] == pytest.approx([logprob for _, logprob in wanted], abs=1e-4)


async def test_a_pass_that_keeps_rows_comes_behind_the_looks_before_it_and_before_those_behind(stage: Stage) -> None:
    rows, wanted, lengths = await value(
        stage,
        looking(
            """
before = ctx.length
frame = [await look(20), await look(21), await look(22, fold="all"), await look(20), await look(23, fold=1)]
handles = await lm.pipeline().submit_frame(frame)
rows = [await found(handle) for handle in handles]
wanted = []
for tokens in ([20], [21], [22], [22, 7, 20], [22, 7, 23]):
    fresh = await lm.context("a b c d")
    await fresh.append(tokens)
    wanted.append([[one.token, one.logprob] for one in (await fresh.next(top=3)).candidates])
return [rows, wanted, [before, ctx.length]]
"""
        ),
    )
    assert lengths[1] == lengths[0] + 3
    for row, tokens in zip(rows, wanted, strict=True):
        assert [logprob for _, logprob in row] == pytest.approx([logprob for _, logprob in tokens], abs=1e-4)


async def test_what_is_written_while_a_pass_looks_stays(stage: Stage) -> None:
    before, after, more = await value(
        stage,
        looking(
            """
pipe = lm.pipeline()
before = ctx.length
handles = await pipe.submit_frame([await look(20), await look(21)])
await ctx.append("x y")
await ctx.append([9])
rows = [await found(handle) for handle in handles]
return [before, ctx.length, len(await lm.tokenize("x y")) + 1]
""",
            context="request.messages",
        ),
    )
    assert after >= before + more


async def test_a_look_that_fails_takes_none_beside_it_with_it_but_the_change_behind_it(stage: Stage) -> None:
    outcomes, length = await value(
        stage,
        looking(
            """
frame = [await look(20), await look(99999), await look(21), await look(22, fold="all"), await look(23)]
before, outcomes = ctx.length, []
for handle in await lm.pipeline().submit_frame(frame):
    try:
        await found(handle)
        outcomes.append("done")
    except ValueError as error:
        outcomes.append(str(error))
return [outcomes, ctx.length - before]
"""
        ),
    )
    assert [outcomes[0], outcomes[2]] == ["done", "done"]
    assert all("token ids must be between" in outcomes[at] for at in (1, 3, 4))
    assert length == 0


async def test_only_one_pipeline_at_a_time_adds_rows_to_a_context_and_others_may_look(stage: Stage) -> None:
    outcomes, length = await value(
        stage,
        looking(
            """
before, outcomes = ctx.length, []
handles = []
for fwd in (await look(20, fold="all"), await look(21, fold="all"), await look(22)):
    handles.append(await lm.pipeline().submit(fwd))
for handle in handles:
    try:
        await found(handle)
        outcomes.append("done")
    except ValueError as error:
        outcomes.append(str(error))
return [outcomes, ctx.length - before]
"""
        ),
    )
    assert [outcomes[0], outcomes[2]] == ["done", "done"]
    assert "something else happens to the context" in outcomes[1]
    assert length == 2


async def test_a_pipeline_goes_on_behind_a_run_ahead_that_was_refused(stage: Stage) -> None:
    error, tokens = await value(
        stage,
        guided(
            """
try:
    await pipe.run_ahead(lm.forward(), 3)
except ValueError as refused:
    error = str(refused)
return [error, await pipe.run_ahead(fwd, 3, seed=5, stop=None)]
"""
        ),
    )
    assert "the pass has no lanes" in error
    assert len(tokens) == 3


async def test_what_rows_attend_to_is_told_in_the_order_in_which_they_are_read(stage: Stage) -> None:
    rows, turned, total, least = await value(
        stage,
        looking(
            """
def numbers(made):
    return [one.scores for one in made.attention]

fwd = lm.forward()
await fwd.embed([20, 21, 22, 7], [0, 3, 4])
await fwd.state([ctx, await lm.context("e f")])
await fwd.readout([0, 2, 3])
await fwd.on_attention(top=3)
made = await fwd.run()
rows = numbers(made)
await fwd.readout([3, 0, 2, 0])
turned = numbers(await fwd.run())
await fwd.on_attention(total=True, layers=[-1, 0], heads=[1], reduce="max")
total = numbers(await fwd.run())
one = made.attention[1]
return [rows, turned, total, [[each.slot for each in one.top], [each.score for each in one.top], one.omitted_mass]]
"""
        ),
    )
    length = len(rows[0])
    assert [len(row) for row in rows] == [length, length, len(rows[2])]
    assert all(sum(row) == pytest.approx(1.0, abs=1e-4) for row in rows)
    assert rows[0][-2:] == [0.0, 0.0]  # what is written behind a row it does not see
    assert turned == [pytest.approx(rows[at], abs=1e-5) for at in (2, 0, 1, 0)]
    assert [len(row) for row in total] == [length, len(rows[2])]
    slots, scores, omitted = least
    assert scores == sorted(rows[1], reverse=True)[:3]
    assert scores == [rows[1][slot] for slot in slots]
    assert omitted == pytest.approx(1.0 - sum(scores), abs=1e-4)


async def test_a_pass_that_draws_tells_what_each_lanes_last_token_attends_to(stage: Stage) -> None:
    lengths, before, sums, token = await value(
        stage,
        guided(
            """
await fwd.on_attention()
before = [one.length for one in (good, plain)]
made = await fwd.run(seed=1)
return [[len(one.scores) for one in made.attention], [one.length - 1 for one in (good, plain)],
        [sum(one.scores) for one in made.attention], made.token]
"""
        ),
    )
    assert lengths == before
    assert sums == pytest.approx([1.0, 1.0], abs=1e-4)
    assert token >= 0


KEEP = """
def keep(attention, order, slot, length, budget, recent):
    return (order < budget) | (slot >= length - recent) | (attention > 0.5)
"""


async def test_a_rule_says_which_slots_stay(stage: Stage) -> None:
    scores, dropped, drawn, length = await value(
        stage,
        f"KEEP = '''{KEEP}'''\n"
        + main_of(
            """
ctx = await lm.context([token for token in range(10, 50)])
rule = await lm.program(KEEP, budget=6, recent=4)
fwd = lm.forward()
await fwd.embed([20, 21])
await fwd.state([ctx])
await fwd.on_attention(rule)
(found,) = (await fwd.run()).attention
await fwd.epilogue(await lm.program("def sample(logits):\\n    return argmax(logits)\\n"))
(drawn,) = (await fwd.run()).attention
for start, stop in found.dropped:
    await ctx.drop(start, stop)
return [found.scores, found.dropped, drawn.dropped, ctx.length]
"""
        ),
    )
    best = sorted(range(42), key=lambda slot: -scores[slot])[:6]
    stays = {*best, *range(38, 42), *(slot for slot in range(42) if scores[slot] > 0.5)}
    assert [slot for start, stop in dropped for slot in range(start, stop)] == sorted(set(range(42)) - stays)
    assert drawn == dropped
    assert length == 40


async def test_each_layer_can_be_asked_in_one_pass_and_a_slot_goes_where_none_keeps_it(stage: Stage) -> None:
    rule = "def keep(order, slot, length, layer):\n    return (order < 2 + layer) | (slot >= length - 2)\n"
    mean, layers, alone, dropped, greatest, number = await value(
        stage,
        f"RULE = {rule!r}\n"
        + main_of(
            """
ctx = await lm.context([token for token in range(10, 50)])
fwd = lm.forward()
await fwd.embed([20, 21])
await fwd.state([ctx])
await fwd.on_attention(RULE, by_layer=True)
(found,) = (await fwd.run()).attention
layers = [[one.layer, one.scores, one.dropped] for one in found.layers]
alone = []
for one in found.layers:
    await fwd.on_attention(layers=[one.layer])
    alone.append((await fwd.run()).attention[0].scores)
await fwd.on_attention(by_layer=True, layers=[-1, 0], reduce="max")
most = (await fwd.run()).attention[0]
greatest = [[one.layer for one in most.layers], most.scores, [one.scores for one in most.layers], most.dropped]
return [found.scores, layers, alone, found.dropped, greatest, found.layer]
"""
        ),
    )
    numbers, scores, spans = zip(*layers, strict=True)
    assert list(numbers) == list(range(len(layers)))
    assert len(layers) > 1
    assert all(one == pytest.approx(other, abs=1e-6) for one, other in zip(scores, alone, strict=True))
    assert number == -1
    assert mean == pytest.approx([sum(column) / len(layers) for column in zip(*scores, strict=True)], abs=1e-6)
    kept = set()
    for layer, (one, gone) in enumerate(zip(scores, spans, strict=True)):
        stays = {*sorted(range(42), key=lambda slot, one=one: (-one[slot], slot))[: 2 + layer], 40, 41}  # type: ignore[misc]
        assert {slot for start, stop in gone for slot in range(start, stop)} == set(range(42)) - stays
        kept |= stays
    assert {slot for start, stop in dropped for slot in range(start, stop)} == set(range(42)) - kept
    order, most, each, none = greatest
    assert order == [0, len(layers) - 1]
    assert most == [max(column) for column in zip(*each, strict=True)]
    assert none == []


async def test_what_is_attended_to_least_can_be_dropped_and_its_memory_is_free(stage: Stage) -> None:
    before, after, scores, page = await value(
        stage,
        HEAD
        + main_of(
            """
ctx = await lm.context([token for token in range(10, 106)])
await ctx.prefill()
page = lm.model.page_tokens
before = (await ctx.info()).bytes
fwd = lm.forward()
await fwd.embed_next([ctx])
await fwd.epilogue(await lm.program("def sample(logits):\\n    return argmax(logits)\\n"))
await fwd.on_attention()
scores = (await fwd.run()).attention[0].scores
pages = sorted(range(5), key=lambda at: sum(scores[at * page : at * page + page]))
for at in pages[:3]:
    await ctx.drop(at * page, at * page + page)
await ctx.prefill()
after = (await ctx.info()).bytes
now = (await fwd.run()).attention[0].scores
return [before, after, [sum(now[at * page : at * page + page]) for at in pages], page]
"""
        ),
    )
    assert after <= before - 2 * before // 6
    assert scores[:3] == [0.0, 0.0, 0.0]
    assert all(score > 0 for score in scores[3:])
    assert page == 16


ROW = "fwd = lm.forward()\nawait fwd.embed([1])\nawait fwd.state([ctx])\n"

REFUSED: dict[str, tuple[str, str]] = {
    "no lanes": ("await lm.forward().run()", "invalid_argument: the pass has no lanes"),
    "no program": ("fwd = lm.forward()\nawait fwd.embed_next([ctx])\nawait fwd.run()", "nothing draws the token"),
    "no contexts": ("await lm.forward().embed_next([])", "invalid_argument: contexts must be"),
    "no list": ("await lm.forward().embed_next(ctx)", "contexts must be"),
    "a context twice": ("await lm.forward().embed_next([ctx, ctx])", "fork it for another"),
    "too many": ("await lm.forward().embed_next(await ctx.fork(9))", "at most 8"),
    "no program at all": ("await lm.forward().epilogue('x')", "must be what lm.program returned"),
    "a lane that is not there": (
        "fwd = lm.forward()\nawait fwd.embed_next([ctx])\n"
        "await fwd.epilogue(await lm.program('def sample(lanes):\\n    return argmax(lanes[2].logits)\\n'))\n"
        "await fwd.run()",
        "program_invalid: it reads lanes[2]",
    ),
    "lanes of one context": (
        "await ctx.generate(sampler='def sample(lanes):\\n    return argmax(lanes[1].logits)\\n')",
        "program_invalid: it reads 2 lanes",
    ),
    "more lanes than can be": (
        "await lm.program('def sample(lanes):\\n    return argmax(lanes[64].logits)\\n')",
        "program_invalid: line 2, column 19: lanes are numbered from 0 to 63",
    ),
    "a probe of every token": (
        "await lm.program('def sample(logits):\\n    probe.x = logits\\n    return argmax(logits)\\n')",
        "program_invalid: ",
    ),
    "a state without rows": ("await lm.forward().state([ctx])", "await fwd.embed(tokens) first"),
    "no rows": ("await lm.forward().embed([])", "indptr must rise"),
    "offsets that fall": ("await lm.forward().embed([1, 2], [0, 2, 1])", "indptr must rise"),
    "rows that nothing holds": (
        "fwd = lm.forward()\nawait fwd.embed([1])\nawait fwd.run()",
        "await fwd.state(contexts)",
    ),
    "a strange geometry": (ROW + "await fwd.state([ctx], {'angle': 1})", "geometry must be a dict"),
    "too few positions": (
        "fwd = lm.forward()\nawait fwd.embed([1, 2])\nawait fwd.state([ctx], {'positions': [1]})\nawait fwd.run()",
        "positions has 1 entries, 2 are wanted",
    ),
    "a negative position": (ROW + "await fwd.state([ctx], {'positions': [-1]})\nawait fwd.run()", "positions must be"),
    "a slot of the history": (ROW + "await fwd.state([ctx], {'slots': [0]})\nawait fwd.run()", "must be each of"),
    "a row that sees what follows it": (
        ROW + "await fwd.mask([[[0, 500]]])\nawait fwd.run()",
        "cannot see slot 499, which is written after it",
    ),
    "a mask of something else": (ROW + "await fwd.mask([[0, 2]])\nawait fwd.run()", "must have bits"),
    "a row that is not there": (ROW + "await fwd.readout([1])\nawait fwd.run()", "readout names rows from 0 to 0"),
    "more rows than there are": (
        ROW + "await fwd.state([ctx], {'fold': 2})\nawait fwd.run()",
        "fold keeps 2 rows of a lane that has 1",
    ),
    "a fold of something else": (ROW + "await fwd.state([ctx], {'fold': 'most'})\nawait fwd.run()", "fold must be"),
    "a fold that nobody works out": (
        ROW + "await fwd.state([ctx], {'fold': 'probe.x'})\nawait fwd.run()",
        "only a program can say",
    ),
    "a fold that the program does not work out": (
        ROW + "await fwd.state([ctx], {'fold': 'probe.x'})\n"
        "await fwd.epilogue(await lm.program('def sample(logits):\\n    return argmax(logits)\\n'))\nawait fwd.run()",
        "must write a whole number to probe.x",
    ),
    "two lanes on one context": (
        "fwd = lm.forward()\nawait fwd.embed([1, 2], [0, 1, 2])\nawait fwd.state([ctx])\nawait fwd.run()",
        "2 lanes of tokens and 1 contexts",
    ),
    "rows again and again": (ROW + "await lm.pipeline().run_ahead(fwd, 3)", "only a pass of embed_next"),
    "a token outside of the vocabulary": (
        "fwd = lm.forward()\nawait fwd.embed([99999])\nawait fwd.state([ctx])\nawait fwd.run()",
        "token ids must be between",
    ),
    "no budget": ("await lm.pipeline().run_ahead(lm.forward(), 0)", "budget must be"),
    "a stop string": ("await lm.pipeline().run_ahead(lm.forward(), 5, stop='x')", "stop must be"),
    "an empty stop string": ("await lm.pipeline().run_ahead(lm.forward(), 5, stop=[''])", "stop must be"),
    "no constraint": (
        "await lm.pipeline().run_ahead(lm.forward(), 5, constrain={'rhyme': 1})",
        "constraint_invalid: there is no constraint",
    ),
    "a constraint that cannot be": (
        "fwd = lm.forward()\nawait fwd.embed_next([ctx, await lm.context('a')])\n"
        "await fwd.epilogue(await lm.program('def sample(lanes):\\n    return argmax(lanes[1].logits)\\n'))\n"
        "await lm.pipeline().run_ahead(fwd, 5, constrain={'regex': '['})",
        "constraint_invalid",
    ),
    "attention again and again": (
        "fwd = lm.forward()\nawait fwd.embed_next([ctx])\nawait fwd.on_attention()\n"
        "await fwd.epilogue(await lm.program('def sample(logits):\\n    return argmax(logits)\\n'))\n"
        "await lm.pipeline().run_ahead(fwd, 3)",
        "attention is told of single passes",
    ),
    "attention of a layer that is not there": (
        "await lm.forward().on_attention(layers=[99])",
        "invalid_argument: layers are numbered from 0 to",
    ),
    "attention of a head twice": ("await lm.forward().on_attention(heads=[0, 0])", "heads names one of them twice"),
    "attention of no head": ("await lm.forward().on_attention(heads=[])", "heads must be a list"),
    "a strange reduction": ("await lm.forward().on_attention(reduce='least')", "reduce must be"),
    "a rule of something else": (
        "await lm.forward().on_attention('def sample(logits):\\n    return argmax(logits)\\n')",
        "program_invalid: ",
    ),
    "a rule that says nothing of slots": (
        "await lm.program('def keep(length):\\n    return length > 3\\n')",
        "program_invalid: ",
    ),
    "no rule": ("await lm.forward().on_attention(7)", "program must be what lm.program returned"),
    "too many slots by name": ("await lm.forward().on_attention(top=5000)", "top must be"),
    "tokens that are not there": ("await ctx.tokens(0, 999)", "start and stop must lie within"),
    "an empty context": (
        "fwd = lm.forward()\nawait fwd.embed_next([ctx, await lm.context()])\n"
        "await fwd.epilogue(await lm.program('def sample(lanes):\\n    return argmax(lanes[1].logits)\\n'))\n"
        "await fwd.run()",
        "the context is empty",
    ),
}


@pytest.mark.parametrize(("lines", "text"), REFUSED.values(), ids=REFUSED.keys())
async def test_what_cannot_be_is_refused_and_the_context_stays_as_it_was(stage: Stage, lines: str, text: str) -> None:
    inner = "\n".join("    " + line for line in lines.split("\n"))
    source = f"""
async def main(request, lm):
    ctx = await lm.context(request.messages)
    length = ctx.length
    try:
{"".join("    " + line + chr(10) for line in inner.split(chr(10)))}
    except (ValueError, TypeError) as error:
        return [str(error), ctx.length - length]
    return ["nothing was refused", 0]
"""
    program: Any = await stage.start(source, checks=False)
    error, change = (await program.result()).result
    assert text in error
    assert change == 0


async def test_the_end_of_a_run_in_the_middle_of_a_pass_frees_every_lane(
    stage: Stage, engine: EngineConnection
) -> None:
    run = await stage.start(guided("await lm.emit('x')\nawait pipe.run_ahead(fwd, 400, stop=None)"))
    async with run:
        await anext(run)
        await until(lambda: engine.stats.num_running > 0 or engine.stats.num_steps > 0)
    await until(lambda: engine.stats.num_used_pages == 0 and engine.stats.num_running == 0)
