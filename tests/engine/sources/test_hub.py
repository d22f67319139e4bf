"""Pulling from the hub, against a local stand-in."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.sources.errors import AccessDenied, DamagedModel, SourceNotFound, SourceUnavailable, UnsupportedModel
from engine.sources.options import PullOptions
from engine.sources.store import ModelStore
from tests.engine.sources.files import RecordingProgress, gguf_bytes, hub_files, safetensors_bytes
from tests.engine.sources.hub_stand_in import COMMIT, HubStandIn, Repository, run_hub

OTHER_COMMIT = "f" * 40


@pytest.fixture
def hub() -> Iterator[HubStandIn]:
    with run_hub() as hub:
        hub.repositories["org/tiny"] = Repository(hub_files())
        yield hub


@pytest.fixture
def options(hub: HubStandIn, tmp_path: Path) -> PullOptions:
    return PullOptions(hub_endpoint=hub.endpoint, hub_cache=tmp_path / "hub-cache")


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    return ModelStore(tmp_path / "home")


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the hub client write what it has got every 64 KiB, so that small files can break off half-way."""
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 1 << 16)


def test_a_pull_takes_the_model_files_and_nothing_else(store: ModelStore, options: PullOptions) -> None:
    progress = RecordingProgress()
    stored = store.pull("hf:org/tiny", progress, options)
    assert stored.name == "org/tiny"
    assert stored.manifest.revision == COMMIT
    assert store.resolve("hf:org/tiny") == store.resolve("org/tiny") == stored.path
    on_disk = {path.name for path in stored.path.rglob("*")}
    assert on_disk == {
        *("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json", "model.safetensors"),
        "model.json",
    }
    assert (stored.path / "model.safetensors").read_bytes() == hub_files()["model.safetensors"]
    assert store.verify("org/tiny") == ()
    assert progress.num_open == 0
    assert progress.last_bytes["downloading hf:org/tiny"] > 8000


def test_a_second_pull_of_the_same_commit_fetches_nothing(
    store: ModelStore, options: PullOptions, hub: HubStandIn
) -> None:
    first = store.pull("hf:org/tiny", None, options)
    hub.requests.clear()
    assert store.pull("hf:org/tiny", None, options) == first
    assert not any("/resolve/" in line for line, _ in hub.requests)


def test_a_pull_replaces_the_model_when_the_branch_has_moved(
    store: ModelStore, options: PullOptions, hub: HubStandIn
) -> None:
    store.pull("hf:org/tiny", None, options)
    hub.repositories["org/tiny"].revisions["main"] = OTHER_COMMIT
    hub.repositories["org/tiny"].files["config.json"] = b'{"new": true}'
    stored = store.pull("hf:org/tiny", None, options)
    assert stored.manifest.revision == OTHER_COMMIT
    assert (stored.path / "config.json").read_bytes() == b'{"new": true}'
    assert [model.name for model in store.list()] == ["org/tiny"]


def test_a_named_revision_is_a_model_of_its_own(store: ModelStore, options: PullOptions, hub: HubStandIn) -> None:
    hub.repositories["org/tiny"].revisions["v1"] = OTHER_COMMIT
    stored = store.pull("hf:org/tiny@v1", None, options)
    assert (stored.name, stored.manifest.revision) == ("org/tiny@v1", OTHER_COMMIT)
    with pytest.raises(SourceNotFound, match="not stored here yet"):
        store.resolve("hf:org/tiny")


def test_one_gguf_file_of_a_repository_can_be_pulled(store: ModelStore, options: PullOptions, hub: HubStandIn) -> None:
    hub.repositories["org/quants"] = Repository({"Q4.gguf": gguf_bytes(seed=1), "sub/Q8.gguf": gguf_bytes(seed=2)})
    stored = store.pull("hf:org/quants:sub/Q8.gguf", None, options)
    assert stored.path.read_bytes() == gguf_bytes(seed=2)
    assert store.resolve("hf:org/quants:sub/Q8.gguf") == stored.path
    with pytest.raises(UnsupportedModel, match=r"hf:org/quants:Q4\.gguf"):
        store.pull("hf:org/quants", None, options)
    with pytest.raises(SourceNotFound, match=r"GGUF files there: Q4\.gguf, sub/Q8\.gguf"):
        store.pull("hf:org/quants:Q5.gguf", None, options)


@pytest.mark.usefixtures("small_chunks")
def test_an_interrupted_download_is_not_listed_and_the_next_pull_continues_it(
    store: ModelStore, options: PullOptions, hub: HubStandIn
) -> None:
    hub.repositories["org/tiny"].files["model.safetensors"] = safetensors_bytes(100_000)
    hub.break_after["model.safetensors"] = 200_000
    with pytest.raises(SourceUnavailable):
        store.pull("hf:org/tiny", None, options)
    assert store.list() == []
    with pytest.raises(SourceNotFound):
        store.resolve("hf:org/tiny")
    hub.heal()
    hub.requests.clear()
    stored = store.pull("hf:org/tiny", None, options)
    (asked,) = hub.ranges_of("model.safetensors")
    assert asked is not None
    assert int(asked.removeprefix("bytes=").split("-")[0]) >= 1 << 16
    assert (stored.path / "model.safetensors").read_bytes() == safetensors_bytes(100_000)
    assert store.verify("org/tiny") == ()


def test_a_killed_pull_leaves_nothing_listed_and_no_lock(
    store: ModelStore, options: PullOptions, hub: HubStandIn, tmp_path: Path
) -> None:
    hub.stall_after["model.safetensors"] = 1000
    script = (
        "import sys; from pathlib import Path; from engine.sources.store import ModelStore;"
        "from engine.sources.options import PullOptions;"
        f"ModelStore(Path({str(store.root)!r})).pull('hf:org/tiny', None,"
        f" PullOptions(hub_endpoint={hub.endpoint!r}, hub_cache=Path({str(options.hub_cache)!r})))"
    )
    child = subprocess.Popen([sys.executable, "-c", script])
    assert hub.stalled.wait(60)
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert store.list() == []
    hub.heal()
    store.pull("hf:org/tiny", None, options)
    assert store.verify("org/tiny") == ()
    assert not list((store.root / "partial").iterdir())


def test_a_file_that_differs_from_its_digest_is_not_kept(
    store: ModelStore, options: PullOptions, hub: HubStandIn
) -> None:
    hub.repositories["org/tiny"].listed_sha256["model.safetensors"] = "0" * 64
    with pytest.raises(DamagedModel, match=r"model\.safetensors has SHA-256 .*expected 0000"):
        store.pull("hf:org/tiny", None, options)
    assert store.list() == []
    assert not list((store.root / "partial").iterdir())


def test_a_missing_repository_is_named(store: ModelStore, options: PullOptions) -> None:
    with pytest.raises(SourceNotFound, match="no repository org/absent at http://127"):
        store.pull("hf:org/absent", None, options)


def test_a_missing_revision_is_named(store: ModelStore, options: PullOptions) -> None:
    with pytest.raises(SourceNotFound, match="org/tiny has no revision 'v9'"):
        store.pull("hf:org/tiny@v9", None, options)


def test_a_gated_repository_says_what_to_do_and_opens_with_the_token(
    store: ModelStore, options: PullOptions, hub: HubStandIn
) -> None:
    hub.repositories["org/tiny"].token = "hf_right"
    with pytest.raises(AccessDenied, match=r"org/tiny is gated: accept its terms at .*needs a token"):
        store.pull("hf:org/tiny", None, options)
    wrong = PullOptions(hub_endpoint=options.hub_endpoint, hub_cache=options.hub_cache, hub_token="hf_wrong")
    with pytest.raises(AccessDenied, match="your token has no access yet"):
        store.pull("hf:org/tiny", None, wrong)
    right = PullOptions(hub_endpoint=options.hub_endpoint, hub_cache=options.hub_cache, hub_token="hf_right")
    assert store.pull("hf:org/tiny", None, right).name == "org/tiny"
    assert "hf_right" not in repr(right)


def test_a_hub_that_is_down_does_not_hide_behind_an_unfinished_download(
    store: ModelStore, options: PullOptions, hub: HubStandIn
) -> None:
    hub.down = True
    with pytest.raises(SourceUnavailable, match="HTTP 503"):
        store.pull("hf:org/tiny", None, options)
    assert store.list() == []


def test_nobody_at_the_endpoint_is_reported_as_unavailable(store: ModelStore, tmp_path: Path) -> None:
    options = PullOptions(hub_endpoint="http://127.0.0.1:9", hub_cache=tmp_path / "hub-cache")
    with pytest.raises(SourceUnavailable, match=r"could not be fetched from http://127\.0\.0\.1:9"):
        store.pull("hf:org/tiny", None, options)


def test_offline_takes_what_is_stored_and_contacts_nobody(
    store: ModelStore, options: PullOptions, hub: HubStandIn
) -> None:
    stored = store.pull("hf:org/tiny", None, options)
    hub.requests.clear()
    offline = PullOptions(hub_endpoint=options.hub_endpoint, hub_cache=options.hub_cache, offline=True)
    assert store.pull("hf:org/tiny", None, offline) == stored
    with pytest.raises(SourceUnavailable, match="offline mode"):
        store.pull("hf:org/other", None, offline)
    assert hub.requests == []


def test_offline_takes_a_snapshot_from_the_hub_clients_own_cache(
    store: ModelStore, options: PullOptions, hub: HubStandIn
) -> None:
    from huggingface_hub import snapshot_download

    snapshot_download("org/tiny", endpoint=hub.endpoint, cache_dir=options.hub_cache)
    hub.requests.clear()
    offline = PullOptions(hub_endpoint=options.hub_endpoint, hub_cache=options.hub_cache, offline=True)
    stored = store.pull("hf:org/tiny", None, offline)
    assert stored.manifest.revision == COMMIT
    assert (stored.path / "model.safetensors").read_bytes() == hub_files()["model.safetensors"]
    assert hub.requests == []


def test_pickles_alone_are_refused_before_any_download(
    store: ModelStore, options: PullOptions, hub: HubStandIn
) -> None:
    hub.repositories["org/old"] = Repository({"config.json": b"{}", "pytorch_model.bin": b"pickle"})
    with pytest.raises(UnsupportedModel, match=r"pickles only \(pytorch_model\.bin\)"):
        store.pull("hf:org/old", None, options)
    assert not any("/resolve/" in line for line, _ in hub.requests)
