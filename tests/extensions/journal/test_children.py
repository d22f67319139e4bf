"""Children in a journal."""

from __future__ import annotations

import msgspec
import pytest

from extensions.programs.children import ChildResult, _Ended, _from_journal
from extensions.programs.generating import Usage
from extensions.programs.request import ProgramUsage
from extensions.sandbox import bindings


@pytest.mark.parametrize(
    ("result", "message"), [(None, None), ({"a": [1, "b"]}, {"role": "assistant", "content": "c", "tool_calls": []})]
)
def test_a_child_that_has_run_is_read_as_it_was_written(result: object, message: dict[str, object] | None) -> None:
    assert ChildResult in bindings.RECORDS  # which are said to be of a module of the scripts' own
    child = ChildResult(
        text="t",
        result=result,
        message=message,
        finish_reason="stop",
        exec_path="fused",
        usage=Usage(3, 1, 2),
        logs="said\n",
    )
    ended = _Ended(child, ProgramUsage(num_prompt_tokens=3, num_completion_tokens=2))
    found = _from_journal(msgspec.msgpack.decode(msgspec.msgpack.encode(msgspec.to_builtins(ended))))
    assert found == ended
    assert isinstance(found.result.usage, Usage)
