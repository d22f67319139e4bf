"""OpenVINO GenAI is found, spoken to and stopped; what it stamps is a batch like ours."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from loadtests.openvino_child import generate
from loadtests.openvino_peer import OpenVinoFailed, find_python, install, running_peer
from tests.loadtests.fake_peers import write_openvino, write_script


def test_a_batch_is_stamped_by_the_peer(tmp_path: Path) -> None:
    python = write_openvino(tmp_path / "python")
    with running_peer(python, tmp_path / "model.gguf", 2, tmp_path / "log") as peer:
        assert peer.version == "fake"
        batch = peer.run([[1, 2, 3], [4, 5, 6]], 5)
        again = peer.run([[1]], 1)
    assert batch.num_prompt_tokens == 6
    assert batch.decode_tokens_per_s == pytest.approx(20.0)
    assert again.prefill_tokens_per_s == pytest.approx(10.0)


def test_too_few_tokens_are_refused(tmp_path: Path) -> None:
    python = write_openvino(tmp_path / "python")
    with (
        running_peer(python, tmp_path / "model.gguf", 2, tmp_path / "log") as peer,
        pytest.raises(OpenVinoFailed, match=r"asked for 5 tokens of 3 prompts, got \[4\]"),
    ):
        peer.run([[1], [2], [3]], 5)


def test_a_peer_that_breaks_off_is_told_with_its_log(tmp_path: Path) -> None:
    python = write_openvino(tmp_path / "python")
    with (
        running_peer(python, tmp_path / "model.gguf", 2, tmp_path / "log") as peer,
        pytest.raises(OpenVinoFailed, match="ended early:\nout of memory"),
    ):
        peer.run([[1], [2], [3], [4]], 5)


def test_a_peer_that_cannot_load_the_model_is_told(tmp_path: Path) -> None:
    python = write_script(tmp_path / "python", "sys.exit('unsupported file')")
    with (
        pytest.raises(OpenVinoFailed, match="ended early:\nunsupported file"),
        running_peer(python, tmp_path / "model.gguf", 2, tmp_path / "log"),
    ):
        pass


def test_an_environment_that_is_there_is_used(tmp_path: Path) -> None:
    (tmp_path / "openvino" / "bin").mkdir(parents=True)
    python = write_openvino(tmp_path / "openvino" / "bin" / "python")
    assert find_python(tmp_path) == python
    assert install(tmp_path) == python


class Pipeline:
    """Brings a token of every prompt with each step, two with the last."""

    def __init__(self, num_steps: int) -> None:
        self._left = num_steps
        self._handles: list[Handle] = []

    def add_request(self, index: int, prompt: object, config: object) -> Handle:
        assert index == len(self._handles)
        self._handles.append(Handle())
        return self._handles[-1]

    def has_non_finished_requests(self) -> bool:
        return self._left > 0

    def step(self) -> None:
        self._left -= 1
        for handle in self._handles:
            handle.ready += [[7]] if self._left else [[7], [8]]


class Handle:
    """Tokens that wait to be read."""

    def __init__(self) -> None:
        self.ready: list[list[int]] = []

    def can_read(self) -> bool:
        return bool(self.ready)

    def read(self) -> dict[int, Any]:
        return {0: SimpleNamespace(generated_ids=self.ready.pop(0))}


def test_the_child_stamps_tokens_as_steps_end() -> None:
    times = generate(Pipeline(3), ["a", "b"], None)
    assert [len(stamps) for stamps in times] == [4, 4]
    assert times[0] == times[1] == sorted(times[0])
    assert times[0][2] == times[0][3]
