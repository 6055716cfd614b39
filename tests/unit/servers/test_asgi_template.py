"""The name of a run where nobody chose one: the template, never the path."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from hangup.core import guard
from hangup.servers._asgi_template import template

PATH = {"path": "/threads/7"}


@pytest.mark.parametrize(
    ("scope", "found"),
    [
        ({"route": SimpleNamespace(path="/threads/{id}")}, "/threads/{id}"),
        ({"path_template": "/threads/{id}"}, "/threads/{id}"),
        ({"route": SimpleNamespace(path=""), "path_template": ""}, None),
        ({"route": SimpleNamespace(path=7)}, None),
        ({"route": object()}, None),
        ({}, None),
    ],
)
def test_what_frameworks_put_into_the_scope(
    scope: dict[str, Any], found: str | None
) -> None:
    assert template({**PATH, **scope}) == found


class NotFoundError(Exception):
    pass


@pytest.fixture
def urls(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Django's way to find a route, in a process that serves with it."""
    module: Any = ModuleType("django.urls")
    module.Resolver404 = NotFoundError
    monkeypatch.setitem(sys.modules, "django.urls", module)
    served = ModuleType("django.core.handlers.asgi")
    monkeypatch.setitem(sys.modules, "django.core.handlers.asgi", served)
    return module


@pytest.mark.parametrize(
    ("route", "name"),
    [
        ("threads/<int:id>", "/threads/<int:id>"),
        ("^threads/(?P<id>[0-9]+)$", "/threads/(?P<id>[0-9]+)$"),
        ("", None),
    ],
)
def test_django_is_asked_below_its_root_path(
    urls: Any, route: str, name: str | None
) -> None:
    asked: list[str] = []

    def resolve(path: str) -> object:
        asked.append(path)
        return SimpleNamespace(route=route)

    urls.resolve = resolve
    assert template({"path": "/api/threads/7", "root_path": "/api"}) == name
    assert template(PATH) == name
    assert asked == ["/threads/7"] * 2


def test_django_may_not_know_either(urls: Any) -> None:
    def resolve(_path: str) -> object:
        raise NotFoundError

    urls.resolve = resolve
    assert template(PATH) is None


def test_a_url_configuration_that_is_broken_is_not_our_affair(urls: Any) -> None:
    def resolve(_path: str) -> object:
        raise LookupError("no ROOT_URLCONF")

    urls.resolve = resolve
    guard.strict(on=False)
    assert template(PATH) is None
