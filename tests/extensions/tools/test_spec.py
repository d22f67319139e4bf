"""Descriptions of tools and servers."""

from __future__ import annotations

from typing import Any

import pytest

from extensions.tools.errors import ToolInvalid
from extensions.tools.servers import McpServer
from extensions.tools.spec import ToolSpec

HTTP: dict[str, Any] = {
    "name": "weather",
    "kind": "http",
    "effect": "pure",
    "http": {"url": "https://api.example.com/{city}", "headers": {"X-Key": "hunter2hunter2"}},
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
SERVER: dict[str, Any] = {"label": "files", "url": "https://mcp.example.com/mcp", "headers": {"A": "hunter2hunter2"}}


def test_a_description_comes_back_as_it_was_with_its_secrets() -> None:
    spec = ToolSpec.from_wire(HTTP)
    assert ToolSpec.from_wire(spec.to_wire(secrets=True)) == spec
    assert not spec.is_trusted
    server = McpServer.from_wire(SERVER)
    assert McpServer.from_wire(server.to_wire(secrets=True)) == server


def test_nobody_sees_a_secret_who_does_not_ask_for_it() -> None:
    spec = ToolSpec.from_wire({"name": "m", "kind": "mcp", "mcp": {"server": SERVER, "tool": "read"}})
    for shown in (repr(spec), str(spec.to_wire()), repr(ToolSpec.from_wire(HTTP)), repr(McpServer.from_wire(SERVER))):
        assert "hunter2" not in shown
    assert spec.to_wire()["mcp"]["server"]["headers"] == {"A": "***"}


def test_only_an_operator_refers_to_the_environment() -> None:
    described = {**HTTP, "http": {**HTTP["http"], "headers": {"X-Key": "env:KEY"}}}
    spec = ToolSpec.from_wire(described, environ={"KEY": "value"})
    assert spec.http is not None
    assert spec.http.headers == {"X-Key": "value"}
    assert spec.is_trusted
    for environ in (None, {}, {"KEY": ""}):
        with pytest.raises(ToolInvalid) as caught:
            ToolSpec.from_wire(described, environ=environ)
        assert caught.value.param == "http.headers.X-Key"


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"name": "a b"}, "name"),
        ({"name": 7}, "name"),
        ({"kind": "shell"}, "kind"),
        ({"kind": "script"}, "http"),
        ({"effect": "none"}, "effect"),
        ({"timeout_s": 0}, "timeout_s"),
        ({"timeout_s": 1e9}, "timeout_s"),
        ({"timeout_s": "3"}, "timeout_s"),
        ({"max_output_bytes": 0}, "max_output_bytes"),
        ({"max_parallel": 0}, "max_parallel"),
        ({"parameters": {"type": "array"}}, "parameters"),
        ({"parameters": {"type": "object", "properties": 3}}, "parameters"),
        ({"parameters": {"$ref": "https://example.com/x"}}, "parameters"),
        ({"description": "x" * 5000}, "description"),
        ({"http": {"url": "http://api.example.com/"}}, "http.url"),
        ({"http": {"url": "https://user:pass@api.example.com/"}}, "http.url"),
        ({"http": {"url": "https://{city}.example.com/"}}, "http.url"),
        ({"http": {"url": "https://api.example.com/{country}"}}, "http.url"),
        ({"http": {"url": "https://api.example.com/#x"}}, "http.url"),
        ({"http": {"url": "file:///etc/passwd"}}, "http.url"),
        ({"http": {"url": "https://0177.0.0.1/"}}, "http.url"),
        ({"http": {"url": "https://api.example.com/\x7f"}}, "http.url"),
        ({"http": {"url": "https://api.example.com/", "method": "TRACE"}}, "http.method"),
        ({"http": {"url": "https://api.example.com/", "headers": {"Host": "x"}}}, "http.headers.Host"),
        ({"http": {"url": "https://api.example.com/", "headers": {"X": "a\nb"}}}, "http.headers.X"),
        ({"http": {"url": "https://api.example.com/", "headers": {"X": 3}}}, "http.headers[...]"),
        ({"is_trusted": True}, "is_trusted"),
        ({"colour": "red"}, "colour"),
        ({"http": {"url": "https://api.example.com/", "verb": "GET"}}, "http.verb"),
        ({"http": {"method": "GET"}}, "http.url"),
    ],
)
def test_what_is_wrong_with_a_description_is_said_with_its_field(change: dict[str, Any], param: str) -> None:
    with pytest.raises(ToolInvalid) as caught:
        ToolSpec.from_wire({**HTTP, **change})
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("server", "param"),
    [
        ({"label": "x"}, "url"),
        ({"label": "x", "url": "https://a.example/", "command": ["sh"]}, "url"),
        ({"label": "x", "command": ["sh", "-c", "id"]}, "command"),
        ({"label": "x", "url": "http://a.example/"}, "url"),
        ({"label": "x", "url": "https://a.example/", "env": {"A": "b"}}, "env"),
        ({"label": "x y", "url": "https://a.example/"}, "label"),
        ({"label": "x", "url": "https://a.example/{y}"}, "url"),
        ({"label": "x", "url": "https://a.example/", "is_trusted": True}, "is_trusted"),
        ({"label": "x", "url": "https://a.example/", "list_ttl_s": -1}, "list_ttl_s"),
    ],
)
def test_a_tenants_server_is_a_public_address_and_no_program(server: dict[str, Any], param: str) -> None:
    with pytest.raises(ToolInvalid) as caught:
        McpServer.from_wire(server)
    assert caught.value.param == param
    with pytest.raises(ToolInvalid) as caught:
        ToolSpec.from_wire({"name": "m", "kind": "mcp", "mcp": {"server": server, "tool": "t"}})
    assert caught.value.param == f"mcp.server.{param}"


@pytest.mark.parametrize("data", [None, [], "weather", 3])
def test_a_description_is_an_object(data: object) -> None:
    with pytest.raises(ToolInvalid):
        ToolSpec.from_wire(data)
    with pytest.raises(ToolInvalid):
        McpServer.from_wire(data)


def test_an_operators_server_may_be_a_program() -> None:
    server = McpServer.from_wire({"label": "x", "command": ["run", "it"], "env": {"T": "env:T"}}, environ={"T": "v"})
    assert (server.command, server.env, server.is_trusted) == (("run", "it"), {"T": "v"}, True)
