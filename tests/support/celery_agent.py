"""An agent behind Celery: imported by who sends, and by the worker (celery_worker).

Every :func:`connect` makes an application of its own: Celery's never let go of the
broker that they began with.
"""

from __future__ import annotations

import os
import time
from typing import Any

from celery import Celery  # type: ignore[import-untyped]
from openai import OpenAI

BROKER = "BROKER"
"""The environment variable with the broker's URL, which is the backend's too."""

app: Any = None
ask: Any = None
ask_late: Any = None
ask_aside: Any = None
again: Any = None
stubborn: Any = None
after: Any = None
wall: Any = None


def _ask(model: str) -> str:
    """Stream one model call."""
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


def _again(self: Any, model: str, countdown: float) -> None:
    """Make a call, and want to be tried again."""
    _ask(model)
    raise self.retry(countdown=countdown)


def _stubborn(model: str) -> str:
    """Two calls, of which an error in either is tried again."""
    _ask(model)
    return _ask(model)


def _after(_before: str, model: str) -> str:
    """The second step of a chain."""
    return _ask(model)


def _wall() -> float:
    """What the worker takes the time to be."""
    return time.time()


_TASKS: dict[str, tuple[Any, dict[str, Any]]] = {
    "ask": (_ask, {}),
    "ask_late": (_ask, {"acks_late": True, "reject_on_worker_lost": True}),
    "ask_aside": (_ask, {"ignore_result": True}),
    "again": (_again, {"bind": True, "max_retries": 5}),
    "stubborn": (_stubborn, {"autoretry_for": (Exception,), "retry_backoff": 0.1}),
    "after": (_after, {}),
    "wall": (_wall, {}),
}


def connect(url: str) -> Any:
    """Make the application that uses the broker and backend there."""
    made = Celery("agent", broker=url, backend=url)
    made.conf.update(
        broker_connection_retry_on_startup=True,
        broker_transport_options={"visibility_timeout": 3},
        worker_hijack_root_logger=False,
        worker_prefetch_multiplier=4,
    )
    globals()["app"] = made
    for name, (function, options) in _TASKS.items():
        globals()[name] = made.task(name=name, **options)(function)
    return made
