"""The operator's file of tools: what may stand in it, and how it is told what is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from extensions.tools.servers import McpServer
from extensions.tools.spec import ToolSpec
from gateway.app import create_app
from gateway.tools.file import ToolsFileError, load_tools
from tests.fakes import ScriptedEngine, make_settings, says, text_model

TOML = """
[[tools]]
name = "weather"
kind = "http"
effect = "pure"
require_approval = "never"
[tools.http]
url = "http://10.0.0.7/weather"
headers = { Authorization = "env:WEATHER_TOKEN" }

[[servers]]
label = "files"
command = ["files-server", "--read-only"]
env = { TOKEN = "env:FILES_TOKEN" }
require_approval = { always = ["remove"] }
"""

TOOL: dict[str, Any] = {"name": "weather", "kind": "http", "http": {"url": "https://a.example/"}}


def write(path: Path, content: object) -> Path:
    path.write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")
    return path


def test_a_toml_file_has_tools_and_servers_with_secrets_of_the_environment(tmp_path: Path) -> None:
    path = write(tmp_path / "tools.toml", TOML)
    found = load_tools(path, {"WEATHER_TOKEN": "one", "FILES_TOKEN": "two"})
    weather, files = found["weather"].target, found["files"].target
    assert isinstance(weather, ToolSpec)
    assert weather.http is not None
    assert weather.http.headers == {"Authorization": "one"}
    assert weather.is_trusted
    assert isinstance(files, McpServer)
    assert files.env == {"TOKEN": "two"}
    assert found["files"].approval.of("remove", "pure") == "always"
    assert found["files"].approval.of("add", "pure") is None
    assert {entry.owner for entry in found.values()} == {"operator"}


def test_a_json_file_means_the_same(tmp_path: Path) -> None:
    assert load_tools(write(tmp_path / "tools.json", {"tools": [TOOL]}), {})["weather"].name == "weather"
    assert load_tools(write(tmp_path / "none.json", {}), {}) == {}


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("{", "it is no JSON"),
        ([], "it must be an object"),
        ({"tool": []}, "'tool' is not known"),
        ({"tools": {}}, "'tools' must be a list"),
        ({"servers": [3]}, "'servers' must be a list"),
        ({"tools": [TOOL, {**TOOL, "name": "no name"}]}, "tools[1].name"),
        ({"tools": [TOOL, TOOL]}, "tools[1]: there are two of the name 'weather'"),
        ({"tools": [TOOL], "servers": [{"label": "weather", "url": "https://a.example/"}]}, "two of the name"),
        ({"tools": [{**TOOL, "http": {"url": "https://a.example/", "headers": {"A": "env:GONE"}}}]}, "no GONE"),
        (
            {"tools": [{**TOOL, "http": {"url": "https://a.example/", "headers": {"authorization": "Bearer x"}}}]},
            "tools[0].http.headers.authorization",
        ),
        ({"servers": [{"label": "x", "command": ["x"], "env": {"API_KEY": "x"}}]}, "servers[0].env.API_KEY"),
        ({"servers": [{"label": "x"}]}, "servers[0].url"),
        ({"servers": [{"label": "x", "url": "https://a.example/", "require_approval": 3}]}, "require_approval"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(tmp_path: Path, content: object, told: str) -> None:
    path = write(tmp_path / "tools.json", content)
    with pytest.raises(ToolsFileError) as error:
        load_tools(path, {})
    assert str(error.value).startswith(f"{path}: ")
    assert told in str(error.value)


def test_a_file_that_cannot_be_read_stops_the_start(tmp_path: Path) -> None:
    model = text_model()
    engine = ScriptedEngine(model, says(model, "hi"))
    with pytest.raises(ToolsFileError, match="No such file"):
        create_app(make_settings(tools_file=str(tmp_path / "gone.json")), engine=engine, text=model)
    with pytest.raises(ToolsFileError, match="no TOML"):
        create_app(make_settings(tools_file=str(write(tmp_path / "a.toml", "{"))), engine=engine, text=model)


@pytest.mark.parametrize(
    ("name", "value", "is_right"),
    [
        ("tool_hosts", "api.example.com,*.example.org", True),
        ("tool_hosts", "https://api.example.com", False),
        ("tool_networks", "10.0.0.0/8,fd00::/8", True),
        ("tool_networks", "10.0.0.1/8", False),
        ("tool_networks", "localhost", False),
    ],
)
def test_places_that_tools_may_reach_are_checked_at_the_start(name: str, value: str, is_right: bool) -> None:
    if is_right:
        assert getattr(make_settings(**{name: value}), name) == tuple(value.split(","))
    else:
        with pytest.raises(ValueError, match=name):
            make_settings(**{name: value})
