"""Histories that requests have kept: held by the engine alone, paid for, and given up in the end."""

from __future__ import annotations

from engine.contexts.commands import AppendTokens, KeepContext, OpenContext
from engine.request import GenerateRequest
from engine.sampling.params import SamplingParams
from tests.engine.scheduling.rig import PAGE_KIB, SIZE, Rig

PAGES = 4
IDS = [index % 40 for index in range(PAGES * SIZE)]


def hold(rig: Rig, name: str, ids: list[int], account: str = "s/a", salt: str = "s") -> None:
    """A context whose tokens are computed."""
    rig.obey(OpenContext(name, account, salt))
    rig.obey(AppendTokens(name, ids))
    params = SamplingParams(max_tokens=0)
    request_id = f"{name}.{len(rig.events)}"
    rig.scheduler.add(GenerateRequest(request_id=request_id, prompt_ids=[], context_id=name, sampling=params))
    rig.drain()


def keep(
    rig: Rig, name: str, *, ttl_ms: int = 10**6, max_kib: int = 10**6, value: float = 0.5, max_kept: int = 3
) -> None:
    rig.obey(KeepContext(name, f"lease {name}", ttl_ms, max_kib, value, max_kept))


def kept(rig: Rig, *names: str) -> None:
    """Histories are kept, and these alone."""
    contexts = rig.scheduler.contexts
    assert len(contexts.kept) == len(contexts.leases) == len(contexts) == len(names)
    for name in names:
        info = contexts.describe(name)
        assert (info.lease_id, info.residency) == (f"lease {name}", "device")
    rig.scheduler.check_integrity()


def num_computed_of(rig: Rig, ids: list[int], salt: str = "s") -> int:
    """Tokens that a request of this prompt has to compute."""
    before = rig.scheduler.stats.num_prefill_tokens
    request_id = f"new {len(rig.events)}"
    params = SamplingParams(max_tokens=0)
    rig.scheduler.add(
        GenerateRequest(request_id=request_id, prompt_ids=ids, salt=salt, account=f"{salt}/b", sampling=params)
    )
    rig.drain()
    return rig.scheduler.stats.num_prefill_tokens - before


def test_a_kept_history_is_paid_for_and_found_until_its_time_is_over() -> None:
    rig = Rig(num_pages=PAGES + 3)
    hold(rig, "one", IDS)
    keep(rig, "one", ttl_ms=5000)
    kept(rig, "one")
    num_computed_of(rig, [39] * (2 * SIZE), salt="other")
    assert num_computed_of(rig, [*IDS, 1]) == 1
    rig.pass_time(2000)
    rig.kv.meter.tick()
    assert rig.kv.meter.charge("s/a").level_kib == PAGES * PAGE_KIB
    rig.pass_time(3000)
    rig.scheduler.tend()
    kept(rig)
    assert rig.kv.meter.charge("s/a").level_kib == 0
    rig.check_charges()


def test_nobody_can_compute_on_one_or_end_it_by_the_end_of_its_maker() -> None:
    rig = Rig()
    hold(rig, "one", IDS)
    keep(rig, "one")
    rig.scheduler.release_contexts(["another"])
    kept(rig, "one")


def test_one_that_a_longer_history_begins_with_gives_way_to_it_and_was_of_use() -> None:
    rig = Rig()
    hold(rig, "one", IDS)
    keep(rig, "one", value=1.0)
    hold(rig, "two", [*IDS, 1, 2, 3])
    keep(rig, "two", value=1.0)
    kept(rig, "two")
    reuse = rig.scheduler.contexts.leases.reuse
    assert reuse.chance("s/a", 1.0, 0) > reuse.chance("nobody", 0.8, 0)
    for name, ids, salt in (("shorter", IDS, "s"), ("other", [*IDS, 1, 2, 3, 4], "o")):
        hold(rig, name, ids, salt=salt)
        keep(rig, name)
    kept(rig, "two", "shorter", "other")


def test_of_too_many_of_one_account_the_oldest_ends() -> None:
    rig = Rig(num_pages=128)
    for number in range(5):
        hold(rig, f"n{number}", [number, *IDS])
        keep(rig, f"n{number}")
    hold(rig, "b", IDS, account="b/b", salt="b")
    keep(rig, "b")
    kept(rig, "n2", "n3", "n4", "b")


def test_one_that_holds_more_than_it_may_is_ended_at_once() -> None:
    rig = Rig()
    hold(rig, "one", IDS)
    keep(rig, "one", max_kib=PAGES * PAGE_KIB - 1)
    kept(rig)
    assert rig.scheduler.contexts.describe("one").length == 0


def test_one_whose_pages_others_need_is_ended_and_revoked() -> None:
    rig = Rig(num_pages=PAGES + 2)
    hold(rig, "one", IDS)
    keep(rig, "one")
    num_computed_of(rig, [9] * ((PAGES + 1) * SIZE), salt="x")
    rig.scheduler.tend()
    kept(rig)
    assert [(one.context_id, one.reason) for one in rig.scheduler.contexts.leases.revoked] == [("one", "pressure")]


def test_what_an_account_at_its_ceiling_has_kept_ends() -> None:
    rig = Rig()
    hold(rig, "one", IDS)
    keep(rig, "one")
    rig.scheduler.ceilings.set({"s/a": 1})
    rig.scheduler.tend()
    rig.scheduler.tend()
    kept(rig)


def test_one_on_which_is_computed_still_is_kept_when_that_has_ended() -> None:
    rig = Rig()
    rig.obey(OpenContext("one", "a", "s"))
    rig.obey(AppendTokens("one", IDS))
    params = SamplingParams(max_tokens=3, ignore_eos=True)
    rig.scheduler.add(GenerateRequest(request_id="r", prompt_ids=[], context_id="one", sampling=params))
    keep(rig, "one")
    assert len(rig.scheduler.contexts.kept) == 0
    rig.drain()
    kept(rig, "one")
    assert rig.scheduler.contexts.describe("one").length == len(IDS) + 3
