"""A forked child is a process of its own: what its parent counted is not its own.

The SDK gives the child another ``service.instance.id`` and threads, but leaves it every
sum of the parent, which it would report once more as its own, and every lock, which
somebody may have held. Here hangup's instruments begin at zero in the child.

The order matters: nothing may be read before everything is renewed. So whoever has to
do something in a forked child says so here.
"""

from __future__ import annotations

import os
import sys
import threading
import uuid
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any

from opentelemetry.sdk.resources import SERVICE_INSTANCE_ID, Resource

from hangup.core import registry
from hangup.core.current import position
from hangup.core.guard import guarded
from hangup.otel import names

if TYPE_CHECKING:
    from collections.abc import Callable

    from hangup.core.run import Run

_Calls = list["weakref.WeakMethod[Callable[[], None]]"]
_first: _Calls = []
_then: _Calls = []
_adopted: list[Run] = []
# What multiprocessing holds weakly.
_ending: list[Callable[[], None]] = []


def first(call: Callable[[], None]) -> None:
    """Call a bound method in every forked child; its object is held weakly."""
    _note(_first, call)


def then(call: Callable[[], None]) -> None:
    """Do the same, once all that was given to :func:`first` has been called."""
    _note(_then, call)


def _note(calls: _Calls, call: Callable[[], None]) -> None:
    calls[:] = [one for one in calls if one() is not None]
    calls.append(weakref.WeakMethod(call))


def _in_child() -> None:
    for one in (*_first, *_then):
        call = one()
        if call is not None:
            guarded(call)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


def renew_sums(meters: Any) -> None:
    """Let hangup's instruments begin at zero, and take locks nobody holds.

    In a forked child only. The SDK has no call for it; with another one nothing is
    done. Instruments of others keep what they have.
    """
    consumer = getattr(meters, "_measurement_consumer", None)
    for reader, storage in dict(getattr(consumer, "_reader_storages", {})).items():
        matches = getattr(storage, "_instrument_view_instrument_matches", {})
        for instrument in tuple(matches):
            scope = getattr(instrument, "instrumentation_scope", None)
            if getattr(scope, "name", None) == names.SCOPE:
                del matches[instrument]
        _renew_lock(storage, "_lock", threading.RLock)
        _renew_lock(reader, "_export_lock", threading.Lock)
    if consumer is not None:
        _renew_lock(consumer, "_lock", threading.Lock)


def _renew_lock(owner: object, name: str, make: Callable[[], object]) -> None:
    if hasattr(owner, name):
        setattr(owner, name, make())


def renew_identity(*providers: Any) -> None:
    """Give the child a ``service.instance.id`` of its own, where the SDK does not."""
    own = Resource({SERVICE_INSTANCE_ID: str(uuid.uuid4())})
    for provider in providers:
        if provider is None or hasattr(provider, "_handle_fork"):
            continue
        for holder, name in (
            (provider, "_resource"),
            (getattr(provider, "_sdk_config", None), "resource"),
        ):
            found = getattr(holder, name, None)
            if isinstance(found, Resource):
                setattr(holder, name, found.merge(own))


def conclude() -> None:
    """Say that the child has done its part of the run it was forked in.

    At its end. What became of that part the parent knows; where it does not tell, the
    part counts as delivered, as that of any process which helped.
    """
    for run in _adopted:
        guarded(run.deliver)
    _adopted.clear()


def at_exit(call: Callable[[], None]) -> None:
    """Call at the end of a child that :mod:`multiprocessing` forked.

    Such a one ends without the functions of :mod:`atexit`. To be called in the child,
    right after the fork.
    """
    util = sys.modules.get("multiprocessing.util")
    if util is not None:
        _ending[:] = [partial(_finalize, util, call)]
        util.register_after_fork(_ending[0], _call)


def _call(what: Callable[[], None]) -> None:
    what()


def _finalize(util: Any, call: Callable[[], None]) -> None:
    util.Finalize(None, call, exitpriority=0)


def adopt(started: Callable[[Run], None]) -> None:
    """Go on with the run that the child was forked in, as one of another process.

    Its outcome is its parent's to count. What the child spends is its own, in books
    that begin empty.

    Args:
        started: Opens the books of a run.
    """
    here = position()
    chain: list[Run] = []
    run = None if here is None else here.run
    while run is not None:
        chain.append(run)
        run = run.parent
    _adopted[:] = chain[-1:]
    for one in reversed(chain):
        one.joined = one.parent is None
        if one.ledger is not None and one.closed_at is None:
            registry.add(one)
            started(one)
