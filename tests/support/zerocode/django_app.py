"""Django, on ASGI."""

from __future__ import annotations

from typing import TYPE_CHECKING

import django  # type: ignore[import-untyped]
from django.conf import settings  # type: ignore[import-untyped]
from django.core.asgi import get_asgi_application  # type: ignore[import-untyped]
from django.http import HttpResponseBase, JsonResponse  # type: ignore[import-untyped]
from django.urls import path  # type: ignore[import-untyped]
from support.zerocode.agent import answer

if TYPE_CHECKING:
    from django.http import HttpRequest


async def ask(_request: HttpRequest, thread: str) -> HttpResponseBase:
    return JsonResponse({"answer": await answer(thread)})


urlpatterns = [path("ask/<str:thread>", ask)]
settings.configure(
    ROOT_URLCONF=__name__,
    ALLOWED_HOSTS=["*"],
    SECRET_KEY="of no use",  # noqa: S106  nothing is signed
    LOGGING_CONFIG=None,
)
django.setup()
app = get_asgi_application()
