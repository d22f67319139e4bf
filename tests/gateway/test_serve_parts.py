"""Parts of the supervisor: patience, the listening socket, signals, the banner."""

from __future__ import annotations

import ast
import io
import json
import logging
import os
import re
import shlex
import signal
import socket
from pathlib import Path

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from rich.console import Console

from engine.logs import set_up_logging
from gateway.banner import Banner
from gateway.children import describe_exit
from gateway.cli.exits import exit_code
from gateway.cli.reporter import ConsoleReporter, JsonReporter, LogReporter, reporter_for
from gateway.failures import AddressUnavailable, GaveUp
from gateway.listening import bind_socket, listen, url_of
from gateway.logs import configure_logging
from gateway.restarts import RestartPolicy, Restarts
from gateway.rundir import run_directory
from gateway.settings import Settings
from gateway.signals import SignalInbox
from gateway.stopping import ENGINE_GRACE_S, FLUSH_S, WORKER_GRACE_S
from tests.gateway.serving.harness import INFO


def test_whoever_waits_for_a_stop_waits_longer_than_its_steps_take() -> None:
    assert WORKER_GRACE_S > 2 * FLUSH_S  # streams end, then connections
    compose = (Path(__file__).parents[2] / "docker-compose.yml").read_text()
    found = re.search(r"stop_grace_period: (\d+)s", compose)
    assert found is not None
    assert int(found[1]) > Settings.model_fields["drain_s"].default + WORKER_GRACE_S + ENGINE_GRACE_S


def test_pauses_grow_until_patience_ends() -> None:
    restarts = Restarts(RestartPolicy(first_delay_s=1, max_delay_s=3, max_quick_deaths=5))
    assert [restarts.delay_s(0) for _ in range(5)] == [1, 2, 3, 3, None]


@given(st.lists(st.floats(min_value=60, max_value=1e6), max_size=30))
def test_a_process_that_lived_long_is_always_started_again(lives_s: list[float]) -> None:
    restarts = Restarts(RestartPolicy(stable_s=60))
    assert all(restarts.delay_s(lived_s) == 0.5 for lived_s in lives_s)


def test_a_taken_port_is_refused_with_advice() -> None:
    with bind_socket("127.0.0.1", 0) as first:
        listen(first)
        port = first.getsockname()[1]
        with pytest.raises(AddressUnavailable, match=f"port {port} of 127.0.0.1 is in use .* --port"):
            bind_socket("127.0.0.1", port)


def test_nobody_is_let_in_before_listen() -> None:
    with bind_socket("127.0.0.1", 0) as listener, socket.socket() as client:
        with pytest.raises(ConnectionRefusedError):
            client.connect(listener.getsockname())
        listen(listener)
    with bind_socket("127.0.0.1", 0) as listener, socket.socket() as client:
        listen(listener)
        client.connect(listener.getsockname())


@pytest.mark.parametrize("host", ["no.such.host.invalid", "192.0.2.1"])
def test_an_address_that_is_not_ours_is_refused(host: str) -> None:
    with pytest.raises(AddressUnavailable, match="no address of this machine"):
        bind_socket(host, 0)


def test_the_url_is_one_that_this_machine_can_use() -> None:
    with bind_socket("0.0.0.0", 0) as listener:
        assert url_of(listener) == f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_signals_are_counted_and_wake_the_waiter_and_earlier_handlers_return() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with SignalInbox() as inbox:
        os.kill(os.getpid(), signal.SIGTERM)
        inbox.wait(60)
        assert inbox.num_stops == 1
        inbox.wait(0)
        os.kill(os.getpid(), signal.SIGINT)
        inbox.wait(60)
        assert inbox.num_stops == 2
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize(
    ("code", "text"), [(3, "exit code 3"), (-15, "SIGTERM"), (-9, "SIGKILL; the system may be out of memory")]
)
def test_exit_codes_are_named(code: int, text: str) -> None:
    assert describe_exit(code) == text


def test_a_run_directory_is_private_short_and_gone_afterwards(tmp_path: Path) -> None:
    with run_directory(tmp_path) as first, run_directory(tmp_path) as second:
        assert first.is_dir()
        assert second.is_dir()
        assert first.stat().st_mode & 0o077 == 0
    assert list(tmp_path.iterdir()) == []
    with run_directory(tmp_path / ("long" * 30)) as path:
        assert len(str(path)) < 100


def banner(**changes: object) -> Banner:
    facts: dict[str, object] = {
        "version": "1.0",
        "url": "http://127.0.0.1:8000",
        "model": "it's/a model",
        "num_workers": 2,
        "needs_key": True,
        "has_tenants": False,
        "info": INFO,
        "took_s": 3.25,
    }
    return Banner(**{**facts, **changes})  # type: ignore[arg-type]  # the fields above


def test_the_banner_shows_where_what_and_how() -> None:
    text = banner().text()
    for part in (
        "http://127.0.0.1:8000/v1",
        "llama, 135 M parameters",
        "bfloat16 on cpu",
        "62 MiB",
        "2 gateway workers",
    ):
        assert part in text


def test_the_banner_says_what_computes_a_step() -> None:
    native = structs.replace(INFO, step="native avx512bf16", dtype="int8", attention_backend="native")
    assert "bfloat16 on cpu, torch step (attention cpu)" in banner().text()
    assert "int8 on cpu, native step (avx512bf16)" in banner(info=native).text()


def test_the_pasted_lines_are_valid_whatever_the_model_is_called() -> None:
    words = shlex.split(banner().curl())
    assert words[0] == "curl"
    assert '"model": "it\'s/a model"' in words[-1]
    ast.parse(banner().python())
    ast.parse(banner(needs_key=False).python())


def test_the_banner_names_no_key_but_where_to_put_it() -> None:
    assert "$WYE_KEY" in banner().curl()
    assert 'os.environ["WYE_KEY"]' in banner().python()
    assert "WYE_KEY" not in banner(needs_key=False).text()


@pytest.mark.parametrize(
    ("settings", "access"),
    [
        (Settings(), "no API key required"),
        (Settings(api_keys=("key",)), "API key required: one of WYE_API_KEYS or --api-key"),
        (Settings(admin_key="k" * 16), "API key required; wye tenants create and wye keys create make one"),
    ],
)
def test_the_banner_says_who_has_access(settings: Settings, access: str, capsys: pytest.CaptureFixture[str]) -> None:
    reporter = ConsoleReporter(settings.model_copy(update={"model_names": ("m",)}))
    reporter.ready("http://127.0.0.1:8000", INFO, 1.0)
    assert f"  Access   {access}\n" in capsys.readouterr().out


def test_the_banner_tells_an_administrator_how_to_make_a_key() -> None:
    shown = banner(has_tenants=True, url="http://127.0.0.1:9000").text()
    made = shown.index("export WYE_KEY=$(wye keys create $(wye tenants create my-tenant))")
    assert shown.index("WYE_URL=http://127.0.0.1:9000") < made < shown.index("curl ")
    assert "wye keys create" not in banner().text()


def test_the_banner_is_in_colours_of_the_terminal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.StringIO()
    console = Console(file=written, force_terminal=True, color_system="truecolor", highlight=False, width=40)
    monkeypatch.setattr("gateway.cli.reporter.output", lambda: console)
    ConsoleReporter(Settings(model_names=("m",))).ready("http://127.0.0.1:8000", INFO, 1.0)
    styles = set(re.findall(r"\x1b\[([0-9;]*)m", written.getvalue()))
    # Nothing, bold green and dim: no white, no black, no background.
    assert styles == {"0", "1;32", "2"}
    assert banner(needs_key=False, model="m").curl() in written.getvalue()


def test_a_warning_stands_in_the_messages_of_either_form_of_log(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    ConsoleReporter(Settings()).warn("WYE_X [is] no setting")
    assert capsys.readouterr().err == "warning: WYE_X [is] no setting\n"
    with caplog.at_level("WARNING", "gateway.serve"):
        LogReporter(Settings()).warn("WYE_X is no setting")
    assert [(one.levelname, one.message) for one in caplog.records] == [("WARNING", "WYE_X is no setting")]


@pytest.mark.usefixtures("root_logging_as_it_was")
def test_all_processes_write_the_same_lines(capsys: pytest.CaptureFixture[str]) -> None:
    written = []
    for set_up in (
        lambda: reporter_for(Settings()),
        lambda: configure_logging(Settings()),
        lambda: set_up_logging("INFO", as_json=False),
    ):
        set_up()
        logging.getLogger("gateway.serve").warning("a [line]")
        written.append(re.sub(r"\d", "0", capsys.readouterr().err))
    assert set(written) == {"0000-00-00 00:00:00,000 WARNING gateway.serve: a [line]\n"}


@pytest.mark.usefixtures("root_logging_as_it_was")
def test_a_server_that_cannot_go_on_says_so_in_the_form_of_its_log(capsys: pytest.CaptureFixture[str]) -> None:
    reporter = reporter_for(Settings(log_format="json"))
    assert isinstance(reporter, JsonReporter)
    reporter.stage("starting")
    with pytest.raises(typer.Exit) as ended, reporter:
        raise GaveUp("the engine process keeps dying")
    assert ended.value.exit_code == exit_code(GaveUp(""))
    told = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(one["level"], one["message"]) for one in told] == [
        ("info", "starting"),
        ("error", "the engine process keeps dying"),
    ]
