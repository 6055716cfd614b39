"""The same agent in FastAPI, Starlette, Litestar and Django, by the path's first words.

Each as a JSON, a streaming and, but for Django, a WebSocket endpoint below
``/FRAMEWORK/{thread}``; each in three stacks: hangup alone, and with a function-style
middleware of Starlette around it or inside.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import django  # type: ignore[import-untyped]
import fastapi
import litestar
from django.conf import settings  # type: ignore[import-untyped]
from django.core.asgi import get_asgi_application  # type: ignore[import-untyped]
from django.core.signals import request_finished  # type: ignore[import-untyped]
from django.http import HttpRequest, HttpResponseBase, JsonResponse  # type: ignore[import-untyped]
from django.http import StreamingHttpResponse as DjangoStreaming
from django.urls import path as django_path  # type: ignore[import-untyped]
from litestar.response import Stream
from starlette.applications import Starlette
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from support.leaf import ask, lifespan, pieces

from hangup.servers.asgi import HangupMiddleware

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping

    from starlette.requests import Request
    from starlette.websockets import WebSocket

    Scope = MutableMapping[str, Any]
    App = Callable[[Scope, Any, Any], Awaitable[None]]

# FastAPI

_router = fastapi.APIRouter(prefix="/fastapi/{thread}")


@_router.get("/json")
async def fastapi_json(thread: int, model: str = "long") -> dict[str, str]:
    return {"answer": await ask(model)}


@_router.get("/stream")
async def fastapi_stream(thread: int, model: str = "long") -> StreamingResponse:
    return StreamingResponse(pieces(model))


@_router.websocket("/ws")
async def fastapi_ws(socket: fastapi.WebSocket, thread: int) -> None:
    await socket.accept()
    await socket.send_text(await ask(socket.query_params.get("model", "long")))
    await socket.close()


of_fastapi = fastapi.FastAPI()
of_fastapi.include_router(_router)


@of_fastapi.middleware("http")
async def fastapi_middleware(request: fastapi.Request, call_next: Any) -> Any:
    return await call_next(request)


# Starlette


async def starlette_json(request: Request) -> Response:
    return JSONResponse(
        {"answer": await ask(request.query_params.get("model", "long"))}
    )


async def starlette_stream(request: Request) -> Response:
    return StreamingResponse(pieces(request.query_params.get("model", "long")))


async def starlette_ws(socket: WebSocket) -> None:
    await socket.accept()
    await socket.send_text(await ask(socket.query_params.get("model", "long")))
    await socket.close()


of_starlette = Starlette(
    routes=[
        Route("/starlette/{thread}/json", starlette_json),
        Route("/starlette/{thread}/stream", starlette_stream),
        WebSocketRoute("/starlette/{thread}/ws", starlette_ws),
    ]
)

# Litestar


@litestar.get("/litestar/{thread:int}/json")
async def litestar_json(thread: int, model: str = "long") -> dict[str, str]:
    return {"answer": await ask(model)}


@litestar.get("/litestar/{thread:int}/stream")
async def litestar_stream(thread: int, model: str = "long") -> Stream:
    return Stream(pieces(model))


@litestar.websocket("/litestar/{thread:int}/ws")
async def litestar_ws(socket: litestar.WebSocket[Any, Any, Any], thread: int) -> None:
    await socket.accept()
    await socket.send_text(await ask(socket.query_params.get("model", "long")))
    await socket.close()


of_litestar = litestar.Litestar([litestar_json, litestar_stream, litestar_ws])

# Django


async def django_json(request: HttpRequest, thread: int) -> HttpResponseBase:
    return JsonResponse({"answer": await ask(request.GET.get("model", "long"))})


async def django_stream(request: HttpRequest, thread: int) -> HttpResponseBase:
    return DjangoStreaming(pieces(request.GET.get("model", "long")))


urlpatterns = [
    django_path("django/<int:thread>/json", django_json),
    django_path("django/<int:thread>/stream", django_stream),
]
settings.configure(
    ROOT_URLCONF=__name__,
    ALLOWED_HOSTS=["*"],
    SECRET_KEY="of no use",  # noqa: S106  nothing is signed
    LOGGING_CONFIG=None,
    MIDDLEWARE=["django.middleware.common.CommonMiddleware"],
)
django.setup()
of_django = get_asgi_application()


class Django:
    """What is heard of Django's own requests."""

    finished = 0


def _finished(**_signal: object) -> None:
    Django.finished += 1


request_finished.connect(_finished)

# Together


async def _dispatch(request: Request, call_next: Any) -> Any:
    return await call_next(request)


def _around(app: Any) -> App:
    return BaseHTTPMiddleware(HangupMiddleware(app), dispatch=_dispatch)


def _inside(app: Any) -> App:
    return HangupMiddleware(BaseHTTPMiddleware(app, dispatch=_dispatch))


FRAMEWORKS: dict[str, Any] = {
    "fastapi": of_fastapi,
    "starlette": of_starlette,
    "litestar": of_litestar,
    "django": of_django,
}
STACKS = {"alone": HangupMiddleware, "around": _around, "inside": _inside}
_apps = {
    (stack, framework): wrap(app)
    for framework, app in FRAMEWORKS.items()
    for stack, wrap in STACKS.items()
}
_lifespan = HangupMiddleware(Starlette(lifespan=lifespan))


async def app(scope: Scope, receive: Any, send: Any) -> None:
    """Serve ``/STACK/FRAMEWORK/...`` as ``/FRAMEWORK/...`` of that application."""
    if scope["type"] == "lifespan":
        await _lifespan(scope, receive, send)
        return
    if scope["path"] == "/finished":
        await JSONResponse(Django.finished)(scope, receive, send)
        return
    _, stack, framework, rest = scope["path"].split("/", 3)
    path = f"/{framework}/{rest}"
    inner = {**scope, "path": path, "raw_path": path.encode()}
    await _apps[stack, framework](inner, receive, send)
