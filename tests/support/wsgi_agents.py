"""Both blocking agents in one process: Flask at the top, Django below ``/django``."""

from __future__ import annotations

from support import django_agent, flask_agent
from werkzeug.middleware.dispatcher import DispatcherMiddleware

app = DispatcherMiddleware(flask_agent.app, {"/django": django_agent.app})
