"""An agent behind Celery: imported by who sends, and by the worker (celery_worker)."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from celery import Celery  # type: ignore[import-untyped]
from openai import OpenAI

if TYPE_CHECKING:
    from collections.abc import Callable

BROKER = "BROKER"
"""The environment variable with the broker's URL, which is the backend's too."""

app = Celery("agent")
app.conf.update(
    broker_connection_retry_on_startup=True,
    broker_transport_options={"visibility_timeout": 3},
    worker_hijack_root_logger=False,
    worker_prefetch_multiplier=4,
)


def connect(url: str) -> Any:
    """Use the broker and backend there."""
    app.conf.update(broker_url=url, result_backend=url)
    return app


if BROKER in os.environ:
    connect(os.environ[BROKER])


def task(name: str, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Make a task of a function."""
    made: Callable[[Callable[..., Any]], Any] = app.task(name=name, **options)
    return made


def _ask(model: str) -> str:
    client = OpenAI(base_url=os.environ["MODEL"], api_key="test", max_retries=0)
    with (
        client,
        client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": "Well?"}],
            stream=True,
            stream_options={"include_usage": True},
        ) as stream,
    ):
        return "".join(
            chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices
        )


@task("ask")
def ask(model: str) -> str:
    """Stream one model call."""
    return _ask(model)


@task("ask_late", acks_late=True, reject_on_worker_lost=True)
def ask_late(model: str) -> str:
    return _ask(model)


@task("ask_aside", ignore_result=True)
def ask_aside(model: str) -> str:
    return _ask(model)


@task("again", bind=True, max_retries=5)
def again(self: Any, model: str, countdown: float) -> None:
    """Make a call, and want to be tried again."""
    _ask(model)
    raise self.retry(countdown=countdown)


@task("stubborn", autoretry_for=(Exception,), retry_backoff=0.1)
def stubborn(model: str) -> str:
    """Two calls, of which an error in either is tried again."""
    _ask(model)
    return _ask(model)


@task("after")
def after(_before: str, model: str) -> str:
    """The second step of a chain."""
    return _ask(model)


@task("wall")
def wall() -> float:
    """What the worker takes the time to be."""
    return time.time()
