"""Reads what Prometheus would read."""

from __future__ import annotations

import http.client
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Final

from hangup.cli._doctor_evidence import Source, read_prometheus
from hangup.cli._doctor_launch import CouldNotLookError
from hangup.otel import names

if TYPE_CHECKING:
    from hangup.cli._doctor_evidence import Sample

_TIMES: Final = 6
"""Scrapes of one URL: enough to meet a second worker that hides behind it."""
_APART: Final = 0.05  # seconds
_PATIENCE: Final = 5.0  # seconds for one scrape
_MOST_BYTES: Final = 16 << 20
_IDENTITY: Final = ("service_instance_id", "instance", "pid")


def scrape(url: str) -> Source:
    """Read a page several times, each on a connection of its own.

    Raises:
        CouldNotLookError: It cannot be read.
    """
    source = Source(url)
    seen: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    identity: str | None = None
    jumps: dict[str, None] = {}
    for turn in range(_TIMES):
        if turn:
            time.sleep(_APART)
        source.samples = read_prometheus(fetch(url).decode(errors="replace"))
        for sample in source.samples:
            if sample.name == "target_info":
                now = _identity(sample)
                if identity is not None and now != identity:
                    jumps["now one process answers and now another"] = None
                identity = now
            elif _only_grows(sample):
                key = (sample.name, tuple(sorted(sample.labels.items())))
                if sample.value < seen.get(key, 0.0):
                    jumps["now one process answers and now another"] = None
                seen[key] = sample.value
    source.jumps = list(jumps)
    return source


def _only_grows(sample: Sample) -> bool:
    # As Prometheus wrote it, or a counter of ours under its own name.
    return sample.name.endswith("_total") or sample.name in _OUR_COUNTERS


_OUR_COUNTERS: Final = frozenset(
    (
        *(names.TOKENS, names.CALLS, names.RUNS, names.METERED_TOKENS),
        *(names.COST, names.METERED_COST, names.REFUSALS),
    )
)


def _identity(sample: Sample) -> str:
    return " ".join(
        value for key, value in sorted(sample.labels.items()) if key in _IDENTITY
    )


def fetch(url: str) -> bytes:
    """Return what a URL answers.

    Raises:
        CouldNotLookError: It does not answer, or not with a success.
    """
    if not url.startswith(("http://", "https://")):
        raise CouldNotLookError(f"{url} is no http or https URL")
    # No proxy: what is asked for stands in the user's own network.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=_PATIENCE) as answer:
            return bytes(answer.read(_MOST_BYTES))
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        if isinstance(error, urllib.error.HTTPError):
            error.close()  # it is the answer, too
        raise CouldNotLookError(f"{url} cannot be read: {reason}") from error
