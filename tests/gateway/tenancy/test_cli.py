"""`wye tenants`, `keys`, `quotas`, `usage`, `audit` against a running server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner, Result

from engine.text.model import TextModel
from gateway.cli import app
from gateway.cli.exits import Exit
from tests.fakes import RunningServer, ScriptedEngine, running_server
from tests.gateway.tenancy.conftest import ADMIN_KEY, CHAT, bearer


@pytest.fixture
def server(engine: ScriptedEngine, model: TextModel, redis_url: str) -> Iterator[RunningServer]:
    """A gateway with tenants."""
    with running_server(engine, model, redis_url=redis_url, admin_key=ADMIN_KEY) as server:
        yield server


class Shell:
    """Runs commands against a server."""

    def __init__(self, url: str) -> None:
        self._environment = {"WYE_URL": url, "WYE_ADMIN_KEY": ADMIN_KEY}

    def run(self, *args: str, text: str = "") -> Result:
        """One command."""
        return CliRunner().invoke(app, args, env=self._environment, input=text)

    def out(self, *args: str) -> str:
        """What a command that succeeds prints."""
        result = self.run(*args)
        assert result.exit_code == Exit.OK, result.output
        return result.stdout.strip()


@pytest.fixture
def shell(server: RunningServer) -> Shell:
    """With an administrator's key."""
    return Shell(server.url)


def chat(server: RunningServer, key: str) -> httpx.Response:
    """Asks the model something."""
    return httpx.post(f"{server.url}/v1/chat/completions", json=CHAT, headers=bearer(key), timeout=60)


def test_a_tenant_gets_a_key_and_limits_and_is_served(server: RunningServer, shell: Shell) -> None:
    tenant = shell.out("tenants", "create", "acme")
    key = shell.out("keys", "create", "acme", "--scope", "inference", "--expires", "90d")
    assert key not in shell.out("keys", "list", tenant)
    assert "requests_per_minute  2" in shell.out("quotas", "set", "acme", "--requests", "2", "--kv", "5000").replace(
        "requests_per_minute        ", "requests_per_minute  "
    )
    assert chat(server, key).headers["x-ratelimit-limit-requests"] == "2"
    assert tenant in shell.out("quotas", "list")
    shown = json.loads(shell.out("quotas", "show", "acme", "--json"))
    assert shown["limits"]["kv_kib_seconds"] == 5000
    shell.out("quotas", "set", "acme", "--requests", "none")
    assert "x-ratelimit-limit-requests" not in chat(server, key).headers


def test_keys_are_rotated_disabled_enabled_and_deleted(server: RunningServer, shell: Shell) -> None:
    shell.out("tenants", "create", "acme")
    made = json.loads(shell.out("keys", "create", "acme", "--json"))
    new = shell.out("keys", "rotate", "acme", made["id"], "--overlap", "1h")
    assert [chat(server, one).status_code for one in (made["value"], new)] == [200, 200]
    shell.out("keys", "disable", "acme", made["id"])
    assert chat(server, new).status_code == 401
    shell.out("keys", "enable", "acme", made["id"])
    assert chat(server, new).status_code == 200
    shell.out("keys", "delete", "acme", made["id"])
    assert chat(server, new).status_code == 401


def test_tenants_are_suspended_tried_out_and_archived(server: RunningServer, shell: Shell) -> None:
    shell.out("tenants", "create", "acme")
    key = shell.out("keys", "create", "acme")
    shell.out("tenants", "state", "acme", "suspended")
    assert chat(server, key).status_code == 403
    shell.out("tenants", "state", "acme", "shadow")
    assert chat(server, key).status_code == 200
    shell.out("tenants", "archive", "acme")
    assert shell.out("tenants", "list").count("acme") == 0
    assert shell.out("tenants", "list", "--archived").count("acme") == 1


def test_the_whole_goes_to_a_file_and_back(shell: Shell, tmp_path: Path) -> None:
    tenant = shell.out("tenants", "create", "acme")
    shell.out("keys", "create", "acme")
    file = tmp_path / "tenants.json"
    shell.out("tenants", "export", str(file))
    assert file.stat().st_mode & 0o077 == 0
    shell.out("quotas", "set", "acme", "--requests", "9")
    assert shell.out("tenants", "import", str(file), "--check") == f"would be updated: {tenant}"
    assert shell.out("tenants", "import", str(file)) == f"updated: {tenant}"
    assert json.loads(shell.out("quotas", "show", tenant, "--json"))["limits"]["requests_per_minute"] is None
    file.write_text("{")
    assert shell.run("tenants", "import", str(file)).exit_code == Exit.USAGE


def test_usage_and_audit_are_shown(server: RunningServer, shell: Shell) -> None:
    tenant = shell.out("tenants", "create", "acme")
    key = shell.out("keys", "create", "acme")
    chat(server, key)
    tokens = None
    while tokens is None:
        found = json.loads(shell.out("usage", "--tenant", "acme", "--by", "tenant", "--by", "key", "--json"))
        tokens = found[0]["input_tokens"] if found else None
    assert tokens > 0
    assert tenant in shell.out("usage", "--days", "2", "--hours")
    kinds = [line["type"] for line in json.loads(shell.out("audit", "--json"))]
    assert kinds == ["api_key.created", "project.created"]
    assert "project.created" in shell.out("audit", "--tenant", tenant, "--limit", "5")


def test_corrections_need_a_reason(shell: Shell) -> None:
    shell.out("tenants", "create", "acme")
    assert shell.run("quotas", "adjust", "acme", "--add", "5").exit_code == Exit.USAGE
    assert shell.run("quotas", "adjust", "acme", "--reason", "a test").exit_code == Exit.USAGE
    for option, number, used in (("--add", "5", 5), ("--take-off", "3", 2)):
        shown = json.loads(shell.out("quotas", "adjust", "acme", option, number, "--reason", "a test", "--json"))
        assert shown["usage"]["used_kib_seconds"] == used


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (("quotas", "show", "nobody"), Exit.NOT_FOUND),
        (("quotas", "show", "proj_nobody"), Exit.NOT_FOUND),
        (("quotas", "set", "acme"), Exit.USAGE),
        (("quotas", "set", "acme", "--requests", "many"), Exit.USAGE),
        (("quotas", "set", "acme", "--window", "fortnight"), Exit.USAGE),
        (("quotas", "set", "acme", "--kv", "-5"), Exit.USAGE),
        (("keys", "create", "acme", "--expires", "soon"), Exit.USAGE),
        (("keys", "delete", "acme", "key_none"), Exit.NOT_FOUND),
        (("usage", "--by", "colour"), Exit.USAGE),
        (("tenants", "list", "--admin-key", "a-wrong-key-of-nobody"), Exit.ACCESS_DENIED),
        (("tenants", "list", "--url", "http://127.0.0.1:1"), Exit.UNAVAILABLE),
    ],
)
def test_what_is_wrong_is_told_and_has_an_exit_code(shell: Shell, args: tuple[str, ...], code: Exit) -> None:
    shell.out("tenants", "create", "acme")
    result = shell.run(*args)
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output


def test_two_tenants_of_one_name_must_be_told_apart(shell: Shell) -> None:
    shell.out("tenants", "create", "acme")
    shell.out("tenants", "create", "acme")
    result = shell.run("quotas", "show", "acme")
    assert result.exit_code == Exit.USAGE
    assert "several" in result.stderr


def test_without_a_key_nothing_is_asked(server: RunningServer) -> None:
    result = CliRunner().invoke(app, ["tenants", "list", "--url", server.url], env={"WYE_ADMIN_KEY": ""})
    assert result.exit_code == Exit.USAGE
