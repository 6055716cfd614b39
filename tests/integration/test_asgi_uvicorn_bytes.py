"""Under a real uvicorn a request that is nobody's business is as without hangup."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from typing import TYPE_CHECKING, Any

import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from support.agents import installed, spending
from support.asgi import Journal
from support.servers import Served, read_all

from hangup.core import registry
from hangup.servers.asgi import HangupMiddleware

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from starlette.requests import Request
    from support.asgi import Message, Scope

    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]

pytestmark = pytest.mark.timeout(60)

HTTP = ["httptools", "h11"]


@pytest.fixture(scope="module", autouse=True)
def _installed() -> Iterator[None]:
    with installed():
        yield


@pytest.fixture
def journal() -> Iterator[Journal]:
    observer = Journal()
    registry.add_observer(observer)
    yield observer
    registry.remove_observer(observer)


@pytest.mark.parametrize("http", HTTP)
@pytest.mark.parametrize("reads", [False, True], ids=["deaf", "reading"])
def test_a_plain_save_finishes_its_write_after_its_client_left(
    journal: Journal, http: str, *, reads: bool
) -> None:
    came, left, written = threading.Event(), asyncio.Event(), threading.Event()

    async def save(request: Request) -> Response:
        data = await request.body()
        came.set()
        if reads:
            while (await request.receive())["type"] != "http.disconnect":
                pass
        await left.wait()
        await asyncio.sleep(0.02)
        assert data == b"precious"
        written.set()
        return JSONResponse({})

    app = Starlette(routes=[Route("/save", save, methods=["POST"])])
    with Served(HangupMiddleware(app, budget=0.001), http=http) as server:
        sock = server.connect()
        sock.sendall(
            b"POST /save HTTP/1.1\r\nHost: x\r\nContent-Length: 8\r\n\r\nprecious"
        )
        assert came.wait(10)
        sock.close()
        server.gone()

        async def tell() -> None:
            left.set()

        server.submit(tell()).result(10)
        assert written.wait(10)
        server.idle()
    assert journal.events == []


# Byte for byte


class Digest:
    """Spends where it is told to, reads the body, answers with what it got."""

    def __init__(self, spends: str) -> None:
        self.spends = spends

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        digest, length = hashlib.sha256(), 0
        if self.spends == "before":
            with spending():
                pass
        more = True
        while more:
            message = await receive()
            assert message["type"] == "http.request"
            digest.update(message["body"])
            length += len(message["body"])
            more = message["more_body"]
            if self.spends == "within" and length > 1000:
                with spending():
                    pass
        text = f"{length} {digest.hexdigest()}".encode()
        fields = [(b"content-length", str(len(text)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": fields})
        await send({"type": "http.response.body", "body": text})


def post(framing: str) -> bytes:
    """The head of a request whose answer ends with the connection."""
    return (
        f"POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{framing}\r\n\r\n"
    ).encode()


def upload(app: Any, http: str, size: int, *, chunked: bool) -> bytes:
    """Send ``size`` bytes and return the raw bytes of the answer."""
    piece = bytes(range(256)) * 256
    framing = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {size}"
    with Served(app, http=http, lifespan="off") as server, server.connect() as sock:
        sock.sendall(post(framing))
        for _ in range(size // len(piece)):
            if chunked:
                sock.sendall(b"%x\r\n" % len(piece) + piece + b"\r\n")
            else:
                sock.sendall(piece)
        if chunked:
            sock.sendall(b"0\r\n\r\n")
        return read_all(sock)


@pytest.mark.parametrize(
    ("http", "size", "chunked"),
    [
        ("httptools", 100 * 2**20, False),
        ("httptools", 20 * 2**20, True),
        ("h11", 10 * 2**20, False),
        ("h11", 10 * 2**20, True),
    ],
)
def test_a_large_upload_arrives_and_is_answered_byte_for_byte_as_without(
    http: str, size: int, *, chunked: bool
) -> None:
    bare = upload(Digest("never"), http, size, chunked=chunked)
    digest = hashlib.sha256()
    for _ in range(size // 2**16):
        digest.update(bytes(range(256)) * 256)
    assert bare.endswith(f"{size} {digest.hexdigest()}".encode())
    for spends in ("never", "before", "within"):
        app = HangupMiddleware(Digest(spends))
        assert upload(app, http, size, chunked=chunked) == bare


@pytest.mark.parametrize("chunked", [False, True])
def test_an_upload_the_application_does_not_read_is_held_back(*, chunked: bool) -> None:
    size, buffers = 16 * 2**20, 2**16
    go, came = asyncio.Event(), threading.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        with spending():
            came.set()
            await go.wait()
        await Digest("never")(scope, receive, send)

    with (
        Served(HangupMiddleware(app), lifespan="off", receive_buffer=buffers) as server,
        server.connect(send_buffer=buffers) as sock,
    ):
        framing = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {size}"
        sock.sendall(post(framing))
        assert came.wait(10)
        piece = bytes(2**16)
        framed = b"%x\r\n" % len(piece) + piece + b"\r\n" if chunked else piece
        data = memoryview(framed * (size // len(piece)))
        sock.settimeout(0.3)
        sent = 0
        try:
            while sent < len(data):
                sent += sock.send(data[sent : sent + 2**16])
        except TimeoutError:
            pass
        assert sent < size // 8
        sock.settimeout(10)

        async def tell() -> None:
            go.set()

        server.submit(tell()).result(10)
        sock.sendall(data[sent:])
        if chunked:
            sock.sendall(b"0\r\n\r\n")
        digest = hashlib.sha256(bytes(size)).hexdigest()
        assert read_all(sock).endswith(f"{size} {digest}".encode())


class Expecting:
    """Lets its client wait, then reads the body or turns it down unread."""

    def __init__(self, *, reads: bool, spends: bool) -> None:
        self.reads = reads
        self.spends = spends

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.spends:
            with spending():
                # Time for a reader that is too eager.
                await asyncio.sleep(0.05)
        status, text = 413, b"no"
        if self.reads:
            status, text = 200, (await receive())["body"]
        fields = [(b"content-length", str(len(text)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": fields})
        await send({"type": "http.response.body", "body": text})


def expecting(app: Any, http: str) -> bytes:
    """Do as curl does: send the body on 100, not at all on a final status."""
    with Served(app, http=http, lifespan="off") as server, server.connect() as sock:
        sock.sendall(
            b"POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
            b"Expect: 100-continue\r\nContent-Length: 5\r\n\r\n"
        )
        first = b""
        while b"\r\n\r\n" not in first:
            first += sock.recv(65536)
        if first.startswith(b"HTTP/1.1 100"):
            sock.sendall(b"hello")
        return first + read_all(sock)


@pytest.mark.parametrize("http", HTTP)
@pytest.mark.parametrize("reads", [False, True], ids=["turned down", "read"])
def test_expect_100_continue_is_byte_for_byte_as_without(
    http: str, *, reads: bool
) -> None:
    bare = expecting(Expecting(reads=reads, spends=False), http)
    assert bare.startswith(b"HTTP/1.1 100" if reads else b"HTTP/1.1 413")
    for spends in (False, True):
        app = HangupMiddleware(Expecting(reads=reads, spends=spends))
        assert expecting(app, http) == bare
