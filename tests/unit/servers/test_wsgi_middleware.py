"""WSGI: what passes through, what is answered, and who counts as having left."""

from __future__ import annotations

import io
import json
import logging
import sys
import threading
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import pytest
from support.asgi import spend
from support.wsgi import LONG_GONE, Server, answering, environ

import hangup
from hangup.core.cause import Cause
from hangup.core.current import position
from hangup.servers._wsgi_body import Body, SizedBody
from hangup.servers.wsgi import HangupMiddleware

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

    from support.asgi import Journal

DONE = [("delivered",)]
GONE = [("abandoned", "disconnect")]


class Stream:
    """An application that streams, and notes how it was closed.

    Args:
        chunks: What it yields, and functions to be called between.
        status: Of its response.
    """

    def __init__(
        self, *chunks: bytes | Callable[[], object], status: str = "200 OK"
    ) -> None:
        self._chunks = chunks
        self._status = status
        self.closed: list[str] = []
        self.runs: list[Any] = []

    def __call__(
        self, _environ: WSGIEnvironment, start_response: StartResponse
    ) -> Iterable[bytes]:
        start_response(self._status, [("Content-Type", "text/plain")])
        return self._stream()

    def _stream(self) -> Iterator[bytes]:
        try:
            for chunk in self._chunks:
                if isinstance(chunk, bytes):
                    self.runs.append(hangup.current_run())
                    yield chunk
                else:
                    chunk()
        except BaseException as error:
            self.closed.append(type(error).__name__)
            raise
        else:
            self.closed.append("ended")


def kill() -> None:
    hangup.current_run().cancel("killed")  # type: ignore[union-attr]


# What passes through


def test_a_request_that_spends_nothing_is_passed_through(journal: Journal) -> None:
    chunks = [b"a", b"b"]

    def app(
        _environ: WSGIEnvironment, start_response: StartResponse
    ) -> Iterable[bytes]:
        start_response("201 Created", [("Content-Type", "text/plain")])
        return chunks

    wrapped = HangupMiddleware(app)
    assert wrapped(environ(), lambda *_: lambda _: None) is chunks
    server = Server(wrapped)
    assert (server.status, server.body, server.finished) == (201, b"ab", True)
    assert server.headers == {"content-type": "text/plain"}
    assert journal.events == []


def test_a_stream_that_spends_nothing_may_be_left(journal: Journal) -> None:
    stream = Stream(b"a", b"b")
    server = Server(HangupMiddleware(stream), leaves_at=1)
    assert server.error is LONG_GONE
    assert stream.closed == ["GeneratorExit"]
    assert journal.events == []


def test_mode_off_is_not_there_at_all() -> None:
    def app(_environ: WSGIEnvironment, _start: StartResponse) -> Iterable[bytes]:
        assert position() is None
        return marker

    marker: list[bytes] = []
    wrapped = HangupMiddleware(app, mode="off")
    assert wrapped(environ(), lambda *_: lambda _: None) is marker


def test_one_inside_another_does_nothing_and_says_so(
    journal: Journal, caplog: pytest.LogCaptureFixture
) -> None:
    inner = HangupMiddleware(answering(b"x", before=spend), budget=1)
    outer = HangupMiddleware(inner, name="outer")
    with caplog.at_level(logging.WARNING):
        Server(outer)
        Server(outer)
    assert len(caplog.records) == 1
    assert journal.events == [("started", "outer"), ("delivered", "outer")] * 2


def test_a_list_of_one_keeps_its_length_for_the_server() -> None:
    wrapped = HangupMiddleware(answering(b"whole", before=spend))
    result: Any = wrapped(environ(), lambda *_: lambda _: None)
    assert isinstance(result, SizedBody)
    assert len(result) == 1
    assert list(result) == [b"whole"]
    result.close()
    stream: Any = HangupMiddleware(Stream(spend, b"x"))(
        environ(), lambda *_: lambda _: None
    )
    assert type(stream) is Body
    stream.close()


def test_a_file_goes_to_the_server_untouched(journal: Journal) -> None:
    class Wrapper:
        def __init__(self, file: Any) -> None:
            self.file = file

        def __iter__(self) -> Iterator[bytes]:
            return iter(self.file)

    file = Wrapper([b"x"])

    def app(
        _environ: WSGIEnvironment, start_response: StartResponse
    ) -> Iterable[bytes]:
        spend()
        start_response("200 OK", [("Content-Type", "text/plain")])
        return file

    request = {**environ(), "wsgi.file_wrapper": Wrapper}
    started: list[Any] = []

    def start_response(*given: Any) -> Callable[[bytes], object]:
        started.append(given)
        return lambda _: None

    assert HangupMiddleware(app)(request, start_response) is file
    assert len(started) == 1
    assert journal.fates == DONE


def test_close_of_the_application_is_called_once_however_it_ends() -> None:
    closed: list[str] = []

    class Result:
        def __init__(self) -> None:
            self.chunks = iter([b"a", b"b"])

        def __iter__(self) -> Iterator[bytes]:
            return self.chunks

        def close(self) -> None:
            closed.append((hangup.current_run() is None and "none") or "run")

    def app(
        _environ: WSGIEnvironment, start_response: StartResponse
    ) -> Iterable[bytes]:
        spend()
        start_response("200 OK", [("Content-Type", "text/plain")])
        return Result()

    Server(HangupMiddleware(app))
    assert closed == ["none"]  # what it spends is after the delivery
    Server(HangupMiddleware(app), leaves_at=1)
    assert closed == ["none", "run"]
    Server(HangupMiddleware(app), leaves_at=0)
    assert len(closed) == 3


def test_the_context_of_the_thread_is_the_applications(journal: Journal) -> None:
    """A value it sets in one request is there in the next (Django keeps caches so)."""
    kept: ContextVar[int] = ContextVar("kept", default=0)

    def app(
        _environ: WSGIEnvironment, start_response: StartResponse
    ) -> Iterable[bytes]:
        spend()
        kept.set(kept.get() + 1)
        start_response("200 OK", [("Content-Type", "text/plain")])
        yield b"x"

    before = kept.get()
    Server(HangupMiddleware(app))
    Server(HangupMiddleware(app))
    assert kept.get() == before + 2


def test_between_two_chunks_the_thread_is_nobodys(journal: Journal) -> None:
    stream = Stream(b"a", spend, b"b")
    result: Any = HangupMiddleware(stream)(environ(), lambda *_: lambda _: None)
    assert position() is None
    reading = iter(result)
    assert next(reading) == b"a"
    assert hangup.current_run() is None
    assert next(reading) == b"b"
    assert hangup.current_run() is None
    assert journal.runs == [stream.runs[0]]
    # A server that never closes it leaves nothing behind on its thread either.
    del reading, result
    Server(HangupMiddleware(answering(b"x", before=spend)))
    assert journal.fates == DONE
    assert all(run.parent is None for run in journal.runs)


def test_empty_chunks_and_late_headers_are_the_applications(journal: Journal) -> None:
    def app(
        _environ: WSGIEnvironment, start_response: StartResponse
    ) -> Iterable[bytes]:
        def pieces() -> Iterator[bytes]:
            start_response("200 OK", [("Content-Type", "text/plain")])
            yield b""
            spend()
            yield b"x"

        return pieces()

    server = Server(HangupMiddleware(app))
    assert (server.status, server.body, server.finished) == (200, b"x", True)
    assert journal.fates == DONE


# start_response


def test_an_error_handler_may_replace_headers_until_bytes_went_out() -> None:
    def app(
        _environ: WSGIEnvironment, start_response: StartResponse
    ) -> Iterable[bytes]:
        start_response("200 OK", [("Content-Type", "text/plain"), ("X-A", "1")])
        try:
            fail()
        except LookupError:
            start_response("500 Oh", [("Content-Type", "text/plain")], sys.exc_info())
        yield b"oh"

    server = Server(HangupMiddleware(app))
    assert (server.status, server.body) == (500, b"oh")
    assert "x-a" not in server.headers


def test_after_that_the_error_is_raised_again() -> None:
    def app(
        _environ: WSGIEnvironment, start_response: StartResponse
    ) -> Iterable[bytes]:
        start_response("200 OK", [("Content-Type", "text/plain")])
        yield b"x"
        try:
            fail()
        except LookupError:
            start_response("500 Oh", [("Content-Type", "text/plain")], sys.exc_info())

    server = Server(HangupMiddleware(app))
    assert isinstance(server.error, LookupError)
    assert (server.status, server.body, server.finished) == (200, b"x", False)


def test_starting_twice_without_an_error_is_refused() -> None:
    def app(
        _environ: WSGIEnvironment, start_response: StartResponse
    ) -> Iterable[bytes]:
        start_response("200 OK", [("Content-Type", "text/plain")])
        start_response("201 OK", [("Content-Type", "text/plain")])
        return []

    assert isinstance(Server(HangupMiddleware(app), strict=False).error, AssertionError)


def test_headers_that_the_server_does_not_take_are_a_fault(journal: Journal) -> None:
    def picky(*_given: Any) -> Any:
        raise ValueError("a header with a line break")

    result: Any = HangupMiddleware(Stream(spend, b"x"))(environ(), picky)
    with pytest.raises(ValueError, match="line break"):
        next(iter(result))
    result.close()
    assert journal.fates == [("abandoned", "failed")]


def writing(*chunks: bytes, between: Callable[[], object] = spend) -> WSGIApplication:
    def app(
        _environ: WSGIEnvironment, start_response: StartResponse
    ) -> Iterable[bytes]:
        write = start_response("200 OK", [("Content-Type", "text/plain")])
        for chunk in chunks:
            write(chunk)
            between()
        return []

    return app


def test_write_hands_bytes_on_at_once(journal: Journal) -> None:
    server = Server(HangupMiddleware(writing(b"a", b"b")))
    assert (server.written, server.finished) == ([b"a", b"b"], True)
    assert journal.fates == DONE


def test_a_client_gone_on_write_is_a_disconnect(journal: Journal) -> None:
    server = Server(HangupMiddleware(writing(b"a", b"b")), leaves_at=1)
    assert server.written == [b"a"]
    assert journal.fates == GONE


def test_an_application_that_only_writes_is_stopped_there(journal: Journal) -> None:
    def once() -> None:
        spend()
        kill()

    server = Server(HangupMiddleware(writing(b"a", b"b", between=once)))
    assert server.written == [b"a"]
    assert isinstance(server.error, ConnectionResetError)
    assert journal.fates == [("abandoned", "killed")]


# Outcomes


@pytest.mark.parametrize(
    ("app", "fates"),
    [
        (answering(b"x", before=spend), DONE),
        (answering(before=spend), DONE),
        (
            answering(b"x", status="500 Oh", before=spend),
            [("abandoned", "failed")],
        ),
        (answering(b"x", status="404 Not Found", before=spend), DONE),
        (Stream(spend, b"x"), DONE),
        (Stream(b"x", spend), DONE),
        (Stream(spend, b"x", status="503 Oh"), [("abandoned", "failed")]),
    ],
)
def test_the_end_of_a_response_is_an_outcome(
    app: WSGIApplication, fates: Any, journal: Journal
) -> None:
    server = Server(HangupMiddleware(app))
    assert server.error is None
    assert server.finished
    assert journal.fates == fates


def fail() -> None:
    raise LookupError("mine")


def quit_worker() -> None:
    raise SystemExit(1)


@pytest.mark.parametrize(
    ("blow", "kind", "cause"),
    [(fail, LookupError, "failed"), (quit_worker, SystemExit, "shutdown")],
)
@pytest.mark.parametrize("streamed", [False, True])
def test_an_exception_is_the_applications_and_an_outcome(
    streamed: bool,  # noqa: FBT001  a parameter
    blow: Callable[[], None],
    kind: type[BaseException],
    cause: str,
    journal: Journal,
) -> None:
    def both() -> None:
        spend()
        blow()

    app = Stream(b"a", both) if streamed else answering(b"x", before=both)
    server = Server(HangupMiddleware(app))
    assert type(server.error) is kind
    assert server.written == ([b"a"] if streamed else [])
    assert journal.fates == [("abandoned", cause)]


def test_a_worker_told_to_exit_while_it_writes_is_a_shutdown(journal: Journal) -> None:
    stream = Stream(spend, b"a", b"b")
    result: Any = HangupMiddleware(stream)(environ(), lambda *_: lambda _: None)
    reading = iter(result)
    next(reading)

    def serving() -> None:
        try:
            raise SystemExit(1)
        finally:
            result.close()

    with pytest.raises(SystemExit):
        serving()
    assert journal.fates == [("abandoned", "shutdown")]


@pytest.mark.parametrize("mode", ["observe", "refuse", "enforce"])
@pytest.mark.parametrize("leaves_at", [0, 1])
def test_a_client_that_cannot_be_written_to_is_gone(
    mode: str, leaves_at: int, journal: Journal
) -> None:
    stream = Stream(spend, b"a", b"b")
    server = Server(HangupMiddleware(stream, mode=mode), leaves_at=leaves_at)
    assert server.error is LONG_GONE
    assert stream.closed == ["GeneratorExit"]
    assert journal.fates == GONE
    [run] = journal.runs
    assert run.caller == "gone"
    assert run.abandonment is not None
    assert run.abandonment.cause is Cause.DISCONNECT


def test_a_body_that_is_not_to_be_sent_need_not_be_read(journal: Journal) -> None:
    stream = Stream(spend, b"a", b"b")
    wrapped = HangupMiddleware(stream)
    result: Any = wrapped(environ(method="HEAD"), lambda *_: lambda _: None)
    next(iter(result))
    result.close()
    assert journal.fates == DONE


@pytest.mark.parametrize(
    ("on_disconnect", "fates"), [("finish", DONE), ("grace", GONE), ("abandon", GONE)]
)
def test_what_leaving_means_is_the_routes(
    on_disconnect: str, fates: Any, journal: Journal
) -> None:
    stream = Stream(spend, b"a", b"b", spend, b"c")
    wrapped = HangupMiddleware(
        stream, routes={"/*": {"on_disconnect": on_disconnect, "grace": 60}}
    )
    server = Server(wrapped, leaves_at=1)
    assert server.error is LONG_GONE
    ended = "GeneratorExit" if on_disconnect == "abandon" else "ended"
    assert stream.closed == [ended]
    assert journal.fates == fates


# Answers

TOLD = [
    ("killed", 409, None),
    ("superseded", 409, None),
    ("shutdown", 503, "1"),
    ("deadline", 504, None),
    ("disconnect", 409, None),
]


def stopped(cause: str) -> None:
    spend().cancel(cause)
    spend()
    raise AssertionError("a stopped run went on")


@pytest.mark.parametrize(("cause", "status", "retry"), TOLD)
@pytest.mark.parametrize("streamed", [False, True])
def test_before_the_first_byte_the_caller_is_told_why(
    streamed: bool,  # noqa: FBT001  a parameter
    cause: str,
    status: int,
    retry: str | None,
    journal: Journal,
) -> None:
    def before() -> None:
        stopped(cause)

    app = Stream(before, b"x") if streamed else answering(b"x", before=before)
    server = Server(HangupMiddleware(app))
    assert server.error is None
    assert (server.status, server.started, server.finished) == (status, 1, True)
    assert server.headers["hangup-cause"] == cause
    assert server.headers.get("retry-after") == retry
    assert server.headers["content-length"] == str(len(server.body))
    assert json.loads(server.body)["error"] == cause
    assert journal.fates == [("abandoned", cause)]


@pytest.mark.parametrize("streamed", [False, True])
def test_an_application_that_swallows_the_stop_does_not_get_through(
    streamed: bool,  # noqa: FBT001  a parameter
    journal: Journal,
) -> None:
    def before() -> None:
        spend().cancel("killed")

    app = Stream(before, b"x") if streamed else answering(b"x", before=before)
    server = Server(HangupMiddleware(app))
    assert (server.status, server.finished) == (409, True)


def test_the_500_of_a_refused_call_becomes_the_cause(journal: Journal) -> None:
    """In refuse mode a framework may have made an error page of the refusal."""

    def app(
        _environ: WSGIEnvironment, start_response: StartResponse
    ) -> Iterable[bytes]:
        with pytest.raises(hangup.Stop):
            stopped("superseded")
        start_response("500 Internal Server Error", [("Content-Type", "text/html")])
        return [b"oops"]

    server = Server(HangupMiddleware(app, mode="refuse"))
    assert (server.status, server.headers["hangup-cause"]) == (409, "superseded")
    assert b"oops" not in server.body


def test_after_the_first_byte_the_response_is_left_unfinished(journal: Journal) -> None:
    stream = Stream(spend, b"a", kill, b"b", b"c")
    server = Server(HangupMiddleware(stream))
    assert isinstance(server.error, ConnectionResetError)
    assert server.written == [b"a"]
    assert not server.finished
    assert stream.closed == ["GeneratorExit"]
    assert journal.fates == [("abandoned", "killed")]


def test_a_deadline_that_passes_refuses_the_next_call(journal: Journal) -> None:
    def late() -> None:
        run = spend()
        passed = threading.Event()
        run.on_abandon(lambda _: passed.set())
        assert passed.wait(10)
        spend()

    server = Server(HangupMiddleware(answering(b"x", before=late), budget=0.05))
    assert (server.status, server.headers["hangup-cause"]) == (504, "deadline")
    assert journal.fates == [("abandoned", "deadline")]


@pytest.mark.parametrize("mode", ["observe", "off"])
def test_observe_never_interferes(mode: str, journal: Journal) -> None:
    stream = Stream(spend, b"a", lambda: spend().cancel("shutdown"), b"b", spend, b"c")
    if mode == "off":
        stream = Stream(b"a", b"b", b"c")
    server = Server(HangupMiddleware(stream, mode=mode))
    assert (server.body, server.finished, server.error) == (b"abc", True, None)


# Terms


def test_a_route_gives_its_name_and_terms(journal: Journal) -> None:
    app = answering(b"x", before=spend)
    wrapped = HangupMiddleware(
        app, routes={"/chat/{id}": {"budget": 5, "tenant": "acme"}}
    )
    Server(wrapped, environ("/chat/7", SCRIPT_NAME="/api"))
    Server(wrapped, environ("/other", x_hangup_budget="2.5"))
    named, plain = journal.runs
    assert (named.name, named.tenant) == ("/chat/{id}", "acme")
    assert 0 < named.deadline.at - named.started_at <= 5
    assert plain.name == "http"
    assert 0 < plain.deadline.at - plain.started_at <= 2.5


def test_a_run_of_another_process_is_continued_and_says_so(journal: Journal) -> None:
    token = "0123456789abcdef" * 2
    header = f't="{token}", l=5000, m="observe"'
    app = answering(b"x", before=spend)
    server = Server(HangupMiddleware(app), environ(hangup=header))
    [run] = journal.runs
    assert (run.id, run.joined, run.mode) == (token, True, "observe")
    assert server.headers["hangup-settle"] == "1"


def notice(data: bytes, **more: Any) -> WSGIEnvironment:
    request = environ("/.well-known/hangup", "POST", hangup_settle="1", **more)
    request["wsgi.input"] = io.BytesIO(data)
    request["CONTENT_LENGTH"] = str(len(data))
    return request


def test_notices_are_taken_and_others_are_the_applications() -> None:
    token = "0123456789abcdef" * 2
    entry = {"token": token, "outcome": "abandoned", "cause": "killed", "ago_ms": 1}
    data = json.dumps({"settlements": [entry]}).encode()
    wrapped = HangupMiddleware(answering(b"its own", status="418 Teapot"))
    assert Server(wrapped, notice(data)).status == 204
    assert Server(wrapped, notice(data, SCRIPT_NAME="/api")).status == 204
    assert Server(wrapped, notice(b"nonsense")).status == 400
    assert Server(wrapped, notice(bytes(70_000))).status == 400
    assert Server(wrapped, notice(data) | {"REQUEST_METHOD": "PUT"}).status == 418
    assert Server(wrapped, environ("/.well-known/hangup", "POST")).status == 418
