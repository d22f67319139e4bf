"""Leases: who gives way first, what becomes of its KV, and what its holder is told."""

from __future__ import annotations

import pytest

from engine.contexts.commands import (
    AppendTokens,
    EndLease,
    OpenContext,
    ReleaseContexts,
    RetainContext,
    TruncateContext,
)
from engine.errors import LeaseLost
from engine.leases.costs import RestoreCosts
from engine.leases.lease import OnPressure
from engine.leases.reuse import ReuseHistory
from engine.request import FinishReason, GenerateRequest
from engine.sampling.params import SamplingParams
from tests.engine.scheduling.rig import PAGE_KIB, SIZE, Rig
from tests.engine.scheduling.simulated_device import continuation

PAGES = 4
"""Of each context here."""


def make_rig(*, num_pages: int = 13, host_pages: int = 0) -> Rig:
    """Three contexts fit, and one page more."""
    return Rig(num_pages=num_pages, host_pages=host_pages, prefix_cache=False)


def hold(rig: Rig, name: str, account: str = "") -> list[int]:
    """A context with its KV on the device."""
    ids = [len(name)] * 3 + [ord(letter) % 50 for letter in name[:1]] + list(range(PAGES * SIZE - 4))
    rig.obey(OpenContext(name, account or name, name))
    rig.obey(AppendTokens(name, ids))
    compute(rig, name)
    return ids


def compute(rig: Rig, name: str, *, max_tokens: int = 0) -> str:
    request_id = f"{name}.{len(rig.events)}"
    params = SamplingParams(max_tokens=max_tokens, seed=3, ignore_eos=True)
    rig.scheduler.add(GenerateRequest(request_id=request_id, prompt_ids=[], context_id=name, sampling=params))
    rig.drain()
    return request_id


def retain(
    rig: Rig,
    name: str,
    value: float = 0.5,
    on_pressure: OnPressure = "tokens",
    *,
    ttl_ms: int = 10**6,
    max_kib: int = 10**6,
) -> None:
    rig.obey(RetainContext(name, f"lease {name}", ttl_ms, max_kib, value, on_pressure))


def residency(rig: Rig, *names: str) -> list[str]:
    return [rig.scheduler.contexts.describe(name).residency for name in names]


def press(rig: Rig, num_pages: int = PAGES) -> None:
    """Somebody else needs pages for a moment."""
    request_id = f"press {len(rig.events)}"
    params = SamplingParams(max_tokens=0)
    rig.scheduler.add(
        GenerateRequest(request_id=request_id, prompt_ids=[9] * (num_pages * SIZE), sampling=params, salt=request_id)
    )
    rig.drain()


def revoked(rig: Rig) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = [(news.context_id, news.reason) for news in rig.scheduler.contexts.leases.revoked]
    rig.scheduler.contexts.leases.revoked = []
    return found


def test_the_context_of_least_value_gives_way_first_whenever_it_was_used() -> None:
    rig = make_rig()
    for name, value in (("a", 0.9), ("b", 0.2), ("c", 0.6)):
        hold(rig, name)
        retain(rig, name, value)
    compute(rig, "b")
    press(rig)
    assert residency(rig, "a", "b", "c") == ["device", "tokens", "device"]
    assert revoked(rig) == [("b", "pressure")]
    press(rig, 2 * PAGES)
    assert residency(rig, "a", "c") == ["device", "tokens"]


def test_a_promise_is_worth_what_earlier_ones_of_the_account_were_worth() -> None:
    rig = make_rig()
    for count in range(30):
        hold(rig, f"x{count}", account="liar")
        retain(rig, f"x{count}", 1.0)
        rig.scheduler.release_contexts([f"x{count}"])
    for count in range(30):
        hold(rig, f"y{count}", account="honest")
        retain(rig, f"y{count}", 0.5)
        if count % 2:
            compute(rig, f"y{count}")
        rig.scheduler.release_contexts([f"y{count}"])
    hold(rig, "honest", account="honest")
    retain(rig, "honest", 0.5)
    hold(rig, "liar", account="liar")
    retain(rig, "liar", 1.0)
    press(rig, 2 * PAGES)
    assert residency(rig, "honest", "liar") == ["device", "tokens"]


def test_contexts_without_leases_of_one_account_give_way_in_the_order_of_their_use() -> None:
    rig = make_rig()
    for name in "abc":
        hold(rig, name, account="one")
    compute(rig, "a")
    press(rig)
    assert residency(rig, "a", "b", "c") == ["device", "tokens", "device"]


def test_an_expired_lease_is_told_and_the_context_stays_as_any_other() -> None:
    rig = make_rig()
    hold(rig, "a")
    retain(rig, "a", ttl_ms=100)
    rig.pass_time(99)
    rig.scheduler.tend()
    assert revoked(rig) == []
    rig.pass_time(1)
    rig.scheduler.tend()
    assert revoked(rig) == [("a", "expired")]
    assert residency(rig, "a") == ["device"]
    compute(rig, "a")


def test_a_context_that_grows_beyond_the_budget_of_its_lease_loses_that() -> None:
    rig = make_rig()
    hold(rig, "a")
    retain(rig, "a", max_kib=(PAGES - 1) * PAGE_KIB)
    assert rig.scheduler.contexts.describe("a").lease_id == ""
    retain(rig, "a", max_kib=PAGES * PAGE_KIB)
    assert rig.scheduler.contexts.describe("a").lease_id == "lease a"
    compute(rig, "a", max_tokens=8)
    rig.scheduler.tend()
    assert revoked(rig) == [("a", "budget")]


def test_a_lease_that_its_holder_ends_is_no_news() -> None:
    rig = make_rig()
    hold(rig, "a")
    retain(rig, "a")
    rig.obey(EndLease("a", "another"))
    assert rig.scheduler.contexts.describe("a").lease_id == "lease a"
    rig.obey(EndLease("a", "lease a"))
    assert rig.scheduler.contexts.describe("a").lease_id == ""
    hold(rig, "b")
    retain(rig, "b")
    rig.scheduler.release_contexts(["b"])
    assert revoked(rig) == []
    assert len(rig.scheduler.contexts.leases) == 0


def test_at_its_ceiling_an_account_loses_its_leases_and_its_host_copies() -> None:
    rig = make_rig(host_pages=PAGES)
    for name in "ab":
        hold(rig, name, account="poor")
        retain(rig, name, on_pressure="host")
    press(rig, 2 * PAGES)
    assert sorted(residency(rig, "a", "b")) == ["device", "host"]
    rig.scheduler.ceilings.set({"poor": 0})
    rig.scheduler.tend()
    assert residency(rig, "a", "b") == ["tokens", "tokens"]
    assert sorted(revoked(rig)) == [("a", "quota"), ("b", "quota")]
    assert rig.kv.meter.charge("poor").level_kib == 0


@pytest.mark.parametrize("on_pressure", ["fail", "release"])
def test_who_wants_to_be_told_of_its_loss_is_refused_once_or_for_good(on_pressure: OnPressure) -> None:
    rig = make_rig()
    hold(rig, "a")
    retain(rig, "a", 0.1, on_pressure)
    press(rig, 3 * PAGES)
    assert residency(rig, "a") == ["tokens"]
    with pytest.raises(LeaseLost) as caught:
        compute(rig, "a")
    assert caught.value.reason == "pressure"
    if on_pressure == "release":
        with pytest.raises(LeaseLost):
            compute(rig, "a")
    else:
        compute(rig, "a")
        assert residency(rig, "a") == ["device"]


def test_kv_that_gave_way_to_others_comes_back_from_host_memory_without_being_computed_again() -> None:
    rig = make_rig(host_pages=2 * PAGES)
    ids = hold(rig, "a")
    retain(rig, "a", on_pressure="host")
    computed = rig.scheduler.stats.num_prefill_tokens
    press(rig, 3 * PAGES)
    assert residency(rig, "a") == ["host"]
    assert rig.kv.meter.charge("a").level_kib == PAGES * PAGE_KIB
    assert revoked(rig) == []
    request_id = compute(rig, "a", max_tokens=5)
    assert rig.tokens(request_id) == continuation(ids, seed=3, stream=0, max_tokens=5, stop=frozenset())
    assert rig.scheduler.stats.num_prefill_tokens == computed + 3 * PAGES * SIZE + 1
    assert rig.scheduler.tier.num_restored == PAGES
    assert rig.scheduler.tier.num_free == 2 * PAGES
    assert residency(rig, "a") == ["device"]


def test_where_copying_takes_longer_than_computing_the_tokens_are_computed() -> None:
    rig = make_rig(host_pages=PAGES)
    ids = hold(rig, "a")
    retain(rig, "a", on_pressure="host")
    press(rig, 3 * PAGES)
    for _ in range(50):
        rig.scheduler.contexts.costs.note_copy(1, 10.0)
    request_id = compute(rig, "a", max_tokens=5)
    assert rig.tokens(request_id) == continuation(ids, seed=3, stream=0, max_tokens=5, stop=frozenset())
    assert rig.scheduler.tier.num_restored == 0
    assert rig.scheduler.tier.num_free == PAGES


def test_host_memory_is_for_what_is_worth_most_too() -> None:
    rig = make_rig(host_pages=PAGES)
    for name, value in (("a", 0.3), ("b", 0.9)):
        hold(rig, name)
        retain(rig, name, value, "host")
    press(rig, 2 * PAGES)
    assert residency(rig, "a", "b") == ["host", "device"]
    press(rig, 3 * PAGES)
    assert residency(rig, "a", "b") == ["tokens", "host"]
    assert revoked(rig) == [("a", "pressure")]


def test_what_is_cut_off_a_history_does_not_come_back_from_host_memory() -> None:
    rig = make_rig(host_pages=PAGES)
    ids = hold(rig, "a")
    retain(rig, "a", on_pressure="host")
    press(rig, 3 * PAGES)
    rig.obey(TruncateContext("a", 6))
    rig.obey(AppendTokens("a", [40, 41, 42]))
    assert rig.scheduler.tier.num_free == PAGES - 2
    request_id = compute(rig, "a", max_tokens=4)
    history = [*ids[:6], 40, 41, 42]
    assert rig.tokens(request_id) == continuation(history, seed=3, stream=0, max_tokens=4, stop=frozenset())
    assert rig.scheduler.tier.num_free == PAGES


def test_a_step_that_fails_before_its_copies_are_made_leaves_nothing_wrong_to_come_back() -> None:
    rig = make_rig(host_pages=PAGES)
    ids = hold(rig, "a")
    retain(rig, "a", on_pressure="host")
    rig.fail_next = True
    press(rig, 3 * PAGES)
    assert rig.num_failed == 1
    request_id = compute(rig, "a", max_tokens=4)
    assert rig.tokens(request_id) == continuation(ids, seed=3, stream=0, max_tokens=4, stop=frozenset())
    assert rig.scheduler.tier.num_restored == 0


def test_a_step_that_fails_with_a_restore_in_it_leaves_the_context_to_be_computed() -> None:
    rig = make_rig(host_pages=PAGES)
    ids = hold(rig, "a")
    retain(rig, "a", on_pressure="host")
    press(rig, 3 * PAGES)
    rig.fail_next = True
    failed = compute(rig, "a", max_tokens=4)
    assert rig.finish(failed) is FinishReason.ERROR
    assert rig.scheduler.contexts.describe("a").num_computed == 0
    request_id = compute(rig, "a", max_tokens=4)
    assert rig.tokens(request_id) == continuation(ids, seed=3, stream=0, max_tokens=4, stop=frozenset())


def test_a_released_context_gives_up_its_host_copy() -> None:
    rig = make_rig(host_pages=PAGES)
    hold(rig, "a")
    retain(rig, "a", on_pressure="host")
    press(rig, 3 * PAGES)
    assert rig.scheduler.release_contexts(ReleaseContexts(["a"]).context_ids) == []
    rig.scheduler.check_integrity()
    assert rig.scheduler.tier.num_free == PAGES
    assert rig.kv.meter.charge("a").level_kib == 0


def test_what_is_used_again_is_used_again_early() -> None:
    history = ReuseHistory()
    for _ in range(50):
        history.note_kept("a", was_used=True, delay_ms=1000)
        history.note_kept("a", was_used=False, delay_ms=9000)
    soon, late = history.chance("a", None, 100), history.chance("a", None, 20_000)
    assert 0.4 < history.chance("a", None, 0) < 0.6
    assert soon > 10 * late
    assert history.chance("unknown", 0.8, 0) == pytest.approx(0.8)
    assert history.chance("unknown", 0.0, 0) == 0.0
    assert history.chance("unknown", 1.0, 10**6) < 0.01


def test_costs_follow_what_is_measured() -> None:
    costs = RestoreCosts(context_weight=1000.0)
    for _ in range(60):
        costs.note_prefill(100, 2.0)
        costs.note_copy(10**6, 0.5)
    assert costs.compute_s(0, 1) == pytest.approx(0.02, rel=0.01)
    assert costs.compute_s(1000, 1001) == pytest.approx(0.04, rel=0.01)
    assert costs.copy_s(2 * 10**6) == pytest.approx(1.0, rel=0.01)
    costs.note_prefill(0, 1.0)
    costs.note_copy(10, 0.0)
