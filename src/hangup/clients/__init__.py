"""What is called from inside a run: one adapter for each library.

All are installed together. Nothing here is imported before :func:`install`, and a
library that is not there is not missed.
"""

from __future__ import annotations

from importlib import import_module
from typing import Final

__all__ = ["install", "uninstall"]

_ADAPTERS: Final = (
    "hangup.clients.settle",
    "hangup.clients.background",
    "hangup.clients.celery",
    "hangup.clients.docket",
    "hangup.clients.httpx",
    "hangup.clients.streams",
    "hangup.clients.grpc",
    "hangup.clients.psycopg",
    "hangup.clients.gates",
    "hangup.clients.retries",
    "hangup.clients.threads",
    "hangup.clients.queues",
    "hangup.clients.generators",
    "hangup.clients.langchain",
    "hangup.clients.langgraph",
    "hangup.clients.openai_agents",
    "hangup.clients.mcp",
    "hangup.clients.a2a",
)


def install() -> None:
    """Install every adapter whose library can be imported. Idempotent."""
    for name in _ADAPTERS:
        import_module(name).install()


def uninstall() -> None:
    """Take every adapter away again, after sending what is queued. Idempotent."""
    for name in reversed(_ADAPTERS):
        import_module(name).uninstall()
