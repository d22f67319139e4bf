"""What a container lets this process have: processor time and memory, as its control groups say.

Version 2 of control groups (https://docs.kernel.org/admin-guide/cgroup-v2.html), else version 1. A group is bound by
what those above it are bound by, so the narrowest counts; what cannot be read binds nobody.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")

_UNBOUND = 1 << 60
"""Version 1 says a number of bytes of about this size where there is no limit."""


def processor_share(root: Path = ROOT, membership: Path = MEMBERSHIP) -> float | None:
    """Processors' worth of time that may be used, such as 1.5; None without a limit."""
    shares = []
    for group in _groups(root, membership, ""):
        quota, _, period = _text(group / "cpu.max").partition(" ")
        shares.append(_ratio(quota, period))
    shares += [
        _ratio(_text(group / "cpu.cfs_quota_us"), _text(group / "cpu.cfs_period_us"))
        for group in _groups(root, membership, "cpu")
    ]
    return min((share for share in shares if share is not None), default=None)


def memory_limit(root: Path = ROOT, membership: Path = MEMBERSHIP) -> int | None:
    """Bytes that may be used in all; None without a limit."""
    return min((limit for limit, _ in _memory(root, membership)), default=None)


def free_memory(root: Path = ROOT, membership: Path = MEMBERSHIP) -> int | None:
    """Bytes that may be used beside what is used; None without a limit. Files that are only cached count as free."""
    return min((max(limit - used, 0) for limit, used in _memory(root, membership)), default=None)


def _memory(root: Path, membership: Path) -> Iterator[tuple[int, int]]:
    """Limit and use of every group that has a limit, bytes."""
    for controller, limit_file, use_file, cached in (
        ("", "memory.max", "memory.current", "inactive_file"),
        ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        for group in _groups(root, membership, controller):
            limit, used = _whole(_text(group / limit_file)), _whole(_text(group / use_file))
            if limit is None or limit >= _UNBOUND:
                continue
            fields = dict(line.split(" ", 1) for line in _text(group / "memory.stat").splitlines() if " " in line)
            yield limit, max((used or 0) - (_whole(fields.get(cached, "")) or 0), 0)


def _groups(root: Path, membership: Path, controller: str) -> Iterator[Path]:
    """Directories of this process's group and of those above; of version 2 if `controller` is empty, else of 1."""
    for line in _text(membership).splitlines():
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if controller not in controllers.split(","):
            continue
        mount = root / controllers if controller else root
        if controller and not mount.is_dir():
            mount = root / controller
        # In a namespace of its own a process sees its group as the root, or a path that is not mounted here.
        own = mount / path.lstrip("/")
        yield from (group for group in (own, *own.parents) if group.is_relative_to(mount))


def _ratio(quota: str, period: str) -> float | None:
    parts = _whole(quota), _whole(period)
    return parts[0] / parts[1] if parts[0] is not None and parts[1] else None


def _whole(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
