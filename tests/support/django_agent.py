"""The blocking agent, in Django."""

from __future__ import annotations

from typing import TYPE_CHECKING

import django  # type: ignore[import-untyped]
from django.conf import settings  # type: ignore[import-untyped]
from django.core.wsgi import get_wsgi_application  # type: ignore[import-untyped]
from django.http import (  # type: ignore[import-untyped]
    HttpResponseBase,
    JsonResponse,
    StreamingHttpResponse,
)
from django.urls import path  # type: ignore[import-untyped]
from support import blocking

from hangup.servers.wsgi import HangupMiddleware

if TYPE_CHECKING:
    from django.http import HttpRequest


def whole(_request: HttpRequest, kind: str) -> HttpResponseBase:
    """Answer when the whole of the model's answer has come."""
    return JsonResponse({"text": "".join(blocking.pieces())})


def stream(_request: HttpRequest, kind: str) -> HttpResponseBase:
    """Hand on what the model says as it comes."""
    return StreamingHttpResponse(blocking.pieces(), content_type="text/plain")


def stubborn(_request: HttpRequest, kind: str) -> HttpResponseBase:
    """Wait for a model in a way that cannot be stopped, then ask it again."""
    return JsonResponse({"text": [blocking.whole(), blocking.whole()]})


async def asynchronous(_request: HttpRequest, kind: str) -> HttpResponseBase:
    """The same in a view that Django runs in a loop of its own."""
    return JsonResponse({"text": await blocking.gathered()})


urlpatterns = [
    path("<str:kind>/json", whole),
    path("<str:kind>/stream", stream),
    path("<str:kind>/stubborn", stubborn),
    path("<str:kind>/async", asynchronous),
]
settings.configure(
    ROOT_URLCONF=__name__,
    ALLOWED_HOSTS=["*"],
    SECRET_KEY="of a test",  # noqa: S106  it keeps no secret
    MIDDLEWARE=["django.middleware.common.CommonMiddleware"],
)
django.setup()
app = HangupMiddleware(get_wsgi_application(), routes=blocking.ROUTES)
