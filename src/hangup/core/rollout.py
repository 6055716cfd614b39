"""The rollout in force: rules, ceiling and brake, and what they make of each run.

A run's mode is the least of what code asked for, what the rules give it, the ceiling
(``HANGUP_MODE``), the brake and the run around it. When any of these is lowered, the
runs that are under way follow; when it is raised, new runs do. ``run.mode`` stays a
plain attribute: nothing is asked again on the path of a call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from hangup import config
from hangup.config import Mode, OnDisconnect
from hangup.core import registry
from hangup.core.token import new_token_id

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hangup.core.filewatch import FileWatch
    from hangup.core.rules import Rule, Rules
    from hangup.core.run import Run


class Place(NamedTuple):
    """Where the rules look for a run that a server opens.

    Attributes:
        paths: Of the request, in every form a rule may mean.
        unruled: Its mode where neither a rule nor ``HANGUP_MODE`` says: observe for
            traffic that no code asked hangup to enforce.
        most: What runs may have that code opens inside it, where it is only unruled:
            what came in over the wire, say.
    """

    paths: tuple[str, ...] = ()
    unruled: Mode = Mode.ENFORCE
    most: Mode = Mode.ENFORCE


class Ruling(NamedTuple):
    """What a run that is being opened gets; None leaves it to whoever opens it.

    Attributes:
        mode: How far hangup goes with it.
        token: Its id: drawn here if the share has to know.
        budget: Seconds.
        on_disconnect: What it means that the client leaves.
        grace: Seconds to come back in.
    """

    mode: Mode
    token: str | None
    budget: float | None = None
    on_disconnect: OnDisconnect | None = None
    grace: float | None = None

    def over(
        self,
        budget: float | None,
        on_disconnect: OnDisconnect | None,
        grace: float | None,
    ) -> tuple[float | None, OnDisconnect, float]:
        """Return these, but for what is ruled; defaults stand in for None."""
        grace = grace if self.grace is None else self.grace
        return (
            budget if self.budget is None else self.budget,
            self.on_disconnect or on_disconnect or OnDisconnect.ABANDON,
            config.current().grace if grace is None else grace,
        )


class _State:
    """Replaced piece by piece, so that readers need no lock."""

    rules: Rules | None = None
    watch: FileWatch | None = None
    braked = False


def rule(  # noqa: PLR0913, PLR0917  what is known of the run, and asked for
    parent: Run | None,
    place: Place | None,
    mode: Mode | None,
    name: str | None,
    tenant: str,
    token: str | None,
) -> Ruling:
    """Say what a run gets that is being opened. Raises nothing.

    Args:
        parent: The run around it. Budget and ``on_disconnect`` are of the outermost.
        place: Where the rules look for it; its parent's counts if it has one.
        mode: What code asked for; None is enforce, as far as the rules go.
        name: Its name, if it was given one. A server's run without is known by its path
            so far.
        tenant: Whom it is for, or "".
        token: The id it continues; None is a new one.
    """
    watch = _State.watch
    if watch is not None and watch.asleep:
        watch.start()  # the first run since this process was forked
    if not name:
        name = "" if place is not None else "run" if parent is None else parent.name
    above = None
    if parent is not None:
        place, token = parent.root.place, parent.id
        above = _above(parent)
    found = None
    if _State.rules is not None:
        token = token or new_token_id()
        found = find(() if place is None else place.paths, name, tenant)
    most = _most(found, place, token, above)
    mode = most if mode is None else mode.least(most)
    if parent is not None or found is None:
        return Ruling(mode, token)
    return Ruling(mode, token, found.budget, found.on_disconnect, found.grace)


def find(paths: Sequence[str], name: str, tenant: str) -> Rule | None:
    """Return the rule in force for such a run; see :meth:`Rules.match`."""
    rules = _State.rules
    return None if rules is None else rules.match(paths, name, tenant)


def use_rules(rules: Rules | None) -> None:
    """Put rules in force, None for none. Releases the brake: somebody has seen to it.

    Runs that are under way are lowered where the new rules give them less.
    """
    _State.rules = rules
    _State.braked = False
    lower()


def reset() -> None:
    """Put no rules in force and release the brake; runs under way stay as they are."""
    _State.rules = None
    _State.braked = False


def watch_with(watch: FileWatch | None) -> None:
    """Start to watch the file of the rules; None stops it."""
    before, _State.watch = _State.watch, watch
    if before is not None:
        before.stop()
    if watch is not None:
        watch.start()


def brake() -> bool:
    """Let no run of this process go beyond observe, until the brake is released.

    Returns:
        Whether it was not so before.
    """
    before, _State.braked = _State.braked, True
    if not before:
        lower()
    return not before


def release_brake() -> bool:
    """Release the brake: new runs get the mode they would have had.

    The brake drops this process to observe when enforcement stopped too many runs whose
    caller was still connected (``HANGUP_BRAKE_SHARE``). Find out why first. A change of
    the policy file releases it too. Thread-safe.

    Returns:
        Whether it was on.
    """
    before, _State.braked = _State.braked, False
    return before


def braked() -> bool:
    """Whether the brake is on."""
    return _State.braked


def digest() -> str:
    """Return which rules are in force, "none" for none."""
    rules = _State.rules
    return "none" if rules is None else rules.digest


def lower() -> None:
    """Lower the runs under way to what they would get now. Never raises one.

    A run whose stop has begun is left to end as it began: it was abandoned, and its
    caller answered. Once it is closed it refuses no more than it would now. Thread-safe
    and bounded by the number of runs.
    """
    runs = sorted((*registry.live_runs(), *registry.leftover_runs()), key=_depth)
    for run in runs:
        _lower(run)


def _most(
    found: Rule | None, place: Place | None, token: str | None, above: Mode | None
) -> Mode:
    """Return the most that a run may have.

    Args:
        found: The rule for it.
        place: Where its root is.
        token: Of the tree.
        above: For a run that code opened in another: what that one leaves it.
    """
    ceiling = config.current().mode
    mode = None if found is None or token is None else found.mode_for(token)
    if mode is None:
        unruled = place is not None and ceiling is None and above is None
        mode = place.unruled if place is not None and unruled else Mode.ENFORCE
    if _State.braked:
        mode = mode.least(Mode.OBSERVE)
    return mode.least(ceiling).least(above)


def _above(parent: Run) -> Mode:
    """Return the most that a run opened in ``parent`` may have.

    Its mode, as a rule. But where a server's run is observed for no other reason than
    that nobody has asked for it, a run that code opens inside was asked for.
    """
    place = parent.place
    if (
        parent.parent is not None
        or place is None
        or place.unruled is not Mode.OBSERVE
        or parent.mode is not Mode.OBSERVE
    ):
        return parent.mode
    found = find(place.paths, parent.name, parent.tenant)
    return _most(found, place, parent.id, place.most)


def _lower(run: Run) -> None:
    if run.mode in (Mode.OBSERVE, Mode.OFF):
        return
    place = run.root.place
    found = find(() if place is None else place.paths, run.name, run.tenant)
    above = None if run.parent is None else _above(run.parent)
    mode = run.mode.least(_most(found, place, run.id, above))
    # Never off: what has begun is measured to its end, or the books do not balance.
    mode = Mode.OBSERVE if mode is Mode.OFF else mode
    if mode is run.mode:
        return

    def lowered() -> None:
        run.mode = mode
        run.token.binding = False  # only enforce binds, and that it was at most

    if run.closed_at is not None:
        run.mode = mode
    elif run.token.loosen(lowered):
        registry.notify("lowered", run)


def _depth(run: Run) -> int:
    depth, above = 0, run.parent
    while above is not None:
        depth, above = depth + 1, above.parent
    return depth


registry.adjust_with(_lower)
