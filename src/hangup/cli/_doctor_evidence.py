"""What ``hangup doctor`` judges by: facts of processes, numbers of services."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from hangup.otel import names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


class Severity(StrEnum):
    """How bad it is. Notices do not change the exit status."""

    ERROR = "error"
    """Something is not protected, or not measured, that you believe is."""
    WARNING = "warning"
    """It is, but less well than it could be."""
    NOTICE = "notice"
    """Worth knowing."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, where, and in what detail."""

    check: str
    where: str
    detail: str


@dataclass(frozen=True, slots=True)
class Sample:
    """One number of a service, under OpenTelemetry's names."""

    name: str
    labels: Mapping[str, str]
    value: float


@dataclass(slots=True)
class Source:
    """One process that was asked, or one URL that was scraped.

    Attributes:
        where: What the reader calls it.
        facts: Of a process (``hangup.otel.diagnosis_facts``); None of a URL.
        samples: What it has counted.
        jumps: Of a URL asked several times: what went down, or changed its identity.
    """

    where: str
    facts: dict[str, Any] | None = None
    samples: list[Sample] = field(default_factory=list)
    jumps: list[str] = field(default_factory=list)

    def part(self, name: str) -> dict[str, Any]:
        """Return one group of facts; empty where there is none."""
        return (self.facts or {}).get(name) or {}

    def part_flag(self, name: str) -> bool:
        """Return a fact that is a yes or no; unknown is yes, for it proves nothing."""
        return (self.facts or {}).get(name) is not False

    @property
    def has_hangup(self) -> bool:
        """Whether hangup is instrumented there, as far as that can be told."""
        if self.facts is None:
            return any(sample.name == names.INFO for sample in self.samples)
        return bool(self.part("hangup").get("installed"))

    @property
    def mode(self) -> str | None:
        """The mode in force for the process; "unset" where none is."""
        for sample in self.samples:
            if sample.name == names.INFO:
                return sample.labels.get(names.MODE)
        if self.facts is None:
            return None
        return self.part("hangup").get("mode") or "unset"

    def series(self, name: str, **labels: str) -> list[Sample]:
        """Return the series of a metric that are not zero and have these labels.

        The labels are named as the constants of ``hangup.otel.names``, in lower case.
        """
        wanted = {getattr(names, key.upper()): value for key, value in labels.items()}
        return [
            sample
            for sample in self.samples
            if sample.name == name
            and sample.value
            and all(
                sample.labels.get(key, "").lower() == value
                for key, value in wanted.items()
            )
        ]

    def total(self, name: str, **labels: str) -> float:
        """Return their sum."""
        return sum(sample.value for sample in self.series(name, **labels))


@dataclass(slots=True)
class Evidence:
    """Everything that could be looked at.

    Attributes:
        foreign: Hosts of strangers, written as ``HANGUP_PROPAGATE_TO`` is.
    """

    sources: list[Source] = field(default_factory=list)
    foreign: tuple[str, ...] = ()

    @property
    def processes(self) -> list[Source]:
        """The processes that have hangup in them and answered from inside."""
        return [one for one in self.sources if one.facts is not None and one.has_hangup]

    @property
    def scraped(self) -> list[Source]:
        """The URLs that were scraped."""
        return [one for one in self.sources if one.facts is None]

    @property
    def with_hangup(self) -> list[Source]:
        """Whatever has hangup in it."""
        return [one for one in self.sources if one.has_hangup]


@dataclass(frozen=True, slots=True)
class Check:
    """One row of the table: what can be wrong, and how it is mended."""

    id: str
    severity: Severity
    what: str
    why: str
    mend: str
    judge: Callable[[Evidence], Iterator[tuple[str, str]]]
    """Yields (where, detail) for every thing of this kind that is wrong."""

    def findings(self, evidence: Evidence) -> list[Finding]:
        """Return what this check finds; the same thing in many processes is one."""
        places: dict[str, list[str]] = defaultdict(list)
        for where, detail in self.judge(evidence):
            if where not in places[detail]:
                places[detail].append(where)
        return [
            Finding(self.id, ", ".join(where), detail)
            for detail, where in places.items()
        ]


# Metric and label names: OpenTelemetry's from Prometheus'.

_KNOWN_METRICS: Final = {
    re.sub(r"[^a-z0-9]", "_", value): value
    for key, value in vars(names).items()
    if key.isupper() and isinstance(value, str) and value.startswith("hangup.")
}
_KNOWN_LABELS: Final = {
    **_KNOWN_METRICS,
    "gen_ai_request_model": names.MODEL,
    "gen_ai_token_type": names.TOKEN_TYPE,
}
_SAMPLE: Final = re.compile(
    r"^(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(?P<labels>.*)\})?\s+(?P<value>\S+)"
)
_LABEL: Final = re.compile(
    r'(?P<name>[a-zA-Z_][a-zA-Z0-9_]*)="(?P<value>(?:\\.|[^"\\])*)"'
)
_ESCAPE: Final = re.compile(r"\\(.)")


def read_prometheus(text: str) -> list[Sample]:
    """Return the samples of a page in Prometheus' text format, under our names.

    Lines that are none are passed over; metrics that are not hangup's keep their names.
    """
    samples = []
    for line in text.splitlines():
        found = _SAMPLE.match(line)
        if found is None or line.startswith("#"):
            continue
        try:
            value = float(found["value"])
        except ValueError:
            continue
        labels = {
            _KNOWN_LABELS.get(one["name"], one["name"]): _unescaped(one["value"])
            for one in _LABEL.finditer(found["labels"] or "")
        }
        samples.append(Sample(_metric_name(found["name"]), labels, value))
    return samples


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda one: "\n" if one[1] == "n" else one[1], text)


def _metric_name(name: str) -> str:
    for ending in ("", "_total", "_seconds_total", "_seconds", "_ratio"):
        known = _KNOWN_METRICS.get(name.removesuffix(ending))
        if name.endswith(ending) and known is not None:
            return known
    return name
