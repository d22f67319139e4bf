"""The `wye` command as a program: start-up, versions, serve's checks before anything slow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gateway.cli import app
from gateway.cli.console import format_bytes, parse_bytes
from gateway.cli.exits import MEANINGS, Exit, exit_code
from gateway.listening import bind_socket, listen


def run(*args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gateway.cli", *args],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        timeout=60,
        check=False,
    )


def test_version_prints_the_installed_version() -> None:
    result = run("version")
    assert (result.returncode, result.stdout) == (0, f"wye {version('wye')}\n")
    assert json.loads(run("version", "--json").stdout)["wye"] == version("wye")


@pytest.mark.parametrize("args", [["version"], ["--help"], ["models", "list"]])
def test_light_commands_import_nothing_heavy(args: list[str], tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "from gateway.cli import main\n"
        f"sys.argv[1:] = {args!r}\n"
        "try:\n    main()\n"
        "finally:\n"
        "    heavy = {'torch', 'fastapi', 'huggingface_hub', 'numpy', 'transformers', 'zmq'}\n"
        "    assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        env={**os.environ, "WYE_HOME": str(tmp_path)},
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stderr


def test_help_names_every_exit_code() -> None:
    text = " ".join(CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"}).stdout.split())
    for code, meaning in MEANINGS.items():
        assert f"{int(code)} {meaning}" in text
    assert set(MEANINGS) == set(Exit)


def test_a_taken_port_is_told_before_anything_is_loaded(tmp_path: Path) -> None:
    with bind_socket("127.0.0.1", 0) as taken:
        listen(taken)
        port = str(taken.getsockname()[1])
        result = run("serve", "smollm2-135m", "--offline", "--port", port, WYE_HOME=str(tmp_path))
    assert result.returncode == 7
    assert result.stderr.startswith(f"error: port {port} of 127.0.0.1 is in use")
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("args", "environment", "code", "message"),
    [
        (["absent"], {}, 3, "no model 'absent' is stored here"),
        (["smollm2-135m", "--offline"], {}, 5, "offline mode forbids"),
        (["./nowhere"], {}, 3, "no file and no directory"),
        (["s3:x"], {}, 2, "no known kind of source"),
        (["x", "--device", "tpu"], {}, 2, "no device"),
        (["x", "--kv-bytes", "many"], {}, 2, "no size"),
        (["x", "--kv-bytes", "1GiB", "--kv-pages", "8"], {}, 2, "exclude each other"),
        (["x", "--weights", "int3"], {}, 2, "weights"),
        (["x", "--step", "gpu"], {}, 2, "step"),
        (["x"], {"WYE_STEP": "gpu"}, 2, "step"),
        (["x"], {"WYE_WEIGHTS": "int3"}, 2, "weights"),
        (["x", "--workers", "0"], {}, 2, "workers"),
        (["x"], {"WYE_MAX_BODY_BYTES": "few"}, 2, "WYE_MAX_BODY_BYTES"),
        (["x", "--adapter", "poet"], {}, 2, "--adapter: 'poet' is no adapter"),
        (["x", "--reranker", "foo"], {}, 2, "--reranker: it must be auto, none, or the words for no and yes as no,yes"),
        (["x"], {"WYE_RERANKER": "no, yes"}, 2, "reranker: it must be auto, none, or the words for no and yes"),
        (["x"], {"WYE_ADMIN_KEY": "short"}, 2, "WYE_ADMIN_KEY: it must have at least 16"),
        (["x", "--host", "no.such.host.invalid"], {}, 7, "no address of this machine"),
    ],
)
def test_serve_refuses_bad_input_before_it_starts_anything(
    args: list[str], environment: dict[str, str], code: int, message: str, tmp_path: Path
) -> None:
    variables = {"WYE_HOME": str(tmp_path), "WYE_PORT": "0", "COLUMNS": "200", **environment}
    result = CliRunner().invoke(app, ["serve", *args], env=variables)
    assert result.exit_code == code, result.stderr
    assert message in " ".join(result.stderr.split())
    assert not list(tmp_path.glob("models/*"))


def test_a_model_that_cannot_be_loaded_ends_with_its_code_and_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "bad.gguf").write_bytes(b"GGUF\x03\x00\x00\x00" + bytes(100))
    result = run("serve", str(tmp_path / "bad.gguf"), "--port", "0")
    assert result.returncode == 6, result.stderr
    assert "bad.gguf" in result.stderr
    assert "error:" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("text", "size"),
    [("1024", 1024), ("2GiB", 2 << 30), ("2g", 2 << 30), ("1.5 MB", 1_500_000), ("3 KiB", 3072), ("7B", 7)],
)
def test_sizes_are_understood(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1", "0", "1e999", "nan", "2 QB", "1.2.3"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="size"):
        parse_bytes(text)


def test_sizes_are_shown_in_binary_units() -> None:
    assert [format_bytes(size) for size in (7, 2048, 98_362_432, 5 << 40)] == ["7 B", "2.0 KiB", "93.8 MiB", "5.0 TiB"]


def test_unknown_errors_have_no_code_of_their_own() -> None:
    assert exit_code(ZeroDivisionError()) is None
