"""Exports over a simulated device: they outlive their makers, are paid for once, and never change."""

from __future__ import annotations

import pytest

from engine.contexts.commands import (
    AppendTokens,
    ExportContext,
    ImportContext,
    KeepExport,
    OpenContext,
    ReleaseExport,
    TruncateContext,
)
from engine.contexts.edits import Edit
from engine.request import GenerateRequest
from engine.sampling.params import SamplingParams
from tests.engine.scheduling.rig import EOS, PAGE_KIB, SIZE, Rig
from tests.engine.scheduling.simulated_device import continuation

PAGES = 4
IDS = [index % 40 for index in range(PAGES * SIZE)]
HOUR_MS = 3_600_000


def compute(rig: Rig, name: str, *, max_tokens: int = 0) -> list[int]:
    request_id = f"{name}.{len(rig.events)}"
    params = SamplingParams(max_tokens=max_tokens, seed=3, ignore_eos=True)
    rig.scheduler.add(GenerateRequest(request_id=request_id, prompt_ids=[], context_id=name, sampling=params))
    rig.drain()
    return rig.tokens(request_id)


def export(rig: Rig, *, account: str = "t/a", salt: str = "a", ttl_ms: int = HOUR_MS) -> None:
    """A computed context is exported as `x`, and gone."""
    rig.obey(OpenContext("c", account, salt))
    rig.obey(AppendTokens("c", IDS))
    compute(rig, "c")
    rig.obey(ExportContext("c", "x", ttl_ms))
    rig.scheduler.release_contexts(["c"])


def num_prefilled(rig: Rig) -> int:
    return rig.scheduler.stats.num_prefill_tokens


def level(rig: Rig, account: str) -> int:
    rig.kv.meter.tick()
    return rig.kv.meter.charge(account).level_kib


def let_it_expire(rig: Rig) -> None:
    rig.pass_time(HOUR_MS)
    rig.scheduler.tend()


def test_an_import_goes_on_from_the_pages_of_an_export_whose_maker_is_gone() -> None:
    rig = Rig(prefix_cache=False)
    export(rig)
    before = num_prefilled(rig)
    rig.obey(ImportContext("x", "i", "t/a", "a"))
    rig.obey(AppendTokens("i", [7, 8]))
    assert compute(rig, "i", max_tokens=5) == continuation(
        [*IDS, 7, 8], seed=3, stream=0, max_tokens=5, stop=frozenset()
    )
    assert num_prefilled(rig) - before == 2
    assert rig.scheduler.contexts.describe("x").length == len(IDS)


def test_an_export_never_changes() -> None:
    rig = Rig()
    export(rig)
    rig.obey(ImportContext("x", "i", "t/a", "a"))
    rig.obey(TruncateContext("i", 3))
    rig.obey(AppendTokens("i", [9] * 30))
    compute(rig, "i", max_tokens=3)
    rig.obey(ImportContext("x", "j", "t/a", "a"))
    assert compute(rig, "j", max_tokens=5) == continuation(IDS, seed=3, stream=0, max_tokens=5, stop=frozenset())


@pytest.mark.parametrize("salt", ["a", "b"])
def test_whoever_exported_pays_while_it_is_exported_and_whoever_imported_from_its_release_on(salt: str) -> None:
    rig = Rig()
    export(rig)
    assert level(rig, "t/a") == PAGES * PAGE_KIB
    rig.obey(ImportContext("x", "i", "t/b", salt))
    assert (level(rig, "t/a"), level(rig, "t/b")) == (PAGES * PAGE_KIB, 0)
    rig.obey(ReleaseExport("x"))
    assert (level(rig, "t/a"), level(rig, "t/b")) == (0, PAGES * PAGE_KIB)
    rig.scheduler.release_contexts(["i"])
    assert (level(rig, "t/a"), level(rig, "t/b")) == (0, 0)
    rig.drain()


def test_of_pages_that_live_on_the_export_pays() -> None:
    rig = Rig()
    rig.obey(OpenContext("c", "t/live", "s"))
    rig.obey(AppendTokens("c", IDS))
    compute(rig, "c")
    rig.obey(ImportContext("x", "i", "t/live", "s"))
    rig.obey(ExportContext("c", "x", HOUR_MS))
    assert level(rig, "t/live") == PAGES * PAGE_KIB
    assert rig.scheduler.contexts["x"].payer.tally.level == PAGES
    assert rig.scheduler.contexts["c"].payer.tally.level == 0


def test_an_export_ends_with_its_time_and_running_work_goes_on() -> None:
    rig = Rig()
    export(rig)
    rig.obey(ImportContext("x", "i", "t/b", "a"))
    params = SamplingParams(max_tokens=12, seed=3, ignore_eos=True)
    rig.scheduler.add(GenerateRequest(request_id="r", prompt_ids=[], context_id="i", sampling=params))
    rig.step()
    let_it_expire(rig)
    assert "x" not in rig.scheduler.contexts.exports
    rig.drain()
    assert rig.tokens("r") == continuation(IDS, seed=3, stream=0, max_tokens=12, stop=frozenset())
    assert (level(rig, "t/a"), level(rig, "t/b") > 0) == (0, True)


def test_an_export_that_is_kept_lives_on() -> None:
    rig = Rig()
    export(rig)
    rig.pass_time(HOUR_MS - 1000)
    rig.obey(KeepExport("x", HOUR_MS))
    rig.pass_time(HOUR_MS - 1000)
    rig.scheduler.tend()
    assert "x" in rig.scheduler.contexts.exports
    let_it_expire(rig)
    assert "x" not in rig.scheduler.contexts.exports


def test_what_others_need_more_an_export_gives_up_and_imports_are_computed_again() -> None:
    rig = Rig(num_pages=PAGES + 3, prefix_cache=False)
    export(rig)
    rig.obey(OpenContext("big", "t/b", "b"))
    rig.obey(AppendTokens("big", [1] * ((PAGES + 2) * SIZE)))
    compute(rig, "big")
    assert rig.scheduler.contexts.describe("x").residency == "tokens"
    rig.scheduler.release_contexts(["big"])
    rig.obey(ImportContext("x", "i", "t/a", "a"))
    assert compute(rig, "i", max_tokens=5) == continuation(IDS, seed=3, stream=0, max_tokens=5, stop=frozenset())


def test_what_somebody_of_another_salt_computes_behind_an_import_is_in_no_cache() -> None:
    rig = Rig(num_pages=200)
    export(rig)
    secret = [3] * (2 * SIZE)
    rig.obey(ImportContext("x", "i", "t/b", "b"))
    rig.obey(AppendTokens("i", secret))
    compute(rig, "i", max_tokens=2)
    for salt, name in (("a", "of a"), ("b", "of b")):
        before = num_prefilled(rig)
        rig.obey(OpenContext(name, f"t/{salt}", salt))
        rig.obey(AppendTokens(name, [*IDS, *secret]))
        compute(rig, name)
        num_known = len(IDS) if salt == "a" else 0
        assert num_prefilled(rig) - before == len(IDS) + len(secret) - num_known
    rig.scheduler.release_contexts(["i"])
    assert rig.kv.num_cached(rig.kv.name([*IDS, *secret, 1], salt="b")) == PAGES + 2


def test_edits_are_exported_with_the_history() -> None:
    rig = Rig(prefix_cache=False)
    rig.obey(OpenContext("c", "t/a", "a"))
    rig.obey(AppendTokens("c", IDS))
    compute(rig, "c")
    rig.obey(TruncateContext("c", len(IDS), (Edit(SIZE, 2 * SIZE, len(IDS) - 1, drops=True),)))
    compute(rig, "c")
    rig.obey(ExportContext("c", "x", HOUR_MS))
    rig.obey(ImportContext("x", "i", "t/a", "a"))
    assert compute(rig, "i", max_tokens=4) == compute(rig, "c", max_tokens=4)


def test_of_a_busy_context_what_it_comes_to_is_exported() -> None:
    rig = Rig()
    rig.obey(OpenContext("c", "t/a", "a"))
    rig.obey(AppendTokens("c", IDS))
    params = SamplingParams(max_tokens=3, seed=3, ignore_eos=True)
    rig.scheduler.add(GenerateRequest(request_id="r", prompt_ids=[], context_id="c", sampling=params))
    rig.step()
    rig.obey(ExportContext("c", "x", HOUR_MS))
    assert "x" not in rig.scheduler.contexts.exports
    rig.drain()
    assert rig.scheduler.contexts["x"].token_ids == [*IDS, *rig.tokens("r")]


def test_what_is_not_there_is_not_imported_and_ids_are_used_once() -> None:
    rig = Rig()
    export(rig)
    rig.obey(ImportContext("y", "i"))
    assert rig.scheduler.contexts.describe("i").length == 0
    rig.obey(OpenContext("other"))
    rig.obey(AppendTokens("other", [EOS, 1]))
    rig.obey(ExportContext("other", "x", HOUR_MS))
    rig.obey(ImportContext("x", "other"))
    assert rig.scheduler.contexts["x"].token_ids == IDS
    assert rig.scheduler.contexts["other"].token_ids == [EOS, 1]
    for command in (ReleaseExport("y"), KeepExport("y", 1), ReleaseExport("other")):
        rig.obey(command)
    assert rig.scheduler.contexts.describe("other").length == 2
