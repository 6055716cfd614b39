"""Every setting of hangup: one table, read from the environment or given as keywords.

A setting named ``budget`` is the environment variable ``HANGUP_BUDGET`` and the keyword
``budget``. Wrong values raise :class:`~hangup.errors.ConfigError` where they are given,
never on the span path.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from hangup import readers
from hangup.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

ENV_PREFIX = "HANGUP_"


class Mode(StrEnum):
    """How far hangup goes, from least to most intrusive."""

    OFF = "off"
    """Do nothing at all."""
    OBSERVE = "observe"
    """Measure, never interfere."""
    REFUSE = "refuse"
    """Refuse new spending calls of an abandoned run; cut nothing in flight."""
    ENFORCE = "enforce"
    """Refuse new spending calls, and stop what is in flight."""

    @property
    def refuses(self) -> bool:
        """Whether a new spending call of an abandoned run is refused."""
        return self in (Mode.REFUSE, Mode.ENFORCE)

    def least(self, other: Mode | None) -> Mode:
        """Return the less intrusive of the two; None has no opinion."""
        if other is None:
            return self
        return min(self, other, key=list(Mode).index)


class OnDisconnect(StrEnum):
    """What the client's leaving means for a run that is not over."""

    ABANDON = "abandon"
    """Nobody will receive the result: the run is abandoned."""
    GRACE = "grace"
    """The client has some seconds to come back; see ``Run.reattach``."""
    FINISH = "finish"
    """It is recorded, and the run goes on to its end."""


def _mode(name: str, value: object) -> Mode:
    if value is False:
        return Mode.OFF  # YAML takes a plain off for that
    try:
        return Mode(str(value).strip().lower())
    except ValueError:
        choices = ", ".join(Mode)
        raise ConfigError(name, value, f"choose one of {choices}") from None


def read_mode(name: str, value: object) -> Mode | None:
    """Return the mode ``value`` names; None has no opinion.

    Raises:
        ConfigError: It names none; says which there are.
    """
    return None if value is None else _mode(name, value)


def _on_disconnect(name: str, value: object) -> OnDisconnect:
    try:
        return OnDisconnect(str(value).strip().lower())
    except ValueError:
        choices = ", ".join(OnDisconnect)
        raise ConfigError(name, value, f"choose one of {choices}") from None


def read_on_disconnect(name: str, value: object) -> OnDisconnect | None:
    """Return the meaning ``value`` names; None has no opinion.

    Raises:
        ConfigError: It names none; says which there are.
    """
    return None if value is None else _on_disconnect(name, value)


def read_seconds(name: str, value: object) -> float | None:
    """Return seconds, zero or more; None has no opinion.

    Raises:
        ConfigError: It is negative, NaN, or not a number.
    """
    return None if value is None else readers.seconds(name, value)


# ruff: noqa: RUF009  the table below is made of calls of this one
def _setting(default: object, read: Callable[[str, object], object], doc: str) -> Any:
    metadata = {"read": read, "doc": doc}
    if isinstance(default, dict):
        return field(default_factory=lambda: dict(default), metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True)
class Settings:
    """A checked, immutable set of settings. Thread-safe."""

    mode: Mode | None = _setting(
        None,
        read_mode,
        "off, observe, refuse or enforce. Where set, a ceiling over every run, also "
        "those opened in code. Unset: zero-code traffic is observed, runs opened in "
        "code enforce.",
    )
    budget: float | None = _setting(
        None,
        read_seconds,
        "Default budget in seconds of an HTTP request; unset is no deadline.",
    )
    max_budget: float | None = _setting(
        3600.0,
        read_seconds,
        "The most time in seconds that an inbound deadline may claim.",
    )
    budget_header: str = _setting(
        "x-hangup-budget",
        readers.text,
        "Request header with a budget in seconds; it may only tighten.",
    )
    on_disconnect: OnDisconnect = _setting(
        OnDisconnect.ABANDON,
        _on_disconnect,
        "What a server makes of a client that leaves a run: abandon, grace (it has "
        "HANGUP_GRACE seconds to come back) or finish (the run goes on to its end).",
    )
    grace: float = _setting(
        30.0,
        readers.seconds,
        "How long in seconds a run whose client left waits for run.reattach(), where "
        "on_disconnect is grace.",
    )
    settle: float = _setting(
        5.0,
        readers.seconds,
        "How long in seconds an abandoned run waits for its tasks to stop before it "
        "reports those that did not.",
    )
    refuse_for: float = _setting(
        120.0,
        readers.seconds,
        "How long in seconds a closed, abandoned run goes on refusing the calls of its "
        "leftovers.",
    )
    hold: float = _setting(
        30.0,
        readers.seconds,
        "How long in seconds a run continued from another process waits, after its "
        "answer, to hear whether that answer reached anybody.",
    )
    needs: Mapping[str, float] = _setting(
        {},
        readers.needs,
        "Least time in seconds worth starting a call with, per call kind (inference, "
        "embeddings, retrieval, tool, agent) or model, whose own goes first: "
        "inference=2,tool=0.5,gpt-4o=3. With less left the call is refused.",
    )
    prices: str | None = _setting(
        None,
        readers.path,
        "TOML file with prices of your own for models and tools. They go before list "
        "prices, and after what a provider reports itself.",
    )
    irreversible: tuple[str, ...] = _setting(
        (),
        readers.words,
        "Names of tools that are never refused, because they must finish once the "
        "agent decided on them.",
    )
    propagate_to: tuple[str, ...] = _setting(
        (),
        readers.words,
        "Host names (or .suffixes) beside loopback, private and cluster ones that may "
        "receive the deadline and the token.",
    )
    stops_on_close: tuple[str, ...] = _setting(
        (),
        readers.words,
        "Hosts of model providers that stop generating, and billing, when a stream is "
        "closed. Only there is the rest of a cut stream claimed as avoided; everywhere "
        "else its outcome is counted as unknown.",
    )
    bus_url: str | None = _setting(
        None,
        readers.bus_url,
        "URL of the Redis or Valkey that carries kill, supersede and the list of live "
        "runs between processes: redis://host:6379/0, rediss:, valkey: or unix:, also "
        "any node of a cluster; ?namespace=NAME keeps several apart. Unset: no bus.",
    )
    tenants: tuple[str, ...] = _setting(
        (), readers.words, "Tenants that get a label of their own; the rest is 'other'."
    )
    tenant_from: str | None = _setting(
        None,
        readers.tenant_from,
        "Where a server finds whom a request is for: header:x-tenant, or the entry "
        "baggage:tenant. Trust it as far as whoever sets it. Code that names one goes "
        "first.",
    )
    frameworks: tuple[str, ...] | None = _setting(
        None,
        readers.frameworks,
        "Web frameworks whose applications get a run a request without a line of code: "
        "starlette (and with it fastapi), litestar, django, quart; all or none. Unset: "
        "all under opentelemetry-instrument, none where code calls "
        "hangup.instrument().",
    )
    policy_file: str | None = _setting(
        None,
        readers.path,
        "YAML (or JSON) file of rules by route, run name and tenant: mode, share, "
        "budget, on_disconnect, grace. Read again within 5 s of a change.",
    )
    brake_share: float = _setting(
        20.0,
        readers.percent,
        "The brake: with more than so many percent of the enforced runs stopped while "
        "their caller was still connected, this process only observes; 100 is never.",
    )
    brake_runs: float = _setting(
        50.0,
        readers.seconds,
        "Below so many enforced runs in the window the brake does not trip.",
    )
    brake_window: float = _setting(
        300.0, readers.seconds, "Over how many seconds the brake counts."
    )
    workers_dir: str | None = _setting(
        None,
        readers.path,
        "Directory that the worker processes of one application share for the metrics "
        "exporter hangup_workers; unset is one for this user and port in the "
        "temporary directory.",
    )


def _check(name: str, value: object, prefix: str) -> object:
    for spec in fields(Settings):
        if spec.name == name:
            return spec.metadata["read"](f"{prefix}{name}", value)
    known = ", ".join(spec.name for spec in fields(Settings))
    raise ConfigError(name, value, f"no such setting; there are {known}")


def from_environment(environment: Mapping[str, str] | None = None) -> Settings:
    """Read the settings from ``HANGUP_*`` variables; an empty one counts as unset.

    Raises:
        ConfigError: A value cannot be used; names the variable and the remedy.
    """
    source = os.environ if environment is None else environment
    values: dict[str, Any] = {}
    for spec in fields(Settings):
        variable = ENV_PREFIX + spec.name.upper()
        if text := source.get(variable, "").strip():
            values[spec.name] = spec.metadata["read"](variable, text)
    return Settings(**values)


def with_keywords(settings: Settings, **keywords: object) -> Settings:
    """Return ``settings`` with the keywords that are not None laid over it.

    Raises:
        ConfigError: A keyword is unknown or its value cannot be used.
    """
    checked: dict[str, Any] = {
        name: _check(name, value, "")
        for name, value in keywords.items()
        if value is not None
    }
    return replace(settings, **checked)


class _Current:
    """The process-wide settings; replaced whole, so that readers need no lock."""

    value: Settings | None = None


def current() -> Settings:
    """Return the settings in force, read from the environment at first use."""
    settings = _Current.value
    if settings is None:
        settings = _Current.value = from_environment()
    return settings


def use(settings: Settings | None) -> Settings | None:
    """Replace the settings in force; None reads the environment again at next use.

    Returns:
        What was in force before; None if nothing had asked yet.
    """
    before, _Current.value = _Current.value, settings
    return before
