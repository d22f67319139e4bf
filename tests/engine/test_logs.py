"""Log lines of an engine's process: for people, or for programs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from engine.config import EngineConfig, KVConfig, ParallelConfig, SchedulingConfig
from engine.process import EngineProcess
from tests.tiny_models import write_tiny_model


@pytest.mark.parametrize("logs_json", [True, False])
def test_the_engine_logs_as_it_is_told(tmp_path: Path, capfd: pytest.CaptureFixture[str], logs_json: bool) -> None:
    model = write_tiny_model(tmp_path / "model")
    (model / "tokenizer.json").write_text("{}")  # the log tells what that means for constraints
    config = EngineConfig(
        model=str(model),
        device="cpu",
        weights="float32",
        kv=KVConfig(num_pages=8),
        scheduling=SchedulingConfig(max_num_seqs=2, max_batch_tokens=64),
        parallel=ParallelConfig(num_threads=1),
    )
    with EngineProcess(config, f"ipc://{tmp_path}/engine.sock", logs_json=logs_json) as engine:
        engine.wait_ready(60)
        assert engine.stop(60) == 0
    lines = [line for line in capfd.readouterr().err.splitlines() if "constrained" in line]
    assert lines
    for line in lines:
        if logs_json:
            fields = json.loads(line)
            assert (fields["level"], fields["logger"]) == ("info", "engine.build")
            assert fields["message"].startswith("output cannot be constrained")
        else:
            assert re.match(r"\d{4}-\S+ \S+ INFO engine\.build: output cannot be constrained", line)
