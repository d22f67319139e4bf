"""llama.cpp's programs are called as they want to be, and their failures are told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from loadtests.contest import Shape
from loadtests.llama_peer import LlamaContestant, LlamaCpp, LlamaFailed
from loadtests.server import ServerFailed
from tests.loadtests.fake_peers import DECODE_RATE, PREFILL_RATE, write_llama, write_script

DECODE = Shape(phase="decode", width=8, num_prompt=128, num_output=64)
PREFILL = Shape(phase="prefill", width=1, num_prompt=512, num_output=1)


@pytest.fixture
def llama(tmp_path: Path) -> LlamaCpp:
    return LlamaCpp(programs=write_llama(tmp_path / "programs"), threads=2)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "Model.Q4_1.gguf"
    path.write_bytes(b"weights ")
    return path


def test_each_phase_is_measured_by_its_own_benchmark(llama: LlamaCpp, model: Path) -> None:
    contestant = LlamaContestant(name="llama.cpp Q4_1", llama=llama, model=model)
    assert contestant.rate(DECODE) == 8 * DECODE_RATE
    assert contestant.rate(PREFILL) == PREFILL_RATE


def test_weights_are_requantised_once_and_kept(llama: LlamaCpp, model: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    path = llama.quantised(model, "Q8_0", kept)
    assert path.read_bytes() == b"weights Q8_0"
    path.write_bytes(b"kept")
    assert llama.quantised(model, "Q8_0", kept).read_bytes() == b"kept"
    assert [file.name for file in kept.iterdir()] == [path.name]


def test_other_weights_of_the_same_name_are_requantised_anew(llama: LlamaCpp, model: Path, tmp_path: Path) -> None:
    llama.quantised(model, "BF16", tmp_path / "kept")
    model.write_bytes(b"changed weights ")
    assert llama.quantised(model, "BF16", tmp_path / "kept").read_bytes() == b"changed weights BF16"


def test_a_file_of_the_wanted_format_is_taken_as_it_is(llama: LlamaCpp, model: Path, tmp_path: Path) -> None:
    assert llama.quantised(model, "Q4_1", tmp_path / "kept") == model
    assert not (tmp_path / "kept").exists()


def test_a_program_that_fails_is_told_with_its_last_words(llama: LlamaCpp, model: Path) -> None:
    write_script(llama.programs / "llama-bench", "sys.exit('illegal instruction')")
    with pytest.raises(LlamaFailed, match=r"exit code 1:\nillegal instruction"):
        llama.rate(model, PREFILL)


@pytest.mark.parametrize("output", ["", "{}", '{"avg_ts": 0}', '{"avg_ts": null}', '{"avg_ts": 1}\n{"avg_ts": 2}'])
def test_an_answer_without_one_rate_is_refused(llama: LlamaCpp, model: Path, output: str) -> None:
    write_script(llama.programs / "llama-bench", f"print({output!r})")
    with pytest.raises(LlamaFailed, match="llama-bench"):
        llama.rate(model, PREFILL)


def test_a_directory_without_the_programs_is_refused(tmp_path: Path) -> None:
    programs = write_llama(tmp_path / "programs")
    (programs / "llama-quantize").unlink()
    with pytest.raises(LlamaFailed, match="has no llama-quantize"):
        LlamaCpp(programs=programs, threads=2)


def test_a_server_has_room_for_all_streams_and_is_gone_afterwards(llama: LlamaCpp, model: Path, tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    with llama.server(model, width=4, context=256, log_path=log) as server:
        assert server.model == "served"
        arguments = json.loads(log.read_text(encoding="utf-8"))
        pid = server.pid
    assert arguments[arguments.index("--ctx-size") + 1] == "1024"
    assert arguments[arguments.index("--parallel") + 1] == "4"
    assert not Path(f"/proc/{pid}").exists()


def test_a_server_that_cannot_start_is_told_with_its_log(llama: LlamaCpp, model: Path, tmp_path: Path) -> None:
    write_script(llama.programs / "llama-server", "sys.exit('no such model')")
    with (
        pytest.raises(ServerFailed, match=r"llama-server ended with exit code 1\nno such model"),
        llama.server(model, width=1, context=64, log_path=tmp_path / "server.log"),
    ):
        pass
