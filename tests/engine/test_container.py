"""Limits of containers, as both versions of control groups show them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from engine import resolve
from engine.config import EngineConfig
from engine.container import free_memory, memory_limit, processor_share
from engine.models.shapes import SHAPES


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


def member(root: Path, *lines: str) -> Path:
    path = root / "membership"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_without_limits_there_are_none(tmp_path: Path) -> None:
    root = write(tmp_path, {"a/cpu.max": "max 100000", "a/memory.max": "max", "a/memory.current": "5"})
    membership = member(tmp_path, "0::/a")
    assert processor_share(root, membership) is None
    assert memory_limit(root, membership) is None
    assert free_memory(root, membership) is None


def test_the_narrowest_group_counts(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "pod/cpu.max": "150000 100000",
            "pod/memory.max": "1000",
            "pod/memory.current": "700",
            "pod/memory.stat": "anon 500\ninactive_file 150",
            "pod/one/cpu.max": "max 100000",
            "pod/one/memory.max": "800",
            "pod/one/memory.current": "100",
        },
    )
    membership = member(tmp_path, "0::/pod/one")
    assert processor_share(root, membership) == 1.5
    assert memory_limit(root, membership) == 800
    assert free_memory(root, membership) == 450


def test_a_group_that_is_not_mounted_leaves_the_root(tmp_path: Path) -> None:
    root = write(tmp_path, {"cpu.max": "50000 100000", "memory.max": "100", "memory.current": "300"})
    membership = member(tmp_path, "0::/system.slice/docker-1.scope")
    assert processor_share(root, membership) == 0.5
    assert free_memory(root, membership) == 0


@pytest.mark.parametrize("mount", ["cpu,cpuacct", "cpu"])
def test_version_1(tmp_path: Path, mount: str) -> None:
    root = write(
        tmp_path,
        {
            f"{mount}/docker/cpu.cfs_quota_us": "400000",
            f"{mount}/docker/cpu.cfs_period_us": "100000",
            f"{mount}/cpu.cfs_quota_us": "-1",
            f"{mount}/cpu.cfs_period_us": "100000",
            "memory/memory.limit_in_bytes": "9223372036854771712",
            "memory/docker/memory.limit_in_bytes": "2000",
            "memory/docker/memory.usage_in_bytes": "900",
            "memory/docker/memory.stat": "total_inactive_file 100",
        },
    )
    membership = member(tmp_path, "5:cpu,cpuacct:/docker", "4:memory:/docker", "0::/")
    assert processor_share(root, membership) == 4.0
    assert memory_limit(root, membership) == 2000
    assert free_memory(root, membership) == 1200


@pytest.mark.parametrize("text", ["", "garbage", "100 0", "-5 100", "1 2 3"])
def test_what_cannot_be_read_binds_nobody(tmp_path: Path, text: str) -> None:
    root = write(tmp_path, {"cpu.max": text, "memory.max": text})
    assert processor_share(root, member(tmp_path, "0::/", "nonsense")) is None
    assert memory_limit(root, tmp_path / "missing") is None


@pytest.mark.parametrize(("share", "cores"), [(None, 6), (0.5, 1), (1.5, 1), (2.0, 2), (64.0, 6)])
def test_a_step_has_as_many_threads_as_run_at_once(
    share: float | None, cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resolve, "processor_share", lambda: share)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(6)), raising=False)
    assert resolve.usable_cores() == cores


@pytest.mark.parametrize(("allowed", "expected"), [(None, 1 << 28), (1 << 26, 1 << 24), (1 << 40, 1 << 28)])
def test_the_pool_fits_the_container(allowed: int | None, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolve, "free_memory", lambda: allowed)
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=1 << 30))
    config, model = EngineConfig(model="any", device="cpu"), SHAPES["smollm2-135m"]
    placement = resolve.place(config, model)
    page_bytes = resolve.kv_page_bytes(config, model, placement.kv_dtype)
    assert resolve.pool_pages(config, model, placement, max_model_len=1 << 20) == expected // page_bytes
