"""How much of a transfer is there: files that grow, and copies that whoever fetches them makes meanwhile."""

from __future__ import annotations

from pathlib import Path

from engine.sources.progress import directory_bytes, largest_file_bytes, watch_directory
from tests.engine.sources.files import RecordingProgress


def test_copies_of_one_file_count_once(tmp_path: Path) -> None:
    (tmp_path / "scratch").mkdir()
    assert (largest_file_bytes(tmp_path), directory_bytes(tmp_path)) == (0, 0)
    progress = RecordingProgress()
    with watch_directory(progress, "one", tmp_path, 100, measure=largest_file_bytes):
        (tmp_path / "scratch" / "arriving").write_bytes(bytes(100))
        (tmp_path / "scratch" / "cache").write_bytes(bytes(69))
        (tmp_path / "copy").write_bytes(bytes(100))
    assert progress.last_bytes == {"one": 100}
    with watch_directory(progress, "all", tmp_path, None):
        pass
    assert progress.last_bytes["all"] == directory_bytes(tmp_path) == 269
    assert progress.num_open == 0
