"""Meter a model's response as it passes: what it used, and when its tokens came.

A meter is fed the bytes of the response body, as the application gets them, and keeps
no more of them than one event. It changes nothing, delays nothing and never raises.
Reported numbers win; where the stream ends before they come, output is estimated from
the text that came (:mod:`hangup.spend.estimate`) and says so.
"""

from __future__ import annotations

from hangup.spend.dialects import READERS, Kind, Known, Provider
from hangup.spend.fate import Basis
from hangup.spend.jsonbody import JsonSplitter
from hangup.spend.modelcall import ModelCall, parse, provider_of
from hangup.spend.output import Output
from hangup.spend.sse import SseSplitter, event_data, event_name
from hangup.spend.template import Templates
from hangup.spend.usage import Usage

__all__ = ["Meter", "Provider"]

# Events that repeat what came in deltas, and may be as long as the whole answer.
_THOUGHT = Kind.THOUGHT
_LINE_FEED = 0x0A  # as a number: see template.py
_ECHOES = (b".done", b"ping")
_OPENAI = (Provider.OPENAI_CHAT, Provider.OPENAI_RESPONSES)


class Meter:
    """Meters one response. Not thread-safe: one reader feeds and asks.

    Feed it bodies of status 200 only; an error's body uses nothing. Times are seconds
    on one clock and only ever handed in.

    Args:
        provider: The dialect of the response.
        call: What the request said; used where the provider says nothing.
        started_at: When the request was sent. With it, thoughts that were reported but
            never streamed are taken to have come evenly from then to the first token.

    Attributes:
        provider: The dialect.
        call: What the request said.
        started_at: When the request was sent.
        first_token_at: When the first output came; None: none yet, or no stream.
        streamed: Whether the body came in events; None before its first byte.
        events: Events seen.
        unreadable: Events with data that is no JSON object.
    """

    __slots__ = (
        "_hidden",
        "_known",
        "_output",
        "_read",
        "_reported",
        "_splitter",
        "_templates",
        "call",
        "events",
        "first_token_at",
        "provider",
        "started_at",
        "streamed",
        "unreadable",
    )

    def __init__(
        self,
        provider: Provider,
        call: ModelCall | None = None,
        *,
        started_at: float | None = None,
    ) -> None:
        self.provider: Provider = provider
        self.call: ModelCall = ModelCall() if call is None else call
        self.started_at: float | None = started_at
        self.first_token_at: float | None = None
        self.streamed: bool | None = None
        self.events: int = 0
        self.unreadable: int = 0
        self._splitter: SseSplitter | JsonSplitter | None = None
        self._read = READERS[provider]
        self._known = Known()
        self._output = Output()
        self._reported: tuple[float, float] | None = None  # estimates at the report
        self._hidden = 0
        self._templates: Templates[Kind] = Templates()

    @classmethod
    def for_request(
        cls,
        host: str,
        path: str,
        request_body: bytes | None,
        *,
        started_at: float | None = None,
    ) -> Meter | None:
        """Return a meter for the response to a request; None: not a model's.

        See :func:`~hangup.spend.modelcall.provider_of`. The body is not parsed before
        somebody asks for what only it can tell.
        """
        provider = provider_of(host, path, request_body)
        if provider is None:
            return None
        return cls(provider, ModelCall(path, request_body), started_at=started_at)

    def feed(self, data: bytes, now: float) -> None:
        """Take the next bytes of the body, after any content encoding is undone."""
        splitter = self._splitter
        if splitter is None:
            data = data.lstrip()
            if not data:
                return
            splitter = self._begin(data)
        output = self._output
        kept = self._templates.kept
        if kept and splitter.between:
            template, kind = kept[0]
            # Mostly a chunk is one event that looks like the last one did, and brings a
            # word; the first token has come before, or there were none kept.
            if kind is not _THOUGHT and template.is_word(data):
                self.events += 1
                output.word(now)
                return
            texts = template.match_all(data)
            if texts is not None:
                output.catch_up()
                self.events += len(texts)
                for text in texts:
                    self._count(text, kind)
                self._mark(now)
                return
        output.catch_up()
        for block in splitter.feed(data):
            self.events += 1
            self._block(block, now)
        self._mark(now)

    def close(self, now: float) -> None:
        """The body is over, complete or cut; idempotent.

        Without it the body of a call that is no stream is never read.
        """
        splitter = self._splitter
        self._output.catch_up()
        for block in () if splitter is None else splitter.close():
            # What a cut left behind is no event: it is read only if it is whole.
            if self.streamed and parse(event_data(block)) is None:
                continue
            self.events += 1
            self._event(block, now)
            self._mark(now)

    @property
    def last_token_at(self) -> float | None:
        """When the last output came; None: none yet."""
        return self._output.last_at

    @property
    def usage(self) -> Usage:
        """The best that is known by now: reported, else estimated, else None.

        Output is None where nothing came that tells: unknown is not zero. What the
        provider went on to generate unseen is not in it, see :attr:`unknown_bound`.
        """
        known = self._known
        output = known.output
        if self._unreported or output is None:
            output = self._estimate()
        tokens_in = known.input
        if tokens_in is None:
            tokens_in = self.call.input_estimate
        reasoning = known.reasoning
        if reasoning is None and self._output.thoughts.deltas:
            reasoning = min(round(self._output.thoughts.tokens), output or 0)
        return Usage(
            tokens_in,
            output,
            known.cache_read,
            known.cache_write,
            reasoning,
            known.cache_write_1h,
        )

    @property
    def input_basis(self) -> Basis:
        """How the input is known: ``reported`` or ``estimated``."""
        return Basis.ESTIMATED if self._known.input is None else Basis.REPORTED

    @property
    def output_basis(self) -> Basis:
        """How the output is known: ``reported`` or ``estimated``."""
        if self._known.output is None or self._unreported:
            return Basis.ESTIMATED
        return Basis.REPORTED

    @property
    def request_model(self) -> str | None:
        """The model that was asked for."""
        return self.call.model

    @property
    def response_model(self) -> str | None:
        """The model that answers; often the dated name of the one asked for."""
        return self._known.model

    @property
    def response_id(self) -> str | None:
        """The id of the response, for cancelling it at the provider."""
        return self._known.response_id

    @property
    def raw_usage(self) -> dict[str, object] | None:
        """The provider's own account of the usage, as it came; None: none came."""
        return self._known.raw

    @property
    def finished(self) -> bool:
        """Whether the provider said that the answer is over."""
        return self._known.finished

    @property
    def unknown_bound(self) -> int | None:
        """The most output tokens that may have been generated beyond ``usage``.

        0 when the provider said it is done and reported; None without any limit.
        """
        if self.finished and self.output_basis is Basis.REPORTED:
            return 0
        most = self.call.max_output
        return None if most is None else max(0, most - (self.usage.output or 0))

    @property
    def deltas(self) -> int:
        """Pieces of text that came."""
        return self._output.deltas

    @property
    def dropped(self) -> int:
        """Events that were too long to be looked at."""
        return 0 if self._splitter is None else self._splitter.dropped

    @property
    def resolution(self) -> int:
        """How many moments in a row :meth:`tokens_before` cannot tell apart; 1: exact.

        See :class:`~hangup.spend.timeline.Timeline`.
        """
        return self._output.stride

    def tokens_before(self, moment: float) -> int:
        """Return how much of ``usage.output`` had come at or before ``moment``.

        From 0 to ``usage.output``, never falling as ``moment`` rises. What came in
        one call of :meth:`feed` came at once. A body that was no stream came evenly
        from ``started_at`` on: that is a proportion, not a measurement.
        """
        total = self.usage.output or 0
        last = self.last_token_at
        if last is None or moment >= last:
            return 0 if last is None else total
        if not self.streamed:
            return int(total * self._thinking(moment, last) + 0.5)
        done = self._output.before(moment)
        if self._hidden and self.first_token_at is not None:
            done += self._hidden * self._thinking(moment, self.first_token_at)
        return max(0, min(total, int(done + 0.5)))

    def moments(self) -> list[float]:
        """Return when output came, in order; empty for a body that was no stream.

        Thoughts that were never streamed came from ``started_at`` on, which is then
        the first.
        """
        moments = self._output.moments() if self.streamed else []
        if moments and self._hidden and self.started_at is not None:
            moments.insert(0, self.started_at)
        return moments

    @property
    def in_steps(self) -> bool:
        """Whether nothing came between those moments; else some came evenly."""
        return not self._hidden and self._output.stride == 1

    def _thinking(self, moment: float, until: float) -> float:
        """Return the share of the time from the start to ``until`` that has gone."""
        if moment >= until:
            return 1.0
        start = self.started_at
        if start is None or moment <= start:
            return 0.0
        return (moment - start) / (until - start)

    @property
    def _unreported(self) -> bool:
        """Whether text came after the provider last said how much it was."""
        return (
            self._reported is not None and self._reported != self._output.estimates[:2]
        )

    def _estimate(self) -> int | None:
        known = self._known
        single, grouped, is_grouped = self._output.estimates
        text = grouped if is_grouped else single
        if self._reported is not None and known.output is not None:
            return known.output + round(text - self._reported[is_grouped])
        if not self.deltas:
            return known.least
        if known.reasoning is not None:
            # Thoughts were reported, seen or not; only the rest is to be estimated.
            text += known.reasoning - min(known.reasoning, self._output.thoughts.tokens)
        return max(round(text), known.least or 0)

    def _begin(self, data: bytes) -> SseSplitter | JsonSplitter:
        # The first byte tells: no line of an event stream begins like JSON.
        self.streamed = not data.startswith(b"{")
        whole = data.startswith((b"{", b"["))
        self._splitter = JsonSplitter() if whole else SseSplitter()
        return self._splitter

    def _mark(self, now: float) -> None:
        """Mark what came since the last mark, if anything did."""
        if self._output.mark(now):
            self._came(now)

    def _came(self, now: float) -> None:
        self._output.last_at = now
        if self.first_token_at is None and self.streamed:
            self.first_token_at = now

    def _count(self, text: bytes, kind: Kind) -> None:
        if kind is _THOUGHT:
            self._output.think(text)
        else:
            self._output.add(text)

    def _block(self, block: bytes, now: float) -> None:
        for template, kind in self._templates.kept:
            text = template.match(block)
            if text is not None:
                self._count(text, kind)
                return
        self._event(block, now)

    def _event(self, block: bytes, now: float) -> None:
        data = block
        if type(self._splitter) is SseSplitter:
            if _LINE_FEED in block and event_name(block).endswith(_ECHOES):
                return
            data = event_data(block)
            if not data:
                return
            if data == b"[DONE]":
                self._known.finish()
                return
        event = parse(data)
        if event is None:
            self.unreadable += 1
            return
        known = self._known
        known.news = False
        deltas = self._read(event, known)
        for delta in deltas:
            self._count(delta.text.encode("utf-8", "surrogatepass"), delta.kind)
        if not known.news:
            if len(deltas) == 1:
                delta = deltas[0]
                self._templates.learn(
                    block, delta.key.encode(), delta.text, delta.kind, self.events
                )
        elif known.output is not None:
            self._report(now, known.output)

    def _report(self, now: float, output: int) -> None:
        """Set the timeline right by what the provider has just said of the output."""
        self._mark(now)
        reasoning = self._known.reasoning
        if self._reported is None and reasoning and self.provider in _OPENAI:
            seen = self._output.thoughts.tokens
            # A summary may have been streamed: it is shorter than what it is of.
            if seen < reasoning / 2:
                self._hidden = min(output, reasoning - round(seen))
        self._reported = self._output.estimates[:2]
        if self._output.report(now, max(0, output - self._hidden)) or (
            output and self.last_token_at is None
        ):
            self._came(now)
