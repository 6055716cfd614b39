"""The sums of many workers in one directory: added up, never taken back."""

from __future__ import annotations

import json
import math
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import generate_latest

from hangup.core import guard
from hangup.errors import ConfigError
from hangup.otel.workerfiles import Family, WorkerFiles
from hangup.otel.workers import WorkersMetricReader

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator


@pytest.fixture
def path() -> Iterator[Path]:
    """A short one: the path of a Unix socket has no room for what pytest makes."""
    with tempfile.TemporaryDirectory() as path:
        yield Path(path)


def counter(value: float, name: str = "c", kind: str = "counter") -> Family:
    sample = [f"{name}_total", [["model", "m"]], value]
    return {"name": name, "type": kind, "doc": "", "samples": [sample]}


def value(files: WorkerFiles, name: str = "c") -> float | None:
    for family in files.read():
        if family["name"] == name:
            [sample] = family["samples"]
            return float(sample[2])
    return None


def test_counters_of_those_that_live_and_those_that_ended_are_added_up(
    path: Path,
) -> None:
    files = WorkerFiles(path)
    listening = {ident: files.listen(ident) for ident in ("a", "b", "c")}
    for count, ident in enumerate(listening, 1):
        files.write(ident, [counter(count)])
    assert value(files) == 6
    listening.pop("b").close()  # as when it is killed
    for _ in range(2):
        assert value(files) == 6
        assert not (path / "b.json").exists()
    files.write("a", [counter(10)])
    assert value(files) == 15
    for ident, sock in listening.items():
        files.leave(ident)
        sock.close()
    assert value(files) == 15
    assert value(WorkerFiles(path)) == 15  # the next ones begin there
    assert sorted(one.name for one in path.iterdir()) == ["gone.json", "lock"]


def test_a_gauge_ends_with_its_process(path: Path) -> None:
    files = WorkerFiles(path)
    sock = files.listen("a")
    files.write("a", [counter(3, "g", "gauge")])
    assert value(files, "g") == 3
    sock.close()
    assert value(files, "g") is None


def test_who_died_while_it_took_over_has_counted_nothing_twice(path: Path) -> None:
    files = WorkerFiles(path)
    files.write("a", [counter(5)])
    # The sums were written, with whose they include; the file has not gone yet.
    (path / "gone.json").write_text(
        json.dumps({"families": [counter(5)], "folded": ["a"]})
    )
    assert value(files) == 5
    assert not (path / "a.json").exists()
    assert value(files) == 5


def test_what_cannot_be_read_is_passed_over(path: Path) -> None:
    files = WorkerFiles(path)
    files.write("a", [counter(5)])
    (path / "b.json").write_text("{")
    assert value(files) == 5


def test_a_worker_that_does_not_answer_is_not_waited_for_long(path: Path) -> None:
    files = WorkerFiles(path)
    with files.listen("busy"):
        files.write("busy", [counter(5)])
        files.ask(but="", patience=0.05)
        assert value(files) == 5


def test_everybody_is_asked_but_the_one_that_asks(path: Path) -> None:
    files = WorkerFiles(path)
    asked: list[str] = []

    def answer(ident: str, sock: socket.socket) -> None:
        with sock.accept()[0]:
            asked.append(ident)

    with files.listen("me"), files.listen("a") as a, files.listen("b") as b:
        threads = [
            threading.Thread(target=answer, args=one) for one in (("a", a), ("b", b))
        ]
        for thread in threads:
            thread.start()
        files.ask(but="me", patience=10)
        for thread in threads:
            thread.join(10)
    assert sorted(asked) == ["a", "b"]


def test_a_directory_that_others_may_write_to_is_refused(path: Path) -> None:
    path.chmod(0o777)
    with pytest.raises(ConfigError, match="nobody else may write"):
        WorkerFiles(path)
    with pytest.raises(ConfigError, match="shorter"):
        WorkerFiles(path / ("x" * 100))


def test_gauges_of_others_are_told_apart_by_their_process(path: Path) -> None:
    reader = WorkersMetricReader(path)
    meters = MeterProvider([reader], shutdown_on_exit=False)
    meter = meters.get_meter("test")
    meter.create_gauge("temperature").set(21)
    meter.create_gauge("hangup.anything").set(1)
    meter.create_counter("requests").add(2)
    text = generate_latest(reader.all_workers).decode()
    [temperature] = [line for line in text.splitlines() if line[:11] == "temperature"]
    assert 'pid="' in temperature
    assert text.count('pid="') == 1
    assert "service_instance_id" not in text
    meters.shutdown()
    # It has ended: its counter stays.
    again = WorkersMetricReader(path)
    text = generate_latest(again.all_workers).decode()
    assert "requests_total" in text
    assert "temperature" not in text
    again.shutdown()


def test_files_that_are_not_of_a_process_are_left_alone(path: Path) -> None:
    """The directory may be one that an application has for other things too."""
    others = {"config.json": '{"a": 1}', "list.json": "[1]", "boot.s": "source"}
    for name, text in others.items():
        (path / name).write_text(text)
    files = WorkerFiles(path)
    files.listen("a").close()
    files.write("a", [counter(3)])
    for _ in range(2):
        assert value(files) == 3
    assert {name: (path / name).read_text() for name in others} == others


def test_who_is_known_to_live_is_not_asked_again(path: Path) -> None:
    files = WorkerFiles(path)
    with files.listen("a") as listening:
        files.write("a", [counter(1)])
        files.read({"a"})
        listening.settimeout(0)
        with pytest.raises(BlockingIOError):
            listening.accept()
    files.leave("a")


def test_a_directory_that_is_gone_breaks_no_shutdown(path: Path) -> None:
    reader = WorkersMetricReader(path / "metrics")
    provider = MeterProvider([reader])
    provider.get_meter("m").create_counter("c").add(1)
    for file in (path / "metrics").iterdir():
        file.unlink()
    (path / "metrics").rmdir()
    assert reader.force_flush() is False
    guard.strict(False)  # noqa: FBT003  as in production
    provider.shutdown()
    provider.shutdown()


def test_a_sum_never_goes_back_by_its_last_bit(path: Path) -> None:
    """However it is put together: by who lives, or after some have been folded."""
    spent = [0.0001 * number for number in (7, 1, 3, 9, 4, 2)]
    files = WorkerFiles(path)
    listening = {f"w{at}": files.listen(f"w{at}") for at in range(len(spent))}
    for ident, dollars in zip(listening, spent, strict=True):
        files.write(ident, [counter(dollars)])
    seen = [value(files)]
    for sock in listening.values():
        sock.close()  # as when it is killed
        seen.append(value(files))
    assert set(seen) == {math.fsum(spent)}


def test_numbers_that_are_none_are_added_up_too(path: Path) -> None:
    files = WorkerFiles(path)
    for ident, number in (("a", 0.5), ("b", math.inf)):
        files.listen(ident).close()
        files.write(ident, [counter(number)])
    assert value(files) == math.inf
