"""What a span processor does with spans, told from its class: for ``hangup doctor``.

A processor cannot be asked whether it would export a span that was not sampled, and to
hand it one would export it. So its ``on_end`` is read instead: the SDK's look at the
``sampled`` flag, and so does whatever ends in the SDK's. One that has an exporter and
neither asks for the flag nor calls ``super().on_end`` exports what is only recorded.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.sdk.trace import SpanProcessor
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from hangup.otel.processor import HangupSpanProcessor

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType

_SDK: Final = "opentelemetry.sdk."
_IN_MEMORY: Final = "InMemorySpanExporter"
_DEEPEST: Final = 4  # processors around processors


def describe(processor: object) -> dict[str, Any]:
    """Return what is known of one processor of a provider. Never calls it."""
    parts = list(_with_inner(processor))
    exporters = [one for part in parts for one in _exporters_of(part)]
    return {
        "name": name_of(processor),
        "ours": isinstance(processor, HangupSpanProcessor),
        "blocks": any(
            isinstance(part, SimpleSpanProcessor) and not _only_keeps(part)
            for part in parts
        ),
        "exporters": [name_of(one) for one in exporters],
        "exports_unsampled": [
            name_of(part)
            for part in parts
            if _exporters_of(part) and not _asks_for_flag(part)
        ],
    }


def _only_keeps(processor: object) -> bool:
    return all(type(one).__name__ == _IN_MEMORY for one in _exporters_of(processor))


def _with_inner(processor: object, depth: int = 0) -> Iterator[object]:
    """Yield a processor and those it wraps."""
    yield processor
    if depth >= _DEEPEST or isinstance(processor, HangupSpanProcessor):
        return
    for value in _values(processor):
        several = value if isinstance(value, (list, tuple)) else (value,)
        for one in several:
            if isinstance(one, SpanProcessor) and one is not processor:
                yield from _with_inner(one, depth + 1)


def _exporters_of(processor: object) -> list[object]:
    """Return what a processor itself hands spans to.

    The SDK's batch processor keeps its exporter one object further down.
    """
    if isinstance(processor, HangupSpanProcessor):
        return []
    found = [one for one in _values(processor) if _is_exporter(one)]
    for value in _values(processor):
        if type(value).__module__.startswith(_SDK) and not isinstance(
            value, SpanProcessor
        ):
            found += [one for one in _values(value) if _is_exporter(one)]
    return list({id(one): one for one in found}.values())


def _is_exporter(value: object) -> bool:
    return (
        not isinstance(value, (type, SpanProcessor))
        and callable(inspect.getattr_static(value, "export", None))
        and hasattr(type(value), "shutdown")
    )


def _values(thing: object) -> list[object]:
    """Return the values of an object's own attributes, without running any code."""
    return list(getattr(thing, "__dict__", {}).values())


def _asks_for_flag(processor: object) -> bool:
    """Whether ``on_end``, or what it is overridden in, looks at the sampled flag."""
    for cls in type(processor).__mro__:
        method = vars(cls).get("on_end")
        if method is None:
            continue
        if cls.__module__.startswith(_SDK):
            return cls is not SpanProcessor
        used = _names_used(getattr(inspect.unwrap(method), "__code__", None))
        if "sampled" in used:
            return True
        helpers = {
            name
            for name in used
            for base in type(processor).__mro__
            if "sampled" in _names_used(getattr(vars(base).get(name), "__code__", None))
        }
        if helpers:
            return True
        if "super" not in used or "on_end" not in used:
            return False
    return False


def _names_used(code: CodeType | None) -> set[str]:
    if code is None:
        return set()
    found = set(code.co_names)
    for constant in code.co_consts:
        if inspect.iscode(constant):
            found |= _names_used(constant)
    return found


def name_of(thing: object) -> str:
    """Return the name of what it is an instance of."""
    cls = type(thing)
    return f"{cls.__module__}.{cls.__qualname__}"
