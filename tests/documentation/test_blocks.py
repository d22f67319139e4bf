"""How examples are found and compared: the test of the tests."""

from __future__ import annotations

import pytest

from tests.documentation.blocks import Example, client_examples, examples_of, expected, matches, run_example

PAGE = """
# Title

```bash
echo one
```

<!-- output -->
```text
one
```

<!-- not run: needs a GPU -->
```python
print(2)
```

```json
{"not": "an example"}
```
"""


def test_examples_come_with_their_output_and_their_reason() -> None:
    shell, python = examples_of(PAGE, "page.md")
    assert (shell.kind, shell.text, shell.output, shell.not_run) == ("bash", "echo one\n", "one\n", None)
    assert (python.kind, python.output, python.not_run) == ("python", None, "needs a GPU")
    assert shell.id == "page.md:5"


def test_examples_of_client_libraries_are_found_by_name_and_not_run_here() -> None:
    page = "<!-- client: node -->\n```js\nlet x;\n```\n\n<!-- client: agents -->\n```python\nx = 1\n```\n"
    assert client_examples(page) == {"node": "let x;\n", "agents": "x = 1\n"}
    assert not examples_of(page, "page.md")


def test_an_output_without_an_example_is_refused() -> None:
    with pytest.raises(ValueError, match=r"page\.md:3: output of which example"):
        examples_of("<!-- output -->\n```text\none\n```\n", "page.md")


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("one\ntwo\n", "one two", True),
        ('{"id": "...", "n": 1}', '{"id": "abc", "n": 1}', True),
        ("...", "", True),
        ("one ... three", "one two and three", True),
        ("one", "one two", False),
        ("one ...", "two", False),
        ("a.c", "abc", False),
    ],
)
def test_dots_stand_for_anything_and_nothing_else_does(shown: str, printed: str, same: bool) -> None:
    assert matches(shown, printed) is same


def test_the_documented_port_is_replaced_in_text_and_output() -> None:
    example = Example(page="p", line=1, kind="bash", text="echo 127.0.0.1:8000 8000\n", output="127.0.0.1:8000 8000\n")
    printed = run_example(example, port=4242, environment={})
    assert printed == "127.0.0.1:4242 8000\n"
    assert expected(example, 4242) == printed


def test_a_failing_example_says_where_it_stands() -> None:
    example = Example(page="p.md", line=7, kind="python", text="import sys\nsys.exit('broken')\n")
    with pytest.raises(AssertionError, match=r"(?s)p\.md:7 ended with 1.*broken"):
        run_example(example, port=1, environment={})
