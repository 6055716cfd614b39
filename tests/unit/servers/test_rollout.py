"""Rules by path and tenant, and whom a request is for, over every kind of server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import baggage, context
from support.ruling import use_rules

from hangup import config
from hangup.config import Mode, OnDisconnect, Settings
from hangup.core import guard, rollout
from hangup.otel.wire import Inbound, encode_header
from hangup.servers._common_tenant import MOST_CHARACTERS
from hangup.servers._common_terms import Terms
from hangup.servers._wsgi_environ import headers

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hangup.core.run import Run


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    before = config.use(Settings())
    yield
    rollout.reset()
    config.use(before)


def opened(
    path: str = "/chat",
    sent: Mapping[str, str] | None = None,
    *,
    root: str = "",
    kind: str = "http",
    request: object = None,
    **options: Any,
) -> Run | None:
    fields = [(key.encode(), value.encode()) for key, value in (sent or {}).items()]
    opening = Terms(**options).open(kind, "GET", path, root, fields, request)
    if opening is None:
        return None
    with opening.run as run:
        run.deliver()
    return run


def mode_of(path: str, **options: Any) -> str | None:
    run = opened(path, **options)
    return None if run is None else str(run.mode)


def test_rules_are_matched_below_the_root_and_by_the_whole_path() -> None:
    use_rules(
        {"route": "/chat/{id}", "mode": "refuse"},
        {"route": "/app/*", "mode": "observe"},
        {"route": "/health", "mode": "off"},
    )
    assert mode_of("/chat/1") == "refuse"
    assert mode_of("/app/chat/1", root="/app") == "refuse"
    assert mode_of("/app/x", root="/app") == "observe"
    assert mode_of("/other") == "enforce"
    assert mode_of("/health") is None


def test_code_that_was_not_asked_for_observes_until_a_rule_or_the_ceiling_says() -> (
    None
):
    unruled: Any = {"unruled": Mode.OBSERVE}
    assert mode_of("/chat", **unruled) == "observe"
    use_rules({"route": "/chat", "mode": "enforce"})
    assert mode_of("/chat", **unruled) == "enforce"
    assert mode_of("/x", **unruled) == "observe"
    config.use(Settings(mode=Mode.ENFORCE))
    assert mode_of("/x", **unruled) == "enforce"


def test_a_rule_beats_code_where_it_is_less() -> None:
    use_rules(default={"mode": "observe"})
    assert mode_of("/chat", mode="enforce") == "observe"
    assert mode_of("/chat", routes={"/chat": {"mode": "enforce"}}) == "observe"
    use_rules(default={"mode": "enforce"})
    assert mode_of("/chat", mode="observe") == "observe"


def budget_of(path: str = "/chat", **options: Any) -> float | None:
    run = opened(path, **options)
    assert run is not None
    if not run.deadline.is_set:
        return None
    return round(run.deadline.at - run.started_at)


def test_a_rules_budget_goes_before_the_codes_and_headers_still_tighten_it() -> None:
    use_rules({"route": "/chat", "budget": 60}, {"route": "/live", "budget": "none"})
    assert budget_of(budget=30) == 60
    assert budget_of("/live", budget=30) is None
    assert budget_of(sent={"x-hangup-budget": "10"}) == 10
    inbound = encode_header(Inbound("a" * 32, left=20.0))
    assert budget_of(sent={"hangup": inbound}) == 20


def test_what_stays_open_has_a_budget_only_of_a_rule_for_its_route() -> None:
    events = {"accept": "text/event-stream"}
    use_rules({"route": "/live", "budget": 60}, default={"budget": 30})
    assert budget_of() == 30
    assert budget_of(sent=events) is None
    assert budget_of(kind="websocket") is None
    assert budget_of("/live", sent=events) == 60
    assert budget_of("/live", kind="websocket") == 60


def test_a_rule_says_what_a_disconnect_means() -> None:
    use_rules(default={"on_disconnect": "grace", "grace": 7})
    run = opened(on_disconnect="finish")
    assert run is not None
    assert run.absence.on_disconnect is OnDisconnect.GRACE
    assert run.absence.grace == 7
    use_rules(default={"on_disconnect": "grace"})
    run = opened()
    assert run is not None
    assert run.absence.grace == Settings().grace


@pytest.mark.parametrize(
    ("theirs", "rule", "expected"),
    [
        ("observe", "enforce", "observe"),
        ("enforce", "observe", "observe"),
        ("refuse", "enforce", "refuse"),
        ("off", "enforce", "observe"),
        ("enforce", "enforce", "enforce"),
        (None, "enforce", "enforce"),
    ],
)
def test_of_the_mode_on_the_wire_and_the_rules_the_less_intrusive_wins(
    theirs: str | None, rule: str, expected: str
) -> None:
    use_rules(default={"mode": rule})
    mode = None if theirs is None else Mode(theirs)
    sent = {"hangup": encode_header(Inbound("a" * 32, mode=mode))}
    assert mode_of("/chat", sent=sent) == expected


# Whom it is for


def tenant_of(sent: Mapping[str, str] | None = None, **options: Any) -> str:
    run = opened("/chat", sent, **options)
    assert run is not None
    return run.tenant


def test_a_header_says_whom_a_request_is_for() -> None:
    assert tenant_of({"x-tenant": "acme"}) == ""
    config.use(Settings(tenant_from="header:x-tenant"))
    assert tenant_of({"x-tenant": " acme "}) == "acme"
    assert tenant_of({"x-tenant": "Bücher"}) == "Bücher"
    assert tenant_of({}) == ""


def test_a_baggage_entry_says_it_in_the_context_or_in_the_headers() -> None:
    config.use(Settings(tenant_from="baggage:tenant"))
    assert tenant_of({"baggage": "a=b,tenant=acme%20x"}) == "acme x"
    assert tenant_of({}) == ""
    token = context.attach(baggage.set_baggage("tenant", "globex"))
    try:
        assert tenant_of({"baggage": "tenant=acme"}) == "globex"
    finally:
        context.detach(token)


def test_a_callback_says_it_and_the_setting_where_it_does_not() -> None:
    config.use(Settings(tenant_from="header:x-tenant"))
    sent = {"x-tenant": "acme"}
    request = {"user": "globex"}

    def ask(found: dict[str, str]) -> str | None:
        return found.get("user")

    assert tenant_of(sent, tenant=ask, request=request) == "globex"
    assert tenant_of(sent, tenant=ask, request={}) == "acme"
    assert tenant_of(sent, tenant="named") == "named"
    named = {"/chat": {"tenant": "routes"}}
    assert tenant_of(sent, tenant=ask, request=request, routes=named) == "routes"


def test_a_callback_that_fails_or_says_nonsense_is_no_fault_of_the_request() -> None:
    def ask(_request: object) -> str | None:
        raise LookupError

    def number(_request: object) -> Any:
        return 7

    guard.strict(on=False)
    assert tenant_of(tenant=ask) == ""
    assert tenant_of(tenant=number) == ""


@pytest.mark.parametrize("text", ["a\nb", "x" * (MOST_CHARACTERS + 1), "\x00", " "])
def test_what_is_no_plain_name_is_nobodys(text: str) -> None:
    config.use(Settings(tenant_from="header:x-tenant"))
    assert tenant_of({"x-tenant": text}) == ""


def test_the_tenant_chooses_the_rule() -> None:
    config.use(Settings(tenant_from="header:x-tenant"))
    use_rules({"tenant": "acme", "mode": "refuse"}, default={"mode": "observe"})
    assert mode_of("/chat", sent={"x-tenant": "acme"}) == "refuse"
    assert mode_of("/chat") == "observe"


def test_wsgi_looks_at_the_tenants_header_too() -> None:
    config.use(config.with_keywords(Settings(), tenant_from="header:X-Tenant"))
    environ: dict[str, Any] = {"HTTP_X_TENANT": "acme", "HTTP_COOKIE": "no"}
    found = list(headers(environ, *Terms().own_headers))
    assert found == [(b"x-tenant", b"acme")]
