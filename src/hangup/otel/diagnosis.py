"""Tells ``hangup doctor`` about the process it runs in, on request.

Where ``HANGUP_DOCTOR`` names a directory, the process listens on the Unix socket
``PID.sock`` in it and answers each connection with one JSON object: its facts
(:mod:`hangup.otel.diagnosis_facts`), or whether it is busy. What it knew last it leaves
in ``PID.json`` when it ends. Without the variable nothing of this is even imported.
Facts hold no prompt, no header, no id of a run: names of hosts, tools, classes, and
numbers.

The doctor's own command sets the variable; a service that sets it itself can be looked
at while it runs.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import socket
import stat
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hangup.core.guard import guarded

if TYPE_CHECKING:
    from hangup.otel.instrumentor import HangupInstrumentor

VARIABLE: Final = "HANGUP_DOCTOR"
"""Environment variable with the directory; read once, when the process starts."""
PULSE: Final = b"pulse"
"""What a doctor asks who wants to know whether the process is busy; else "facts"."""
_PATIENCE: Final = 10.0  # seconds for a doctor to read what it asked for
_BEFORE_FORK: Final = 2.0  # seconds that a fork waits for an answer to be given
_logger = logging.getLogger("hangup")


class _Probe:
    """Listens in one process, and anew in each fork of it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._parent: int | None = None
        self._answering = threading.Lock()
        self._forking: int | None = None  # the thread that holds it for a fork
        self._socket: socket.socket | None = None

    def start(self) -> None:
        """Listen, on a thread that ends with the process."""
        path = self._directory / f"{os.getpid()}.sock"
        with contextlib.suppress(FileNotFoundError):
            path.unlink()  # of what ran under this number before, or before an exec
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listening.bind(str(path))
        listening.listen(4)
        self._socket = listening
        threading.Thread(
            target=self._serve, args=(listening,), name="hangup-doctor", daemon=True
        ).start()

    def before_fork(self) -> None:
        """Let an answer be finished: it may import, and a child would wait for that.

        Not for ever: who forks may be importing what the answer waits for.
        """
        if self._answering.acquire(timeout=_BEFORE_FORK):
            self._forking = threading.get_ident()

    def after_fork_here(self) -> None:
        """Go on answering."""
        if self._forking == threading.get_ident():  # else it was not waited for
            self._forking = None
            self._answering.release()

    def after_fork(self) -> None:
        """Listen for oneself; the parent's socket is the parent's."""
        self._answering = threading.Lock()
        self._forking = None
        if self._socket is not None:
            self._socket.close()
            self._parent = os.getppid()
            guarded(self.start)

    def _serve(self, listening: socket.socket) -> None:
        while True:
            try:
                caller, _ = listening.accept()
            except OSError:  # closed: the process ends
                return
            with contextlib.closing(caller):
                guarded(self._answer, caller)

    def _answer(self, caller: socket.socket) -> None:
        caller.settimeout(_PATIENCE)
        with contextlib.suppress(OSError):  # a doctor that went away
            if caller.recv(16).strip() == PULSE:
                caller.sendall(_pulse())
                return
            with self._answering:
                facts = self._facts()
            caller.sendall(facts)

    def _facts(self) -> bytes:
        # Only now: a process that nobody looks at does not import it.
        from hangup.otel import diagnosis_facts  # noqa: PLC0415

        return json.dumps(diagnosis_facts.collect(self._parent)).encode()

    def last_words(self) -> None:
        """Leave the facts in a file, and the socket no more."""
        path = self._directory / f"{os.getpid()}.json"
        facts = self._facts()
        beside = path.with_suffix(".part")
        beside.write_bytes(facts)
        beside.rename(path)
        self.stop()
        with contextlib.suppress(FileNotFoundError):
            path.with_suffix(".sock").unlink()

    def stop(self) -> None:
        """Listen no more. Idempotent."""
        listening, self._socket = self._socket, None
        if listening is not None:
            with contextlib.suppress(OSError):
                listening.shutdown(socket.SHUT_RDWR)  # or its thread would not notice
            listening.close()


def _pulse() -> bytes:
    """Return how much it has imported and how many seconds it has worked."""
    cpu = time.process_time()
    about = {"pid": os.getpid(), "modules": len(sys.modules), "cpu": cpu}
    return json.dumps(about).encode()


class _State:
    probe: _Probe | None = None


def start_if_asked() -> None:
    """Listen where ``HANGUP_DOCTOR`` says so. Idempotent, never raises."""
    directory = os.environ.get(VARIABLE)
    if directory and _State.probe is None:
        guarded(_start, Path(directory))


def watch(instrumentor: HangupInstrumentor | None) -> None:
    """Listen, and take note of what its parts see, if one is given. Never raises."""
    start_if_asked()
    if _State.probe is not None and instrumentor is not None:
        from hangup.otel import diagnosis_sightings  # noqa: PLC0415

        guarded(diagnosis_sightings.watch, instrumentor)


def _start(directory: Path) -> None:
    if not hasattr(socket, "AF_UNIX") or not _is_ours(directory):
        _logger.warning(
            "%s names %s, which is no directory that belongs to this user alone: "
            "hangup doctor will not hear from this process",
            VARIABLE,
            directory,
        )
        return
    _State.probe = probe = _Probe(directory)
    probe.start()
    atexit.register(guarded, probe.last_words)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(
            before=probe.before_fork,
            after_in_parent=probe.after_fork_here,
            after_in_child=probe.after_fork,
        )


def _is_ours(directory: Path) -> bool:
    """Whether only this user can put files there, so that what it reads is true."""
    try:
        about: Any = directory.stat()
    except OSError:
        return False
    others_write = about.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return bool(
        stat.S_ISDIR(about.st_mode)
        and about.st_uid == os.geteuid()
        and not others_write
    )
