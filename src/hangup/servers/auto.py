"""Zero code: the applications of web frameworks get a run a request by themselves.

Installed with the instrumentation, see ``HANGUP_FRAMEWORKS``. Only what nobody asked
for is different about these runs: where neither ``HANGUP_MODE`` nor a rule of the
policy file says otherwise, they are observed.
"""

from __future__ import annotations

from importlib import import_module
from typing import Final

__all__ = ["install", "uninstall"]

_ADAPTERS: Final = ("hangup.servers._asgi_auto",)


def install() -> None:
    """Wrap what is imported, and the rest when it is. Idempotent."""
    for name in _ADAPTERS:
        import_module(name).install()


def uninstall() -> None:
    """Take it back. Idempotent."""
    for name in reversed(_ADAPTERS):
        import_module(name).uninstall()
