"""Whose machine a gRPC target names is read from what the channel was told."""

from __future__ import annotations

import pytest

from hangup import config
from hangup.clients.grpc_targets import hosts_of, target_allowed


@pytest.mark.parametrize(
    ("target", "hosts"),
    [
        ("agent:50051", ("agent",)),
        ("agent", ("agent",)),
        ("10.1.2.3:50051", ("10.1.2.3",)),
        ("[::1]:50051", ("::1",)),
        ("::1", ("::1",)),
        ("dns:agent.team.svc:50051", ("agent.team.svc",)),
        ("dns:///agent.team.svc:50051", ("agent.team.svc",)),
        ("dns://10.0.0.10/api.example.com:443", ("api.example.com",)),
        ("ipv4:127.0.0.1:5,8.8.8.8:9", ("127.0.0.1", "8.8.8.8")),
        ("ipv6:[::1]:5,[2001:db8::1]:9", ("::1", "2001:db8::1")),
        ("xds:///agents.example.com", ("agents.example.com",)),
        ("unix:/run/agent.sock", None),
        ("unix:///run/agent.sock", None),
        ("unix-abstract:agent", None),
        ("localhost:x", ("localhost",)),
        ("", ("",)),
        ("a" * 5_000, ()),
    ],
)
def test_hosts_are_read_from_targets(target: str, hosts: tuple[str, ...]) -> None:
    assert hosts_of(target) == hosts


@pytest.mark.parametrize(
    ("target", "allowed"),
    [
        ("localhost:50051", True),
        ("unix:/run/agent.sock", True),
        ("ipv4:127.0.0.1:5,10.0.0.1:9", True),
        ("ipv4:127.0.0.1:5,8.8.8.8:9", False),
        ("dns:///generativelanguage.googleapis.com:443", False),
        ("dns://127.0.0.1/api.example.com:443", False),
        ("xds:///agents.example.com", False),
        ("mine:///127.0.0.1/api.example.com", False),
        ("api.example.com:443", False),
        ("", False),
        ("a" * 5_000, False),
    ],
)
def test_only_inside_is_allowed(target: str, allowed: bool) -> None:  # noqa: FBT001  a parameter
    assert target_allowed(target) is allowed


def test_the_operator_may_allow_more() -> None:
    settings = config.with_keywords(config.current(), propagate_to=("api.example.com",))
    config.use(settings)
    assert target_allowed("dns:///api.example.com:443")
    assert not target_allowed("dns:///www.example.com:443")
