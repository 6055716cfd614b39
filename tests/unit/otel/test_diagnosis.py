"""What a process tells ``hangup doctor`` of itself."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from mcp_types import ListToolsResult, Tool, ToolAnnotations
from opentelemetry.sdk.trace import SpanProcessor, SynchronousMultiSpanProcessor
from opentelemetry.sdk.trace.export import (
    BatchSpanProcessor,
    ConsoleSpanExporter,
    SimpleSpanProcessor,
)
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry, start_http_server
from support.requires import require
from support.telemetry import chat, instrumented, used

import hangup
from hangup.cli._doctor_launch import _asked, ask_all
from hangup.cli.doctor import _sources
from hangup.otel import (
    diagnosis,
    diagnosis_bus,
    diagnosis_facts,
    diagnosis_sightings,
    hosts,
    names,
)
from hangup.otel.diagnosis_ports import listening_ports
from hangup.otel.diagnosis_processors import describe
from hangup.otel.diagnosis_sightings import Sightings
from hangup.otel.instrumentor import HangupInstrumentor

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def room() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="hangup-") as directory:
        yield Path(directory)


# The probe


@pytest.fixture
def probe(room: Path) -> Iterator[diagnosis._Probe]:
    probe = diagnosis._Probe(room)
    probe.start()
    yield probe
    probe.stop()


def test_a_process_answers_with_its_facts_as_often_as_it_is_asked(
    probe: diagnosis._Probe, room: Path
) -> None:
    for _ in range(2):
        [facts] = ask_all(room)
        assert facts["pid"] == os.getpid()
        assert facts["hangup"]["installed"] is False


def test_whether_it_is_busy_is_told_without_its_facts(
    probe: diagnosis._Probe, room: Path
) -> None:
    [pulse] = _asked(room, diagnosis.PULSE)
    assert pulse.keys() == {"pid", "modules", "cpu"}
    assert pulse["pid"] == os.getpid()


def test_what_it_knew_last_is_left_behind(probe: diagnosis._Probe, room: Path) -> None:
    probe.last_words()
    assert [path.name for path in room.iterdir()] == [f"{os.getpid()}.json"]
    [facts] = ask_all(room)
    assert facts["pid"] == os.getpid()


def test_a_caller_that_goes_away_harms_nobody(
    probe: diagnosis._Probe, room: Path
) -> None:
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(str(room / f"{os.getpid()}.sock"))
    assert len(ask_all(room)) == 1


def test_the_socket_of_an_earlier_process_is_replaced(room: Path) -> None:
    (room / f"{os.getpid()}.sock").touch()
    probe = diagnosis._Probe(room)
    probe.start()
    assert len(ask_all(room)) == 1
    probe.stop()


def test_a_directory_that_others_write_to_is_not_used(
    room: Path, caplog: pytest.LogCaptureFixture
) -> None:
    room.chmod(0o777)
    with caplog.at_level(logging.WARNING, "hangup"):
        diagnosis._start(room)
        diagnosis._start(room / "absent")
    assert diagnosis._State.probe is None
    assert [record.message.split(",")[0] for record in caplog.records] == [
        f"HANGUP_DOCTOR names {room}",
        f"HANGUP_DOCTOR names {room / 'absent'}",
    ]


def test_without_the_variable_nothing_is_started() -> None:
    diagnosis.start_if_asked()
    assert diagnosis._State.probe is None


def test_a_process_that_nobody_asks_does_not_even_import_it() -> None:
    script = (
        "import sys, hangup; hangup.instrument(); "
        "print([name for name in sys.modules if 'diagnosis' in name])"
    )
    done = subprocess.run(  # noqa: S603  our own interpreter
        [sys.executable, "-c", script],
        env={"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "[]\n"


# The facts


def test_a_sound_process_is_told_as_one() -> None:
    with instrumented():
        facts = diagnosis_facts.collect()
    assert facts["hangup"]["installed"]
    assert facts["clients"]["wire"] == {"httpx": True, "httpx2": True}
    assert any("HangupInstrumentor" in x for x in facts["clients"]["instrumentors"])
    assert ["hangup.info", {}, 1] in [
        [name, {}, value] for name, _, value in facts["samples"]
    ]


def test_after_uninstrumenting_no_client_passes_our_layer() -> None:
    with instrumented():
        pass
    facts = diagnosis_facts.collect()
    assert not facts["hangup"]["installed"]
    assert facts["clients"]["wire"] == {"httpx": False, "httpx2": False}


def told_by_a_child() -> str:
    """What a forked process tells before it has done anything."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover  another process
        [source] = _sources([facts := diagnosis_facts.collect()])
        spent = source.total(names.TOKENS, fate="delivered")
        os.write(writing, f"{facts['seen']['model_calls']} {spent}".encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        told = pipe.read()
    os.waitpid(child, 0)
    return told


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_what_the_checks_judge_by_is_told_by_the_process_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = Sightings()
    monkeypatch.setattr(diagnosis_sightings, "SEEN", seen)
    monkeypatch.setattr(diagnosis_facts, "SEEN", seen)
    # What would stay for the tests that follow.
    monkeypatch.setattr(hosts, "on_denied", lambda _note: None)
    monkeypatch.setattr(diagnosis_sightings._Wrapped, "requests", True)
    monkeypatch.setattr(diagnosis_sightings._Mcp, "hooked", True)
    with instrumented() as telemetry:
        diagnosis_sightings.watch(HangupInstrumentor())
        tracer = telemetry.tracer_provider.get_tracer("test")
        with hangup.run(name="told"), chat(tracer) as span:
            used(span, 7, 3)
        assert telemetry.total(names.TOKENS) == 10
        [source] = _sources([diagnosis_facts.collect()])
        in_a_child = told_by_a_child()
    assert source.total(names.TOKENS, fate="delivered") == 10
    assert source.total(names.METERED_TOKENS, in_run="true") == 10
    # A worker that was forked tells of its own: the master tells of the rest.
    assert in_a_child == "{} 0"


def test_a_provider_that_only_we_were_given_is_the_one_that_is_told() -> None:
    with instrumented() as telemetry:
        told = diagnosis_facts.collect()["tracing"]
    assert telemetry.tracer_provider is not None
    assert (told["sdk"], told["watched"], told["sampler_ours"]) == (True, True, True)
    assert [one["ours"] for one in told["processors"]].count(True) == 1


def test_ports_that_are_listened_on_are_told() -> None:
    require("/proc with its network", present=sys.platform == "linux")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        assert port in listening_ports()
    assert port not in listening_ports()


def test_ports_that_only_metrics_are_scraped_from_are_told_apart() -> None:
    server, thread = start_http_server(
        0, addr="127.0.0.1", registry=CollectorRegistry()
    )
    assert server.server_port in diagnosis_facts._prometheus_ports()
    server.shutdown()
    server.server_close()
    thread.join()
    assert server.server_port not in diagnosis_facts._prometheus_ports()


# Span processors


def console() -> ConsoleSpanExporter:
    return ConsoleSpanExporter(out=sys.stderr)


class Adds(BatchSpanProcessor):
    """Overrides the end, and comes to the SDK's."""

    def on_end(self, span: Any) -> None:
        super().on_end(span)


class Asks(SpanProcessor):
    """Of one's own, and right."""

    def __init__(self) -> None:
        self.exporter = console()

    def on_end(self, span: Any) -> None:
        if span.context.trace_flags.sampled:
            self.exporter.export([span])


class AsksElsewhere(Asks):
    def on_end(self, span: Any) -> None:
        if self._wanted(span):
            self.exporter.export([span])

    def _wanted(self, span: Any) -> bool:
        return bool(span.context.trace_flags.sampled)


class SendsAll(Asks):
    def on_end(self, span: Any) -> None:
        self.exporter.export([span])


class SendsAllOfBatch(BatchSpanProcessor):
    """Goes past what the SDK's would have asked."""

    def on_end(self, span: Any) -> None:
        self._batch_processor.emit(span)


class Around(SpanProcessor):
    """Hands on to another, which asks or does not."""

    def __init__(self, inner: SpanProcessor) -> None:
        self._inner = inner

    def on_end(self, span: Any) -> None:
        self._inner.on_end(span)


def around_several(*inner: SpanProcessor) -> SpanProcessor:
    several = SynchronousMultiSpanProcessor()  # type: ignore[no-untyped-call]
    for one in inner:
        several.add_span_processor(one)
    return several


@pytest.mark.parametrize(
    ("make", "unsampled"),
    [
        (lambda: SimpleSpanProcessor(console()), []),
        (lambda: BatchSpanProcessor(console()), []),
        (lambda: Adds(console()), []),
        (Asks, []),
        (AsksElsewhere, []),
        (SendsAll, ["SendsAll"]),
        (lambda: SendsAllOfBatch(console()), ["SendsAllOfBatch"]),
        (lambda: Around(BatchSpanProcessor(console())), []),
        (lambda: Around(SendsAll()), ["SendsAll"]),
        (lambda: around_several(Asks(), SendsAll()), ["SendsAll"]),
        (SpanProcessor, []),
    ],
)
def test_who_exports_what_was_not_sampled_is_told_without_being_called(
    make: Any, unsampled: list[str]
) -> None:
    processor = make()
    told = describe(processor)
    assert [name.rpartition(".")[2] for name in told["exports_unsampled"]] == unsampled
    assert told["ours"] is False
    if type(processor) is not SpanProcessor:
        assert told["exporters"]
    for one in (processor, *vars(processor).values()):
        if isinstance(one, SpanProcessor):
            one.shutdown()


def test_who_holds_the_application_up_is_told() -> None:
    batch = BatchSpanProcessor(console())
    assert describe(SimpleSpanProcessor(console()))["blocks"]
    assert describe(Around(SimpleSpanProcessor(console())))["blocks"]
    assert not describe(batch)["blocks"]
    assert not describe(SimpleSpanProcessor(InMemorySpanExporter()))["blocks"]
    batch.shutdown()  # type: ignore[no-untyped-call]


# The bus


def answering(answer: bytes) -> tuple[socket.socket, threading.Thread]:
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        caller, _ = listening.accept()
        with caller:
            assert caller.recv(64) == b"PING\r\n"
            caller.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    return listening, thread


@pytest.mark.parametrize(
    ("answer", "up"),
    [
        (b"+PONG\r\n", True),
        (b"-NOAUTH Authentication required.\r\n", True),
        (b"HTTP/1.1 400 Bad Request\r\n", False),
    ],
)
def test_a_bus_is_there_if_it_answers_as_one(
    monkeypatch: pytest.MonkeyPatch, answer: bytes, *, up: bool
) -> None:
    listening, thread = answering(answer)
    port = listening.getsockname()[1]
    monkeypatch.setenv("HANGUP_BUS_URL", f"redis://me:secret@127.0.0.1:{port}/0")
    told = diagnosis_bus.look()
    thread.join()
    listening.close()
    assert told is not None
    assert (told["where"], told["up"]) == (f"127.0.0.1:{port}", up)
    assert "secret" not in str(told)


def test_a_bus_that_nobody_listens_for_is_down(
    monkeypatch: pytest.MonkeyPatch, room: Path
) -> None:
    monkeypatch.setenv("HANGUP_BUS_URL", f"unix://{room}/redis.sock")
    told = diagnosis_bus.look()
    assert told is not None
    assert (told["where"], told["up"]) == (f"{room}/redis.sock", False)
    assert "No such file" in told["error"]


def test_no_bus_is_nothing_to_tell() -> None:
    assert diagnosis_bus.look() is None


# Sightings


def test_only_what_says_it_destroys_is_destructive() -> None:
    def tool(name: str, *, hint: bool | None) -> Tool:
        notes = None if hint is None else ToolAnnotations(destructive_hint=hint)
        return Tool(name=name, input_schema={"type": "object"}, annotations=notes)

    seen = Sightings()
    offered = [
        tool("wipe", hint=True),
        tool("look", hint=False),
        tool("find", hint=None),
    ]
    seen.tools_offered(ListToolsResult(tools=offered))
    assert seen.destructive == {"wipe"}


def test_counts_are_kept_by_their_labels_and_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(diagnosis_sightings, "_MOST", 3)
    seen = Sightings()
    for number in range(5):
        seen.count("n", 2, {"k": number})
    seen.count("n", 1.5, {"k": 0})
    seen.count("n", 0, {"k": "never"})
    assert seen.samples["n"] == {(("k", "0"),): 3.5, (("k", "1"),): 2, (("k", "2"),): 2}


def test_a_tallied_counter_goes_on_counting() -> None:
    class Counts:
        added: list[tuple[Any, ...]] = []  # noqa: RUF012  of this test

        def add(self, *args: Any) -> None:
            self.added.append(args)

    diagnosis_sightings._Tally(Counts(), "hangup.test").add(2, {"a": "b"})
    assert Counts.added == [(2, {"a": "b"})]
    noted = diagnosis_sightings.SEEN.samples.pop("hangup.test")
    assert noted == {(("a", "b"),): 2}
