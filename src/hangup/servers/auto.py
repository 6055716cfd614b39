"""Zero code: the applications of web frameworks get a run a request by themselves.

Installed with the instrumentation, see ``HANGUP_FRAMEWORKS``. Only what nobody asked
for is different about these runs: where neither ``HANGUP_MODE`` nor a rule of the
policy file says otherwise, they are observed.
"""

from __future__ import annotations

from hangup.servers._asgi_auto import install, uninstall

__all__ = ["install", "uninstall"]
