"""Which hosts may have the run: default deny."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hangup.otel.hosts import host_allowed, host_of_url


@pytest.mark.parametrize(
    "host",
    [
        "localhost", "LOCALHOST", "api.localhost", "127.0.0.1", "127.8.9.1", "::1",
        "[::1]", "10.1.2.3", "172.16.0.1", "172.31.255.255", "192.168.1.1", "fd00::1",
        "::ffff:10.0.0.1", "subagent", "sub_agent-2", "subagent.team.svc",
        "subagent.team.svc.cluster.local", "api.prod.internal", "API.Prod.Internal.",
    ],
)  # fmt: skip
def test_machines_of_ones_own_are_allowed(host: str) -> None:
    assert host_allowed(host)


@pytest.mark.parametrize(
    "host",
    [
        "", ".", "api.openai.com", "api.anthropic.com", "8.8.8.8", "172.32.0.1",
        "11.0.0.1", "169.254.169.254", "0.0.0.0", "100.64.0.1", "2001:db8::1",  # noqa: S104  a host, not a bind
        "fe80::1", "::ffff:8.8.8.8", "internal.example.com", "localhost.example",
        "evilsvc.com", "notlocalhost.com", "cluster.local.evil.com", "16843009",
        "0x01010101", "127.1", "1.1", "ex ample", "user@localhost", "localhost:80",
        "локалхост", "a" * 64, "a." * 130 + "svc", "localhost\x00.evil.com", "a..svc",
    ],
)  # fmt: skip
def test_everybody_else_is_denied(host: str) -> None:
    assert not host_allowed(host)


def test_the_operators_list_adds_names_suffixes_networks_and_everything() -> None:
    extra = ("agents.example.com", "*.corp.example", ".lan", "100.64.0.0/10", "8.8.8.8")
    for host in (
        "agents.example.com",
        "AGENTS.example.com.",
        "a.corp.example",
        "a.b.corp.example",
        "printer.lan",
        "100.64.3.4",
        "8.8.8.8",
    ):
        assert host_allowed(host, extra), host
    for host in (
        "example.com",
        "corp.example",
        "evilcorp.example",
        "8.8.4.4",
        "lan.com",
    ):
        assert not host_allowed(host, extra), host
    assert host_allowed("api.openai.com", ("*",))
    assert host_allowed("8.8.4.4", ("*",))


def test_an_empty_pattern_allows_nothing() -> None:
    assert not host_allowed("api.openai.com", ("", " ", "."))


@given(st.text(max_size=300), st.lists(st.text(max_size=20), max_size=3))
def test_no_text_raises(host: str, extra: list[str]) -> None:
    assert host_allowed(host, extra) in (True, False)


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("http://Agents.Example:8080/x?y=http://localhost/", "agents.example"),
        ("http://localhost@evil.com/", "evil.com"),
        ("https://user:pass@[::1]:8/x", "::1"),
        ("http://[broken", ""),
        ("not a url", ""),
        ("", ""),
    ],
)
def test_the_host_of_a_url_is_where_it_really_goes(url: str, host: str) -> None:
    assert host_of_url(url) == host
