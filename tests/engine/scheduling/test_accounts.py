"""Accounts among each other: ceilings that end what they hold, and shares that no number of requests can stretch."""

from __future__ import annotations

import pytest

from engine.contexts.commands import AppendTokens, OpenContext
from engine.errors import QuotaExceeded
from engine.kv.ceilings import GRACE_MS
from engine.request import FinishReason, GenerateRequest
from engine.sampling.params import SamplingParams
from engine.scheduling.shares import CREDIT_S
from tests.engine.scheduling.rig import PAGE_KIB, Rig, make_request


def ask(rig: Rig, name: str, account: str, *, num_prompt: int = 4, max_tokens: int = 8, n: int = 1) -> GenerateRequest:
    request = GenerateRequest(
        request_id=name,
        prompt_ids=[1 + len(name)] * (num_prompt - 1) + [20 + sum(map(ord, name)) % 20],
        sampling=SamplingParams(max_tokens=max_tokens, seed=3, ignore_eos=True),
        n=n,
        account=account,
        salt=name,
    )
    rig.scheduler.add(request)
    return request


def tokens_of(rig: Rig, prefix: str) -> int:
    return sum(len(event.token_ids) for event in rig.events if event.request_id.startswith(prefix))


def test_an_account_at_its_ceiling_begins_nothing_new_and_others_do() -> None:
    rig = Rig()
    ask(rig, "first", "a")
    rig.step()
    rig.pass_time(100)
    rig.drain()
    charged = rig.kv.meter.charge("a").total_kib_ms
    assert charged >= 100 * PAGE_KIB
    rig.scheduler.ceilings.set({"a": charged + 1})
    ask(rig, "second", "a")
    rig.scheduler.ceilings.set({"a": charged})
    with pytest.raises(QuotaExceeded) as caught:
        ask(rig, "third", "a")
    assert caught.value.account == "a"
    ask(rig, "other", "b")
    rig.scheduler.ceilings.set({"a": -1})
    ask(rig, "fourth", "a")
    rig.drain()
    assert rig.finish("second") is rig.finish("fourth") is rig.finish("other") is FinishReason.LENGTH


def test_what_runs_at_the_ceiling_has_one_heartbeat_to_go_on_and_then_ends_with_the_error() -> None:
    rig = Rig()
    ask(rig, "long", "a", max_tokens=100)
    ask(rig, "other", "b", max_tokens=100)
    rig.scheduler.ceilings.set({"a": 50 * PAGE_KIB})
    rig.step()
    rig.pass_time(60)
    assert rig.scheduler.tend() == []
    rig.pass_time(GRACE_MS - 1)
    assert rig.scheduler.tend() == []
    rig.pass_time(1)
    (event,) = rig.scheduler.tend()
    assert event.request_id == "long"
    assert event.error is not None
    assert event.error.kind == "QuotaExceeded"
    assert rig.kv.meter.charge("a").level_kib == 0
    rig.drain()
    assert rig.finish("other") is FinishReason.LENGTH


def test_a_ceiling_that_is_raised_within_the_heartbeat_ends_nothing() -> None:
    rig = Rig()
    ask(rig, "long", "a", max_tokens=40)
    rig.scheduler.ceilings.set({"a": 10 * PAGE_KIB})
    rig.step()
    rig.pass_time(60)
    assert rig.scheduler.tend() == []
    rig.scheduler.ceilings.set({"a": 10**9})
    rig.pass_time(10 * GRACE_MS)
    assert rig.scheduler.tend() == []
    rig.drain()
    assert len(rig.tokens("long")) == 40


def test_idle_contexts_of_an_account_at_its_ceiling_give_up_their_pages_at_once_and_cost_nothing_more() -> None:
    rig = Rig()
    for account in "ab":
        rig.obey(OpenContext(account, account, account))
        rig.obey(AppendTokens(account, [1, 2, 3, 4, 5, 6, 7, 8, 9]))
        params = SamplingParams(max_tokens=0)
        rig.scheduler.add(GenerateRequest(request_id=account, prompt_ids=[], context_id=account, sampling=params))
    rig.drain()
    rig.scheduler.ceilings.set({"a": 0})
    rig.scheduler.tend()
    assert rig.scheduler.contexts.describe("a").residency == "tokens"
    assert rig.scheduler.contexts.describe("b").residency == "device"
    before = rig.kv.meter.charge("a").total_kib_ms
    rig.pass_time(1000)
    rig.kv.meter.tick()
    assert rig.kv.meter.charge("a").total_kib_ms == before
    rig.check_charges()


def test_who_waits_at_the_ceiling_does_not_enter() -> None:
    rig = Rig(max_num_seqs=1)
    ask(rig, "first", "a", max_tokens=20)
    ask(rig, "second", "a")
    rig.step()
    rig.scheduler.ceilings.set({"a": 0})
    rig.scheduler.stop("first", 0)
    rig.step()
    rig.step()
    assert tokens_of(rig, "second") == 0
    rig.scheduler.ceilings.set({"a": -1})
    rig.drain()
    assert rig.finish("second") is FinishReason.LENGTH


def crowd(rig: Rig, account: str, count: int, *, max_tokens: int = 12, num_prompt: int = 12) -> None:
    """As many requests as there are, of one account, each on its own."""
    for index in range(count):
        ask(rig, f"{account}{index}", account, num_prompt=num_prompt, max_tokens=max_tokens)


@pytest.mark.parametrize("weight", [1.0, 3.0])
def test_accounts_get_the_device_by_their_weights_however_many_requests_they_make_of_their_work(weight: float) -> None:
    rig = Rig(num_pages=400, max_num_seqs=8, max_batch_tokens=16)
    rig.scheduler.shares.set_weights({"a": weight, "b": 1.0})
    crowd(rig, "b", 160)
    crowd(rig, "a", 60)
    for _ in range(150):
        rig.step()
    ratio = tokens_of(rig, "a") / tokens_of(rig, "b")
    assert weight * 0.8 <= ratio <= weight * 1.25


def test_who_was_away_has_saved_up_a_moment_and_no_more() -> None:
    rig = Rig(num_pages=400, max_num_seqs=8, max_batch_tokens=16, seconds_per_token=1e-3)
    ask(rig, "b-early", "b")
    rig.drain()
    crowd(rig, "a", 200)
    crowd(rig, "c", 200)
    for _ in range(200):
        rig.step()
    before = {account: tokens_of(rig, account) for account in "abc"}
    assert before["a"] > 2 * CREDIT_S / 1e-3
    crowd(rig, "b", 200)
    for _ in range(200):
        rig.step()
    got = {account: tokens_of(rig, account) - before[account] for account in "abc"}
    assert max(got["a"], got["c"]) <= 1.25 * min(got["a"], got["c"])
    assert got["b"] - got["a"] <= 1.25 * CREDIT_S / 1e-3


def test_one_request_finds_a_row_although_another_account_has_taken_them_all() -> None:
    rig = Rig(num_pages=400, max_num_seqs=4, max_batch_tokens=32)
    crowd(rig, "a", 30, max_tokens=60)
    for _ in range(5):
        rig.step()
    request = ask(rig, "chat", "b", max_tokens=5)
    for _ in range(10):
        rig.step()
    assert rig.finish("chat") is FinishReason.LENGTH
    assert len(rig.tokens("chat")) == request.sampling.max_tokens
    rig.drain()
    assert all(len(rig.tokens(f"a{index}")) == 60 for index in range(30))


def test_one_request_finds_pages_although_another_account_has_taken_them_all() -> None:
    rig = Rig(num_pages=24, max_num_seqs=8, max_batch_tokens=64, prefix_cache=False)
    crowd(rig, "a", 8, num_prompt=16, max_tokens=24)
    for _ in range(6):
        rig.step()
    ask(rig, "chat", "b", num_prompt=20, max_tokens=5)
    for _ in range(12):
        rig.step()
    assert rig.finish("chat") is FinishReason.LENGTH
    rig.drain()
    assert all(len(rig.tokens(f"a{index}")) == 24 for index in range(8))


def test_accounts_without_rivals_are_served_in_the_order_of_arrival_and_priority() -> None:
    rig = Rig(max_num_seqs=1)
    for name, priority in (("late", 1), ("soon", 0), ("sooner", 0)):
        rig.scheduler.add(make_request(name, [1, 2], max_tokens=1, priority=priority))
    rig.drain()
    ended = [event.request_id for event in rig.events if event.finish_reason is not None]
    assert ended == ["soon", "sooner", "late"]


def test_a_newcomer_whose_account_has_had_little_gets_a_step_of_its_own() -> None:
    rig = Rig(num_pages=400, max_num_seqs=8, max_batch_tokens=64)
    crowd(rig, "a", 6, max_tokens=60)
    for _ in range(10):
        rig.step()
    ask(rig, "chat", "b", num_prompt=12, max_tokens=5)
    assert [lane.sequence.request.request_id for lane in rig.step().lanes] == ["chat"]
    assert len(rig.step().lanes) == 7
    rig.drain()
    assert all(len(rig.tokens(f"a{index}")) == 60 for index in range(6))


def test_prompts_are_cut_short_while_somebody_who_has_had_less_may_ask_at_any_moment() -> None:
    rig = Rig(num_pages=400, max_num_seqs=8, max_batch_tokens=300)
    ask(rig, "early", "b", max_tokens=1)
    ask(rig, "before", "a", num_prompt=40, max_tokens=1)
    rig.drain()
    ask(rig, "long", "a", num_prompt=250, max_tokens=1)
    assert rig.step().num_tokens < 100
    rig.drain()
    rig.pass_time(100_000)
    ask(rig, "later", "a", num_prompt=250, max_tokens=1)
    assert rig.step().num_tokens == 250
    rig.drain()


def held(rig: Rig, name: str, num_tokens: int, account: str = "a") -> None:
    """A context with pages, on which nobody computes."""
    rig.obey(OpenContext(name, account, name))
    rig.obey(AppendTokens(name, [5] * num_tokens))
    go_on(rig, f"{name} first", name)
    rig.drain()


def go_on(rig: Rig, request_id: str, context_id: str, max_tokens: int = 1) -> None:
    sampling = SamplingParams(max_tokens=max_tokens, seed=3, ignore_eos=True)
    rig.scheduler.add(GenerateRequest(request_id=request_id, prompt_ids=[], sampling=sampling, context_id=context_id))


def level(rig: Rig) -> int:
    return rig.kv.meter.charge("a").level_kib // PAGE_KIB


def test_an_account_that_holds_as_much_as_it_may_gives_up_what_is_idle_before_it_is_refused() -> None:
    rig = Rig()
    held(rig, "one", 8)
    held(rig, "two", 8)
    assert level(rig) >= 4
    rig.scheduler.ceilings.set({}, {"a": 4 * PAGE_KIB})
    go_on(rig, "again", "one", max_tokens=2)
    assert rig.scheduler.contexts["two"].table is None
    assert rig.scheduler.contexts.describe("one").num_computed > 0
    rig.drain()
    assert rig.finish("again") is FinishReason.LENGTH
    rig.scheduler.ceilings.set({}, {"a": 2 * PAGE_KIB})
    with pytest.raises(QuotaExceeded):
        go_on(rig, "more", "one")  # it holds more than that itself
    ask(rig, "other", "b")
    rig.scheduler.ceilings.set({}, {"a": -1})
    go_on(rig, "more", "one")
    rig.drain()
    assert rig.finish("more") is rig.finish("other") is FinishReason.LENGTH


def test_what_grows_beyond_what_its_account_may_hold_ends_and_what_only_comes_to_it_goes_on() -> None:
    rig = Rig()
    ask(rig, "growing", "a", max_tokens=40)
    ask(rig, "other", "b", max_tokens=40)
    rig.step()
    rig.scheduler.ceilings.set({}, {"a": level(rig) * PAGE_KIB})
    rig.pass_time(GRACE_MS)
    assert rig.scheduler.tend() == []
    rig.pass_time(GRACE_MS)
    assert rig.scheduler.tend() == []  # it holds as much as it may, and no more
    for _ in range(60):
        rig.step()
    (ended,) = [event for event in rig.events if event.error is not None]
    assert (ended.request_id, ended.error and ended.error.kind) == ("growing", "QuotaExceeded")
    assert level(rig) == 0
    rig.drain()
    assert rig.finish("other") is FinishReason.LENGTH


def test_an_account_that_comes_back_below_what_it_may_hold_has_a_new_grace() -> None:
    rig = Rig()
    held(rig, "idle", 8)
    ask(rig, "long", "a", max_tokens=30)
    rig.step()
    rig.scheduler.ceilings.set({}, {"a": 3 * PAGE_KIB})
    rig.pass_time(GRACE_MS)
    assert rig.scheduler.tend() == []  # what was idle is given up, and that is enough
    assert rig.scheduler.contexts["idle"].table is None
    rig.pass_time(GRACE_MS)
    assert rig.scheduler.tend() == []
    assert rig.scheduler.ceilings.reached() == {}
    rig.scheduler.abort("long")
    rig.drain()
