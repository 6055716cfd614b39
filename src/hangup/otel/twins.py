"""Two reports of one call that stand beside each other, and not one in the other."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from hangup.core.tree import current_task
from hangup.otel.call import MODEL_CALLS, Call

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from hangup.core.run import Run


def twin_of(call: Call, span: Span) -> Call | None:
    """Return the open call that a span which stands in none reports once more.

    Two instrumentations of one call stand beside each other where the outer one
    does not make its span current. They are of different scopes, of one run and one
    task or thread, and the second begins before anything came of the first.
    """
    other = None if call.run is None else unanswered(call.run)
    if other is None or other.inner or other.kind != call.kind:
        return None
    models = {call.model, other.model} - {None}
    if len(models) > 1 or _scope_of(other.span) == _scope_of(span):
        return None
    return other


def unanswered(run: Run) -> Call | None:
    """Return the model call of the run that the present task or thread has open.

    One that nobody has told of yet: some spans never end.
    """
    task, thread = current_task(), threading.get_ident()
    for call in run.work.tree.opened_on(task):
        if (
            isinstance(call, Call)
            and call.span is not None
            and call.kind in MODEL_CALLS
            and call.run is run
            and not call.answered
            and (task is not None or call.thread == thread)
        ):
            return call
    return None


def _scope_of(span: object) -> str:
    scope = getattr(span, "instrumentation_scope", None)
    return str(getattr(scope, "name", ""))
