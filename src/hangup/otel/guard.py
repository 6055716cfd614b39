"""The guard around the SDK tracer's ``start_span``: where a spending call is decided.

It stands outside the span processors on purpose. What raises in ``on_start`` makes
later processors miss the span, is swallowed by an SDK that guards its processors (a
pending upstream change), and sees no run where a concurrent multi-processor calls it
from a pool thread. Here the span is created first, so that every processor gets
``on_start`` and ``on_end``, and a refused one is ended before the signal is raised.
"""

from __future__ import annotations

import functools
import weakref
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import trace
from opentelemetry.sdk import trace as sdk_trace
from opentelemetry.sdk.trace import Span as SdkSpan
from opentelemetry.sdk.trace import Tracer
from opentelemetry.trace import NoOpTracer, SpanKind

from hangup.core import registry
from hangup.core.admission import admit, stop_here
from hangup.core.guard import fault, guarded
from hangup.otel import calls, marks, runspan
from hangup.otel.call import Call, least_time
from hangup.otel.context import POSITION_KEY, get_current, position_in
from hangup.otel.quiet import QuietSpans
from hangup.otel.twins import twin_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from opentelemetry.context import Context
    from opentelemetry.trace import Span
    from opentelemetry.util.types import Attributes

    from hangup.otel.recorder import Recorder


# Members of an Enum are looked up through a Python frame before 3.12.
_SERVER = SpanKind.SERVER
# The class that the SDK's tracers make spans of; its name is the SDK's own affair.
_MADE = getattr(sdk_trace, "_Span", SdkSpan)


# What the SDK of MCP calls its span around a tool, before the tool's name.
_MCP_CALL: Final = "MCP send tools/call "


class Guard:
    """Decides and opens spending calls at ``start_span``. Thread-safe.

    Outside a deliberate refusal, no exception of ours reaches the caller.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._would = marks.WouldRefuse()
        # The multi-processors of the providers that are watched, by identity. Weak: a
        # process may make providers, and drop them, for as long as it lives.
        self._watched: dict[int, weakref.ref[object]] = {}
        # What was wrapped: class, method, the original, the wrapper.
        self._patches: list[tuple[Any, str, Any, Any]] = []

    def begin(self) -> None:
        """Take up work. Idempotent.

        Before the accounts do: what has ended is in the books when they close.
        """
        registry.add_observer(self._recorder)
        self._recorder.begin()

    def install(self, multi_processor: object) -> None:
        """Guard the tracers that report to this multi-processor. Idempotent."""
        key, watched = id(multi_processor), self._watched
        if key not in watched:
            watched[key] = weakref.ref(
                multi_processor, lambda _: watched.pop(key, None)
            )
            self.begin()
            registry.add_observer(self._would)
        self._patch(Tracer, "start_span", self._wrap_start)
        quiet = QuietSpans(self._watched)
        self._patch(SdkSpan, "set_status", quiet.wrap_status)
        self._patch(SdkSpan, "record_exception", quiet.wrap_exception)

    def install_without_sdk(self) -> None:
        """Guard the tracers that record nothing. Idempotent.

        They are told what wants to start as any other tracer is. So calls are refused
        without an SDK and with a disabled one too, though none is measured.
        """
        self._patch(NoOpTracer, "start_span", self._wrap_unrecorded)
        self._patch(NoOpTracer, "start_as_current_span", self._wrap_unrecorded)

    def uninstall(self) -> None:
        """Restore what was wrapped, unless somebody wrapped it since. Idempotent."""
        self._watched.clear()
        registry.remove_observer(self._recorder)
        registry.remove_observer(self._would)
        self._recorder.finish()
        for owner, name, original, wrapper in self._patches:
            if getattr(owner, name) is wrapper:
                setattr(owner, name, original)
        self._patches.clear()

    def _patch(self, owner: Any, name: str, wrap: Callable[[Any], Any]) -> None:
        if any(known[:2] == (owner, name) for known in self._patches):
            return
        original = getattr(owner, name)
        wrapper = wrap(original)
        setattr(owner, name, wrapper)
        self._patches.append((owner, name, original, wrapper))

    def _wrap_start(self, start_span: Callable[..., Span]) -> Any:
        watched = self._watched
        live = self._recorder.live
        unseen = runspan.unseen
        open_call = self._open
        note_span = self._note_span
        deciding = calls.DECIDING
        kind_of = calls.kind_among
        tool, told = calls.TOOL, self._is_told

        @functools.wraps(start_span)
        def guarded_start_span(
            tracer: Tracer,
            name: str,
            context: Context | None = None,
            kind: SpanKind = SpanKind.INTERNAL,
            attributes: Attributes = None,
            *args: Any,
            **kwargs: Any,
        ) -> Span:
            if id(tracer.span_processor) not in watched:
                return start_span(
                    tracer, name, context, kind, attributes, *args, **kwargs
                )
            # Looked up once for all: of None, the SDK looks it up three times, and a
            # processor that works on another thread would find that thread's.
            if context is None:
                context = get_current()
            # The span first: then its parent is known without another look at the
            # context, and every processor has heard of one that is refused.
            if args or kwargs:
                span = start_span(
                    tracer, name, context, kind, attributes, *args, **kwargs
                )
            else:  # the usual call, at half the price
                span = start_span(tracer, name, context, kind, attributes)
            # Most spans are no calls and have none of these: one step says so.
            if attributes and not deciding.isdisjoint(attributes):
                call_kind = kind_of(attributes)
                if call_kind is not None and not (
                    call_kind == tool and guarded(told, span, name, kind, context)
                ):
                    try:
                        refusal = open_call(span, call_kind, context, kind, attributes)
                    except Exception as error:  # noqa: BLE001  any fault of ours
                        refusal = None
                        fault("Guard._open", error)
                    if refusal is not None:
                        raise refusal
                    return span
            if live or unseen:
                guarded(note_span, span, context)
            return span

        return guarded_start_span

    def _wrap_unrecorded(self, start: Callable[..., Any]) -> Any:
        @functools.wraps(start)
        def guarded_start(
            tracer: NoOpTracer,
            name: str,
            context: Context | None = None,
            kind: SpanKind = SpanKind.INTERNAL,
            attributes: Attributes = None,
            *args: Any,
            **kwargs: Any,
        ) -> Any:
            call_kind = calls.kind_of(attributes) if self._patches else None
            if call_kind is not None:
                call = Call()
                call.kind, call.model = call_kind, calls.model_of(attributes)
                refusal = guarded(self._decide, call, context, kind, attributes)
                if refusal is not None:
                    raise refusal
            return start(tracer, name, context, kind, attributes, *args, **kwargs)

        return guarded_start

    def _is_told(
        self, span: Span, name: str, kind: SpanKind, context: Context | None
    ) -> bool:
        """Whether somebody else tells of a tool that is called over MCP.

        Where it is served, that is the process that calls it, unless that knows nothing
        of hangup; where it is called, the framework whose tool it is.
        """
        if kind is _SERVER:
            here = position_in(context)
            return here is not None and here.run is not None and here.run.root.joined
        parent = getattr(span, "parent", None)
        around = None if parent is None else self._recorder.around(parent.span_id)
        if around is None or around.kind != calls.TOOL or around.span is None:
            return False
        tool = calls.tool_of(getattr(around.span, "attributes", None))
        return tool is not None and name == f"{_MCP_CALL}{tool}"

    def _note_span(self, span: Span, context: Context | None) -> None:
        """See to a span that is no call: it may stand in one, or show a run."""
        parent = getattr(span, "parent", None)
        if self._recorder.live:
            # A span that the sampler dropped does not know its parent.
            around = parent or trace.get_current_span(context).get_span_context()
            self._recorder.nest(span.get_span_context().span_id, around.span_id)
        if runspan.unseen and (parent is None or parent.is_remote):
            here = position_in(context)
            run = None if here is None else here.run
            if run is not None and run.root.span is None and not run.inert:
                runspan.adopt(run.root, span)

    def _open(
        self,
        span: Span,
        kind: str,
        context: Context,
        span_kind: SpanKind,
        attributes: Mapping[str, Any],
    ) -> BaseException | None:
        """Open the call that a span has started, if it may start.

        Returns:
            What to raise in its place; the span has been ended then.
        """
        model = attributes.get("gen_ai.request.model")
        if model.__class__ is not str or not model:
            model = calls.model_of(attributes)
        call = Call()
        call.kind, call.model = kind, model
        recorder = self._recorder
        # The class is abstract: to ask for an instance is two frames and a registry.
        recording = span.__class__ is _MADE or isinstance(span, SdkSpan)
        if recorder.live:
            # A span that does not record does not know its parent either.
            parent = (
                getattr(span, "parent", None)
                if recording
                else trace.get_current_span(context).get_span_context()
            )
            if parent is not None:
                call.parent = recorder.around(parent.span_id)
        here: Any = context.get(POSITION_KEY)
        run = None if here is None or here.hold is not None else here.held
        # Nearly every call is one that nothing stands in the way of: this says so, and
        # whatever it does not know is decided at length.
        if (
            run is not None
            and run.plain
            and run.root.plain
            and call.parent is None
            and run.token.abandonment is None
            and not run.work.tree.calls
            and run.token.deadline.at > (now := run.clock.monotonic())
        ):
            call.run, call.started_at = run, now
        else:
            refusal = self._decide_at_length(call, context, span_kind, attributes, span)
            if refusal is not None:
                return refusal
            run = call.run
        if recording:  # else nobody will tell its end: a disabled tracer, say
            if run is not None and run.root.span is None:
                runspan.adopt(run.root, span)
            try:  # the method is two frames
                own = span._context  # type: ignore[attr-defined]  # noqa: SLF001
            except AttributeError:  # the SDK has its own name for it
                own = span.get_span_context()
            recorder.start(call, span, own)
        return None

    def _decide_at_length(
        self,
        call: Call,
        context: Context,
        span_kind: SpanKind,
        attributes: Mapping[str, Any],
        span: Span,
    ) -> BaseException | None:
        """Decide, and mark the span with what became of it; ends a refused one."""
        would = self._would
        if would.noted:
            would.forget()
        refusal = self._decide(call, context, span_kind, attributes, span)
        if would.noted:
            would.mark(span, call.run)
        if refusal is not None:
            guarded(marks.refuse, span, call.run)
        elif call.run is not None:
            call.started_at = call.run.clock.monotonic()
        return refusal

    def _decide(
        self,
        call: Call,
        context: Context | None,
        span_kind: SpanKind,
        attributes: Mapping[str, Any],
        span: Span | None = None,
    ) -> BaseException | None:
        """Return what to raise instead of letting the call start; sets its run."""
        here = position_in(context)
        run = None if here is None else here.held
        if here is None or run is None:
            return None
        if (
            run.closed_at is not None
            or run.delivered_at is not None
            or run.root.delivered_at is not None
        ):  # seldom; asking it always would be two more frames
            run = here.run
            if run is None or run.inert:
                return None
        call.run = run
        around = call.parent
        if around is None and span is not None and run.work.tree.calls:
            around = call.parent = twin_of(call, span)
        settings = run.settings
        if around is not None and around.protected:
            call.protected = True
        elif settings.irreversible:
            call.protected = calls.tool_of(attributes) in settings.irreversible
        if call.protected:
            run.begin_spending()
            return None
        if around is not None and around.kind == call.kind == calls.INFERENCE:
            # The same call again: decided and counted already.
            return stop_here(run, under_way=True)
        needs = settings.needs
        least = least_time(needs, call.kind, call.model) if needs else 0.0
        refusal = admit(run, call.kind, least, call.model)
        # Raising here kills a stdio MCP server; its adapter answers with an error.
        return None if span_kind is _SERVER else refusal
