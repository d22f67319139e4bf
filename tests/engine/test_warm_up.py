"""Requests that ready a device are such as any engine takes, and what they leave behind is nobody's."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.errors import ModelLoadError
from engine.loop import EngineLoop
from engine.request import ErrorReport, FinishReason, TokenEvent
from engine.warm_up import warm_up, warm_up_requests
from tests.equivalence.harness import open_loop
from tests.tiny_models import write_tiny_model


@pytest.mark.parametrize(("num_pages", "max_num_seqs"), [(256, 16), (3, 1), (20, 4)])
def test_an_engine_of_any_size_runs_them(tmp_path: Path, num_pages: int, max_num_seqs: int) -> None:
    model = write_tiny_model(tmp_path, num_hidden_layers=1)
    with open_loop(model, num_pages=num_pages, max_num_seqs=max_num_seqs) as loop:
        waves = list(warm_up_requests(loop.info, max_num_seqs))
        warm_up(loop, max_num_seqs)
        assert loop.stats.num_finished == {"length": sum(map(len, waves))}
        assert max(map(len, waves)) <= max_num_seqs
        assert len({request.request_id for wave in waves for request in wave}) == sum(map(len, waves))


def test_a_device_that_fails_them_ends_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = write_tiny_model(tmp_path, num_hidden_layers=1)
    failed = TokenEvent(
        request_id="warm-up-0",
        index=0,
        token_ids=[],
        finish_reason=FinishReason.ERROR,
        error=ErrorReport("EngineError", "no kernel image is available"),
    )
    with open_loop(model) as loop:
        monkeypatch.setattr(EngineLoop, "step", lambda self: [failed])
        with pytest.raises(ModelLoadError, match="a first step on cpu failed: no kernel image is available"):
            warm_up(loop, 4)
        monkeypatch.undo()
        loop.abort("warm-up-0")
