"""What of the operator's tools cannot work here, said before the first call."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from extensions.tools.egress import EgressPolicy
from extensions.tools.urls import placeholders
from gateway.tools.entries import Entry
from gateway.tools.reach import look_up, reach_warnings

INSIDE = EgressPolicy.read([], ["10.0.0.0/8"])


def http(name: str, url: str) -> dict[str, Any]:
    places = placeholders(url)
    parameters = {"type": "object", "properties": {one: {"type": "string"} for one in places}, "required": places}
    return {"name": name, "kind": "http", "parameters": parameters, "http": {"url": url}}


def warnings(*descriptions: dict[str, Any], egress: EgressPolicy = INSIDE) -> list[str]:
    return reach_warnings([Entry.from_wire(one, environ={}) for one in descriptions], egress, named)


def named(host: str) -> Sequence[str]:
    known = {"public.example": ["1.1.1.1"], "inside.example": ["10.1.1.1"], "both.example": ["1.1.1.1", "192.168.1.1"]}
    if host in known:
        return known[host]
    if host[0].isdigit():
        return look_up(host)
    raise OSError(-2, "Name or service not known")


def test_nothing_is_said_of_what_can_be_reached(tmp_path: Path) -> None:
    command = tmp_path / "files-server"
    command.write_text("#!/bin/sh\n")
    command.chmod(0o755)
    script = {"name": "s", "kind": "script", "script": {"source": "async def main(request, lm):\n    return 1\n"}}
    assert not warnings(
        http("a", "https://public.example/x"),
        http("b", "http://inside.example:8080/{city}?day={day}"),
        http("c", "http://127.0.0.1:1/"),
        script,
        {"label": "d", "command": [str(command)]},
        {"label": "e", "command": ["files-server"], "env": {"PATH": str(tmp_path)}},
        {"label": "f", "url": "https://public.example/mcp"},
    )


@pytest.mark.parametrize(
    ("description", "said"),
    [
        (http("a", "http://192.168.1.1/{x}"), "a: 192.168.1.1 is no public address and not in a network of WYE_TOOL_"),
        (http("a", "https://both.example/"), "a: both.example is at 192.168.1.1, which is no public address and not"),
        (http("a", "http://public.example/"), "a: public.example is at the public address 1.1.1.1: use https://"),
        (http("a", "https://gone.example/"), "a: gone.example cannot be found: Name or service not known"),
        (http("a", "http://169.254.169.254/"), "a: 169.254.169.254 is no public address"),
        ({"label": "a", "url": "https://192.168.1.1/mcp"}, "a: 192.168.1.1 is no public address and not"),
        ({"label": "a", "command": ["no-such-command", "--x"]}, "a: the command 'no-such-command' is not found on the"),
        ({"label": "a", "command": ["/no/such/command"]}, "a: the command '/no/such/command' is not found"),
        (
            {
                "name": "a",
                "kind": "mcp",
                "mcp": {"tool": "t", "server": {"label": "s", "url": "https://192.168.1.1/mcp"}},
            },
            "a: 192.168.1.1 is no public address and not",
        ),
    ],
)
def test_what_cannot_work_is_named(description: dict[str, Any], said: str) -> None:
    (line,) = warnings(description)
    assert line.startswith(said)


def test_nothing_allows_where_clouds_keep_credentials_and_no_setting_is_proposed() -> None:
    everywhere = EgressPolicy.read([], ["0.0.0.0/0"])
    (line,) = warnings(http("a", "http://169.254.169.254/"), egress=everywhere)
    assert line == "a: 169.254.169.254 is no public address"


def test_names_that_take_long_hold_nothing_up() -> None:
    until = threading.Event()

    def slow(host: str) -> Sequence[str]:
        until.wait(60)
        return ["192.168.1.1"]

    entry = Entry.from_wire(http("a", "https://slow.example/"), environ={})
    try:
        assert reach_warnings([entry], INSIDE, slow, wait_s=0.01) == []
    finally:
        until.set()
