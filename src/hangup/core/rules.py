"""The rollout's rules: which run gets how much of hangup. Pure.

::

    rules:                      # the first that matches wins
      - route: /chat/*
        tenant: [acme, "beta-*"]
        mode: enforce
        share: 5                # percent of the runs; the others are observed
        budget: 30
        on_disconnect: grace
        grace: 20
    default:                    # for what no rule matches
      mode: observe

Each of ``route``, ``name`` and ``tenant`` is a pattern or a list of them: ``*`` is any
text, ``?`` one character, ``{id}`` one segment of a path, ``{rest:path}`` any number.
A rule matches where all that it names match; one that names a route matches no run that
no server opened.
"""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from hangup import config
from hangup.config import Mode, OnDisconnect
from hangup.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hangup.core.document import Node

MATCHERS: Final = ("route", "name", "tenant")
EFFECTS: Final = ("mode", "share", "budget", "on_disconnect", "grace")
_MOST_RULES = 1_000


@dataclass(frozen=True, slots=True)
class Pattern:
    """One pattern, as it is written and as it is matched."""

    text: str
    expression: re.Pattern[str]


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. Immutable; what is None or () has no opinion.

    Attributes:
        number: Its place in the list from 1; 0 is ``default``.
        line: Where it begins in its file.
        route: Patterns for the path of a request.
        name: Patterns for the run's name, or for the path.
        tenant: Patterns for whom the work is for.
        mode: How far to go with the runs of the share.
        share: Percent of the runs, by their token.
        budget: Seconds; infinite is no deadline.
        on_disconnect: What it means that the client leaves.
        grace: Seconds to come back in.
    """

    number: int
    line: int
    route: tuple[Pattern, ...] = ()
    name: tuple[Pattern, ...] = ()
    tenant: tuple[Pattern, ...] = ()
    mode: Mode | None = None
    share: float = 100.0
    budget: float | None = None
    on_disconnect: OnDisconnect | None = None
    grace: float | None = None

    def matches(self, paths: Sequence[str], name: str, tenant: str) -> bool:
        """Whether the rule is for such a run; see :meth:`Rules.match`."""
        return (
            (not self.route or _any(self.route, paths))
            # A run whose name the framework finds only later is known by its path.
            and (not self.name or _any(self.name, (name, *paths)))
            and (not self.tenant or (tenant != "" and _any(self.tenant, (tenant,))))
        )

    def mode_for(self, token: str) -> Mode | None:
        """Return the mode of the run with this token; None where it is left open."""
        if self.share >= 100.0 or place_of(token) < self.share:  # noqa: PLR2004  percent
            return self.mode
        return Mode.OBSERVE.least(self.mode)


@dataclass(frozen=True, slots=True)
class Rules:
    """A checked file of rules. Immutable, thread-safe.

    Attributes:
        rules: In the order of the file.
        default: For what none of them matches.
        digest: Twelve hex characters of the file's SHA-256: which one is in force.
    """

    rules: tuple[Rule, ...]
    default: Rule | None
    digest: str

    def match(self, paths: Sequence[str], name: str, tenant: str) -> Rule | None:
        """Return the rule for a run.

        Args:
            paths: Of the request it serves, in every form that may be meant; empty for
                a run that no server opened.
            name: The run's name.
            tenant: Whom it is for, or "".
        """
        for rule in self.rules:
            if rule.matches(paths, name, tenant):
                return rule
        return self.default


def place_of(token: str) -> float:
    """Return where a token stands among all, from 0 to below 100.

    The same in every process and release. A hash: tokens that are not random, because
    somebody made their own, spread all the same.
    """
    digest = hashlib.sha256(b"hangup.share:" + token.encode()).digest()
    return int.from_bytes(digest[:6], "big") * 100.0 / (1 << 48)


def digest_of(content: bytes) -> str:
    """Return the name of a file's content."""
    return hashlib.sha256(content).hexdigest()[:12]


def read_rules(source: str, document: Node, digest: str) -> Rules:
    """Check a document, and make rules of it.

    Args:
        source: What the file is called in errors.
        document: What it holds. None at all are no rules.
        digest: See :class:`Rules`.

    Raises:
        ConfigError: Something in it cannot be used; names the line, and what is
            allowed.
    """
    if document.value is None:
        return Rules((), None, digest)
    whole = _mapping(source, document, "the file", ("rules", "default"))
    default = None
    if "default" in whole:
        default = _rule(source, whole["default"], 0)
    rules: list[Node] = []
    if "rules" in whole and whole["rules"].value is not None:
        node = whole["rules"]
        if not isinstance(node.value, list) or len(node.value) > _MOST_RULES:
            remedy = f"give a list of at most {_MOST_RULES} rules"
            raise ConfigError(_place(source, node, "rules"), _shown(node), remedy)
        rules = node.value
    found = [_rule(source, node, at) for at, node in enumerate(rules, 1)]
    return Rules(tuple(found), default, digest)


def _rule(source: str, node: Node, number: int) -> Rule:
    what = f"rule {number}" if number else "default"
    known = (*MATCHERS, *EFFECTS) if number else EFFECTS
    given = _mapping(source, node, what, known)
    values: dict[str, Any] = {}
    for key, one in given.items():
        where = _place(source, one, key)
        if key in MATCHERS:
            values[key] = _patterns(where, one)
        elif one.value is not None:
            values[key] = _effect(where, key, one)
        elif key == "budget":
            remedy = "write none where there is to be no deadline"
            raise ConfigError(where, None, remedy)
    if not values.keys() & set(EFFECTS):
        remedy = f"say what it does: any of {', '.join(EFFECTS)}"
        raise ConfigError(_place(source, node, what), _shown(node), remedy)
    return Rule(number, node.line, **values)


def _effect(where: str, key: str, node: Node) -> object:
    value = node.value
    if isinstance(value, (dict, list)):
        raise ConfigError(where, _shown(node), "give one value")
    if key == "mode":
        return config.read_mode(where, value)
    if key == "on_disconnect":
        return config.read_on_disconnect(where, value)
    if key == "share":
        return _share(where, value)
    if key == "grace":
        return config.read_seconds(where, value)
    if str(value).strip().lower() == "none":
        return math.inf
    budget = config.read_seconds(where, value)
    if not budget:
        # It would expire every run on the spot, and nobody means that.
        raise ConfigError(where, value, "give more than zero seconds, or none")
    return budget


def _share(where: str, value: object) -> float:
    try:
        share = float(str(value).strip().removesuffix("%"))
    except ValueError:
        share = math.nan
    if not 0 <= share <= 100:  # noqa: PLR2004  percent
        raise ConfigError(where, value, "give a percentage, 0 to 100")
    return share


def _patterns(where: str, node: Node) -> tuple[Pattern, ...]:
    many = node.value if isinstance(node.value, list) else [node]
    texts = [str(one.value) for one in many if isinstance(one.value, (str, int, float))]
    if not texts or len(texts) != len(many) or not all(texts):
        remedy = "give a pattern, or a list of them, such as /chat/*"
        raise ConfigError(where, _shown(node), remedy)
    return tuple(Pattern(text, compiled(text)) for text in texts)


def compiled(pattern: str) -> re.Pattern[str]:
    """Return the expression of a pattern; every text is one."""
    return re.compile("".join(map(_expression, _parts(pattern))), re.DOTALL)


def _parts(pattern: str) -> list[str]:
    return re.split(r"(\{[^{}]*\}|\*+|\?)", pattern)


def _expression(part: str) -> str:
    if part.startswith("*") or (part.startswith("{") and part.endswith(":path}")):
        return ".*"
    if part == "?":
        return "."
    return "[^/]+" if part.startswith("{") and part.endswith("}") else re.escape(part)


def _any(patterns: tuple[Pattern, ...], values: Sequence[str]) -> bool:
    return any(
        pattern.expression.fullmatch(value) is not None
        for pattern in patterns
        for value in values
    )


def _mapping(
    source: str, node: Node, what: str, known: Sequence[str]
) -> dict[str, Node]:
    if not isinstance(node.value, dict):
        remedy = f"give a mapping with any of {', '.join(known)}"
        raise ConfigError(_place(source, node, what), _shown(node), remedy)
    for key, one in node.value.items():
        if key not in known:
            remedy = f"no such key of {what}; there are {', '.join(known)}"
            raise ConfigError(_place(source, one, key), _shown(one), remedy)
    return node.value


def _place(source: str, node: Node, what: str) -> str:
    return f"{source}, line {node.line}: {what}"


def _shown(node: Node) -> object:
    if isinstance(node.value, dict):
        return dict.fromkeys(node.value, ...)
    if isinstance(node.value, list):
        return [_shown(one) for one in node.value[:3]]
    return node.value
