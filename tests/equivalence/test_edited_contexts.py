"""Hidden and dropped spans on a real engine, against `transformers` with the same mask over the whole history."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from engine.build import build_loop
from engine.engine import open_engine
from engine.text.model import TextModel
from extensions.live_context import LiveContext, Mark
from extensions.runtime import Runtime
from tests.equivalence.harness import STEPS
from tests.equivalence.test_live_contexts import VOCAB, asked, engine_config, go_on, no_page_is_used
from tests.tiny_models import write_tiny_model

PAGE = 16


class Reference:
    """The model in plain torch, and what each token of a history may see."""

    def __init__(self, model: Path) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(model, attn_implementation="eager", dtype=torch.float32)
        self._window: int | None = getattr(self._model.config, "sliding_window", None)

    def logprobs(self, token_ids: list[int], edits: list[tuple[int, int, int]]) -> torch.Tensor:
        """[V] after the last token, with one forward pass over all of them."""
        count = len(token_ids)
        rows, columns = torch.arange(count)[:, None], torch.arange(count)
        visible = columns <= rows
        for start, stop, since in edits:
            visible &= ~((rows >= since) & (columns >= start) & (columns < stop))
        if self._window is not None:
            visible &= rows - columns < self._window
        visible |= rows == columns
        mask = torch.zeros(count, count).masked_fill_(~visible, float("-inf"))[None, None]
        with torch.inference_mode():
            logits = self._model(torch.tensor([token_ids]), attention_mask=mask).logits[0, -1]
        found: torch.Tensor = logits.float().log_softmax(-1)
        return found


@pytest.fixture(scope="module", params=["llama", "mistral"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that sees everything, and one whose layers see 24 tokens back."""
    return write_tiny_model(tmp_path_factory.mktemp(request.param), request.param, seed=1)


@pytest.fixture(scope="module")
def reference(model: Path) -> Reference:
    return Reference(model)


@pytest.fixture(params=STEPS)
async def runtime(request: pytest.FixtureRequest, model: Path) -> AsyncIterator[Runtime]:
    async with open_engine(build_loop(engine_config(model, request.param, num_pages=24))) as engine:
        yield Runtime(engine, TextModel.load(model))
        await no_page_is_used(engine)


class Owner:
    """A context, and its history and edits as a reader of the documentation would keep them."""

    def __init__(self, runtime: Runtime, context: LiveContext, edits: list[tuple[int, int, int]]) -> None:
        self._runtime = runtime
        self.context = context
        self.edits = edits
        self.marks: list[tuple[Mark, list[tuple[int, int, int]]]] = []

    def edit(self, start: int, stop: int, *, drops: bool) -> None:
        (self.context.drop if drops else self.context.hide)(start, stop)
        if start < stop:
            self.edits = [*self.edits, (start, stop, self.context.length - 1)]

    def truncate(self, length: int) -> None:
        if length < self.context.length:
            self.edits = [
                (start, min(stop, length), min(since, length - 1))
                for start, stop, since in self.edits
                if start < length
            ]
        self.context.truncate(length)

    def mark(self) -> None:
        self.marks.append((self.context.mark(), self.edits))

    def rewind(self) -> None:
        mark, edits = self.marks.pop()
        if mark.length <= self.context.length:
            try:
                self.context.rewind(mark)
            except ValueError:
                return
            self.edits = edits

    async def check(self, reference: Reference, step: str) -> None:
        found = torch.tensor(list((await self.context.next(top=-1)).logprobs))
        expected = reference.logprobs(self.context.token_ids, self.edits)
        if step == "torch":
            torch.testing.assert_close(found, expected, atol=2e-3, rtol=0)
        else:  # its weights are rounded, but nothing else may make a difference
            assert (found - expected).abs().mean() < 0.4
            assert await self._recomputed() == found.tolist()

    async def _recomputed(self) -> list[float]:
        """The same from nothing but tokens and edits, sharing no page."""
        fresh = self._runtime.open_context(self.context.token_ids, salt=str(id(self)))
        fresh._edits = self.context._edits
        found = torch.tensor(list((await fresh.next(top=-1)).logprobs)).tolist()
        fresh.release()
        return found


async def test_a_hidden_span_is_not_seen_by_what_comes_after(runtime: Runtime, reference: Reference) -> None:
    owner = Owner(runtime, runtime.open_context(list(range(3, 60))), [])
    await owner.context.prefill()
    before = (await owner.context.info()).num_pages
    owner.edit(5, 30, drops=False)
    await owner.check(reference, runtime.info.step)
    await go_on(owner.context, asked(max_tokens=5))
    await owner.check(reference, runtime.info.step)
    assert (await owner.context.info()).num_pages == before
    owner.context.release()


async def test_a_dropped_span_frees_its_pages_and_positions_stay(runtime: Runtime, reference: Reference) -> None:
    owner = Owner(runtime, runtime.open_context(list(range(3, 103))), [])
    await owner.context.prefill()
    assert (await owner.context.info()).num_pages == 7
    owner.edit(4, 70, drops=True)
    info = await owner.context.info()
    assert (info.num_pages, info.recomputable) == (7 - 3, True)
    await go_on(owner.context, asked(max_tokens=20))
    await owner.check(reference, runtime.info.step)
    owner.context.release()


async def test_what_is_dropped_before_it_is_computed_is_still_seen_by_what_came_with_it(
    runtime: Runtime, reference: Reference
) -> None:
    owner = Owner(runtime, runtime.open_context(list(range(3, 103))), [])
    owner.edit(0, 64, drops=True)
    owner.context.append([7, 8, 9])
    await owner.check(reference, runtime.info.step)
    assert (await owner.context.info()).num_pages == 7 - 4
    owner.context.release()


async def test_an_edited_context_that_gave_its_pages_up_is_computed_again_as_it_was(
    runtime: Runtime, reference: Reference
) -> None:
    owner = Owner(runtime, runtime.open_context(list(range(3, 103))), [])
    await owner.context.prefill()
    owner.edit(16, 64, drops=True)
    await go_on(owner.context, asked(max_tokens=3))
    owner.edit(70, 75, drops=False)
    await go_on(owner.context, asked(max_tokens=3))
    other = runtime.open_context([5] * 340)
    await other.prefill()
    assert (await owner.context.info()).residency == "tokens"
    other.release()
    await owner.check(reference, runtime.info.step)
    owner.context.release()


async def test_a_window_that_moves_holds_a_constant_number_of_pages(runtime: Runtime, reference: Reference) -> None:
    owner = Owner(runtime, runtime.open_context(list(range(3, 70))), [])
    for _ in range(10):
        await go_on(owner.context, asked(max_tokens=PAGE))
        owner.edit(4, owner.context.length - 2 * PAGE, drops=True)
        assert (await owner.context.info()).num_pages <= 5
    await owner.check(reference, runtime.info.step)
    owner.context.release()


async def test_a_rewind_brings_back_what_was_hidden_and_dropped_since(runtime: Runtime, reference: Reference) -> None:
    owner = Owner(runtime, runtime.open_context(list(range(3, 80))), [])
    await owner.context.prefill()
    owner.mark()
    await go_on(owner.context, asked(max_tokens=8))
    owner.edit(0, 48, drops=True)
    await owner.check(reference, runtime.info.step)
    owner.rewind()
    assert owner.edits == []
    await owner.check(reference, runtime.info.step)
    owner.context.release()


@pytest.mark.parametrize("seed", range(3))
async def test_after_any_edits_the_next_distribution_is_that_of_one_masked_pass(
    runtime: Runtime, reference: Reference, seed: int
) -> None:
    rng = random.Random(seed)
    owners = [Owner(runtime, runtime.open_context([rng.randrange(3, VOCAB) for _ in range(rng.randint(20, 90))]), [])]
    for _ in range(16):
        owner = rng.choice(owners)
        context = owner.context
        change = rng.choice(
            ["append", "generate", "hide", "drop", "drop", "truncate", "fork", "prefill", "mark", "rewind"]
        )
        if change == "append":
            context.append([rng.randrange(3, VOCAB) for _ in range(rng.randint(1, 30))])
        elif change == "generate":
            await go_on(context, asked(max_tokens=rng.randint(1, 6)))
        elif change in ("hide", "drop"):
            start = rng.randint(0, context.length)
            owner.edit(start, rng.randint(start, context.length), drops=change == "drop")
        elif change == "truncate" and rng.random() < 0.5:
            owner.truncate(rng.randint(1, context.length))
        elif change == "fork" and len(owners) < 4:
            owners.append(Owner(runtime, context.fork()[0], owner.edits))
        elif change == "prefill":
            await context.prefill()
        elif change == "mark":
            owner.mark()
        elif change == "rewind" and owner.marks:
            owner.rewind()
        await owner.check(reference, runtime.info.step)
    for owner in owners:
        await owner.check(reference, runtime.info.step)
        owner.context.release()
