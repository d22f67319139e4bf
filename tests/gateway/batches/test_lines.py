"""The input of a batch: what is a request, what is wrong with all else, and how little of a file is held at once."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.batches.lines import MAX_FAULTS, BadLine, InputCheck, InputError, Line, read_lines, read_request
from gateway.errors import ModelNotFound
from tests.fakes import MODEL
from tests.gateway.batches.wire import jsonl, line
from tests.gateway.wire import CHAT, Body, chat


async def lines_of(path: Path, data: bytes, limit_bytes: int = 1000) -> list[Line]:
    await asyncio.to_thread(path.write_bytes, data)
    return [found async for chunk in read_lines(path, limit_bytes) for found in chunk]


async def test_blank_lines_count_but_are_no_requests(tmp_path: Path) -> None:
    found = await lines_of(tmp_path / "in", b"\xef\xbb\xbfone\n\n  \r\ntwo \r\nthree")
    assert found == [Line(1, b"one"), Line(4, b"two"), Line(5, b"three")]


async def test_a_line_that_is_too_long_is_passed_over(tmp_path: Path) -> None:
    data = b"a" * 10 + b"\n" + b"b" * 3_000_000 + b"\n" + b"c" * 9 + b"\n" + b"d" * 11
    found = await lines_of(tmp_path / "in", data, 10)
    assert found == [Line(1, b"a" * 10), Line(2, None), Line(3, b"c" * 9), Line(4, None)]
    with pytest.raises(BadLine, match="longer than a request"):
        read_request(found[1], CHAT)


async def test_little_more_than_the_longest_line_is_read_at_once(tmp_path: Path) -> None:
    path = tmp_path / "in"
    path.write_bytes((b"x" * 900 + b"\n") * 1000)
    sizes = [sum(len(found.text or b"") for found in chunk) async for chunk in read_lines(path, 1000)]
    assert sum(sizes) == 900_000
    assert max(sizes) <= 2000


async def test_an_empty_file_has_no_lines(tmp_path: Path) -> None:
    assert await lines_of(tmp_path / "in", b"") == []


BAD: list[tuple[Body | str | bytes, str, str | None]] = [
    ("{not json", "invalid_json_line", None),
    ("[1, 2]", "invalid_json_line", None),
    ('"text"', "invalid_json_line", None),
    ("null", "invalid_json_line", None),
    (b"\xff\xfe{}", "invalid_json_line", None),
    (json.dumps(line(1)) + "}", "invalid_json_line", None),
    ('{"a":' + "[" * 100_000, "invalid_json_line", None),
    ("{}", "missing_required_parameter", "custom_id"),
    (line(1, custom_id=None), "missing_required_parameter", "custom_id"),
    (line(1, method=None), "missing_required_parameter", "method"),
    (line(1, url=None), "missing_required_parameter", "url"),
    (line(1, body=None), "missing_required_parameter", "body"),
    (line(1, custom_id=""), "invalid_custom_id", "custom_id"),
    (line(1, custom_id=7), "invalid_custom_id", "custom_id"),
    (line(1, custom_id="x" * 513), "invalid_custom_id", "custom_id"),
    (line(1, custom_id="\ud800"), "invalid_json_line", None),
    (line(1, body=chat(user="\ud800")), "invalid_json_line", None),
    (line(1, method="GET"), "invalid_method", "method"),
    (line(1, method=["POST"]), "invalid_method", "method"),
    (line(1, url="/v1/completions"), "url_mismatch", "url"),
    (line(1, url="http://example.org/v1/chat/completions"), "url_mismatch", "url"),
    (line(1, body=[1]), "invalid_request", "body"),
    (line(1, body="{}"), "invalid_request", "body"),
    (line(1, body={"model": "gpt-4"}), "model_not_found", "body.model"),
]


def resolve(name: str | None) -> str:
    if name not in (None, MODEL):
        raise ModelNotFound(str(name))
    return MODEL


def faults_of(lines: list[Body | str | bytes], max_lines: int = 1000) -> list[Body]:
    texts = jsonl(lines).removesuffix(b"\n").split(b"\n") if lines else []
    with pytest.raises(InputError) as error:
        check_all([Line(number, text) for number, text in enumerate(texts, 1)], max_lines)
    return error.value.faults


def check_all(lines: list[Line], max_lines: int = 1000) -> InputCheck:
    check = InputCheck(CHAT, resolve, max_lines)
    check.look(lines)
    check.end()
    return check


@pytest.mark.parametrize(("bad", "code", "param"), BAD)
def test_a_bad_line_is_told_with_its_number(bad: Body | str | bytes, code: str, param: str | None) -> None:
    (fault,) = faults_of([line(0), bad])
    assert (fault["line"], fault["code"], fault["param"]) == (2, code, param)
    assert fault["message"]


def test_every_fault_is_told_up_to_some() -> None:
    faults = faults_of([line(1), line(1), "x", line(2), line(1)])
    assert [(fault["line"], fault["code"]) for fault in faults] == [
        (2, "duplicate_custom_id"),
        (3, "invalid_json_line"),
        (5, "duplicate_custom_id"),
    ]
    assert len(faults_of(["x"] * 500)) == MAX_FAULTS


def test_no_lines_and_too_many_lines_are_told() -> None:
    assert faults_of([])[0]["code"] == "empty_file"
    assert faults_of([line(number) for number in range(6)], max_lines=5)[0]["code"] == "too_many_tasks"


@pytest.mark.parametrize("body", [{}, {"model": None}, {"model": 7}, {"model": MODEL, "messages": "?"}])
def test_what_is_wrong_with_a_body_is_for_its_endpoint_to_tell(body: Body) -> None:
    check = check_all([Line(1, json.dumps(line(1, body=body)).encode())])
    assert (check.num_lines, check.model is None) == (1, body.get("model") == 7)


@given(st.binary(max_size=200) | st.text(max_size=100).map(str.encode))
def test_no_bytes_are_more_than_a_bad_line(data: bytes) -> None:
    with pytest.raises(BadLine):
        read_request(Line(1, data), CHAT)
