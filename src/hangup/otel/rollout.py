"""The rollout on OpenTelemetry: its file, its brake, and the metrics of both."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from hangup import config
from hangup.config import Mode
from hangup.core import registry, rollout
from hangup.core.brake import Brake
from hangup.core.filewatch import FileWatch
from hangup.core.rules import Rule, Rules, digest_of
from hangup.errors import ConfigError
from hangup.otel import names, policyfile

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from opentelemetry.metrics import Meter

    from hangup.config import Settings

_logger = logging.getLogger("hangup")


class _Careful(Rules):
    """What is in force while no good file has been seen: everything is observed."""


def _careful(digest: str) -> Rules:
    return _Careful((), Rule(0, 0, mode=Mode.OBSERVE), digest)


class Rollout:
    """The rules of one file, kept in force, and the brake. Thread-safe.

    Making one reads the file: a path that leads nowhere, or YAML without PyYAML, is a
    mistake of the installation and raises. A file that is there and wrong does not: it
    may have been edited just now, and a restart must not turn that into an outage. It
    is counted and logged, everything is observed until it is right, and that is
    noticed.

    Args:
        settings: Which file, and when the brake trips.

    Raises:
        ConfigError: The file cannot be read, or not without PyYAML.
    """

    def __init__(self, settings: Settings) -> None:
        self._path = settings.policy_file
        self._bad: str | None = None
        self._errors = 0
        self._share = settings.brake_share
        self._runs = settings.brake_runs
        self._seconds = settings.brake_window
        self._brake = Brake(self._share, self._runs, self._seconds, self._trip)
        self._rules: Rules | None = None
        if self._path is None:
            return
        # Before it is read: a change in between is seen.
        self._watch = FileWatch(self._path, self.read_again)
        content = policyfile.read(self._path)
        try:
            self._rules = policyfile.parse(self._path, content)
        except policyfile.MissingLibraryError:
            raise
        except ConfigError as error:
            self._rules = _careful(digest_of(content))
            self._refused(digest_of(content), error)

    def install(self, meter: Meter) -> None:
        """Put it in force, and count on this meter."""
        self._tripped = meter.create_counter(
            names.BRAKE_TRIPPED,
            unit="{trip}",
            description="Times that too many runs were stopped with their caller there",
        )
        self._policy_errors = meter.create_counter(
            names.POLICY_ERRORS,
            unit="{file}",
            description="Policy files that could not be used",
        )
        self._tripped.add(0)
        self._policy_errors.add(self._errors)
        rollout.use_rules(self._rules)
        registry.add_observer(self._brake)
        if self._path is not None:
            rollout.watch_with(self._watch)

    def uninstall(self) -> None:
        """Leave no rule, no brake and no thread behind."""
        registry.remove_observer(self._brake)
        rollout.watch_with(None)
        rollout.reset()

    def after_fork(self) -> None:
        """Begin anew in a child process."""
        self._brake.after_fork()

    def tell(self, info: MutableMapping[str, str]) -> None:
        """Write into the labels of ``hangup.info`` what is in force now."""
        mode = config.current().mode
        if rollout.braked():
            mode = Mode.OBSERVE.least(mode)
        info[names.MODE] = "unset" if mode is None else mode.value
        info[names.POLICY] = rollout.digest()

    def read_again(self) -> None:
        """Read the file that has changed; one that cannot be used changes nothing."""
        if self._path is None:
            return
        content = b""
        try:
            content = policyfile.read(self._path)
            rules = policyfile.parse(self._path, content)
        except ConfigError as error:
            self._refused(digest_of(content), error)
            return
        self._bad = None
        if self._rules is not None and rules.digest == self._rules.digest:
            return
        self._rules = rules
        self._brake.reset()
        released = rollout.braked()
        rollout.use_rules(rules)
        _logger.info(
            "the policy file %s has changed, and is in force (%s)%s",
            self._path,
            rules.digest,
            "; the brake is released" if released else "",
        )

    def _refused(self, digest: str, error: ConfigError) -> None:
        if digest == self._bad:
            return  # once for each content
        self._bad = digest
        self._errors += 1
        if hasattr(self, "_policy_errors"):
            self._policy_errors.add(1)
        _logger.error(
            "the policy file cannot be used; %s: %s",
            "every run is observed until it can"
            if isinstance(self._rules, _Careful)
            else f"the last good one stays in force ({rollout.digest()})",
            error,
        )

    def _trip(self, stopped: int, of: int) -> None:
        if not rollout.brake():
            return
        self._tripped.add(1)
        _logger.error(
            "hangup stopped %d of %d runs of the last %g s with their caller still "
            "connected, more than %g %%: this process only observes from here on. Look "
            "at the deadlines that come in and at the budgets, then change the policy "
            "file, call hangup.release_brake() or restart",
            stopped,
            of,
            self._seconds,
            self._share,
        )
