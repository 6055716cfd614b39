"""A file counts as changed when it has settled, once for each change."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from hangup.core import filewatch
from hangup.core.filewatch import FileWatch

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


class Seen:
    """What a watch on a file has told."""

    def __init__(self, path: Path) -> None:
        self.changes = 0
        self.event = threading.Event()
        self.watch = FileWatch(str(path), self)

    def __call__(self) -> None:
        self.changes += 1
        self.event.set()

    def look(self, times: int) -> int:
        for _ in range(times):
            self.watch.look()
        return self.changes


def test_a_change_counts_when_it_was_the_same_twice(tmp_path: Path) -> None:
    path = tmp_path / "p"
    path.write_text("1")
    seen = Seen(path)
    assert seen.look(3) == 0
    path.write_text("12")
    assert seen.look(1) == 0
    path.write_text("123")  # still being written
    assert seen.look(1) == 0
    assert seen.look(3) == 1


def test_a_file_of_the_same_size_that_takes_its_place_counts(tmp_path: Path) -> None:
    path, other = tmp_path / "p", tmp_path / "q"
    path.write_text("1")
    other.write_text("2")
    found = path.stat()
    os.utime(other, ns=(found.st_atime_ns, found.st_mtime_ns))
    seen = Seen(path)
    other.replace(path)
    assert seen.look(3) == 1


def test_a_link_counts_as_what_it_points_to(tmp_path: Path) -> None:
    """So a mounted ConfigMap changes: its directory is a link that is exchanged."""
    for name in ("v1", "v2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "p").write_text("1")
    (tmp_path / "data").symlink_to("v1")
    seen = Seen(tmp_path / "data" / "p")
    (tmp_path / "new").symlink_to("v2")
    (tmp_path / "new").replace(tmp_path / "data")
    assert seen.look(3) == 1


def test_a_file_that_goes_and_comes_counts_each_time(tmp_path: Path) -> None:
    path = tmp_path / "p"
    seen = Seen(path)
    path.write_text("1")
    assert seen.look(3) == 1
    path.unlink()
    assert seen.look(3) == 2


def test_the_thread_looks_until_it_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filewatch, "INTERVAL", 0.01)
    path = tmp_path / "p"
    seen = Seen(path)
    assert seen.watch.asleep
    seen.watch.start()
    assert not seen.watch.asleep
    path.write_text("1")
    assert seen.event.wait(30)
    [thread] = [one for one in threading.enumerate() if one.name == "hangup-policy"]
    assert thread.daemon
    seen.watch.stop()
    thread.join(30)
    assert not thread.is_alive()


def test_after_a_fork_it_sleeps_until_it_is_started(tmp_path: Path) -> None:
    seen = Seen(tmp_path / "p")
    seen.watch.asleep = False
    filewatch._after_fork()
    assert seen.watch.asleep
    seen.watch.stop()
    filewatch._after_fork()
    assert not seen.watch.asleep
