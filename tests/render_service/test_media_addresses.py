"""Which addresses media may be fetched from."""

import pytest

from render_service.media_addresses import EVERYWHERE, address_rule

PUBLIC = (
    *("8.8.8.8", "93.184.216.34", "1.1.1.1", "2606:4700::1111", "2a00:1450:4001::200e"),
    *("::ffff:8.8.8.8", "64:ff9b::8.8.8.8"),
)
NOT_PUBLIC = (
    *("0.0.0.0", "0.1.2.3", "10.0.0.1", "127.0.0.1", "127.255.255.254", "172.16.0.1"),
    *("172.31.255.255", "192.168.1.1", "100.64.0.1", "100.100.100.200", "169.254.169.254"),
    *("168.63.129.16", "192.0.0.192", "192.88.99.1", "192.0.2.1", "198.18.0.1", "198.51.100.1"),
    *("203.0.113.1", "224.0.0.1", "239.255.255.250", "240.0.0.1", "255.255.255.255"),
    *("::", "::1", "::127.0.0.1", "::8.8.8.8", "fe80::1", "fe80::1%1", "fec0::1", "fc00::1"),
    *("fd00:ec2::254", "ff02::1", "2001:db8::1", "100::1", "3fff::1", "5f00::1"),
    *("2001::1", "2002:7f00:1::", "2002:808:808::", "64:ff9b:1::10.0.0.1"),
    *("::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "::ffff:0:127.0.0.1"),
    *("64:ff9b::127.0.0.1", "64:ff9b::169.254.169.254", "64:ff9b::a00:1"),
)


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_are_allowed(address: str) -> None:
    assert address_rule(()).allows(address)


@pytest.mark.parametrize("address", NOT_PUBLIC)
def test_all_others_are_not(address: str) -> None:
    assert not address_rule(()).allows(address)
    assert address_rule((EVERYWHERE,)).allows(address)


def test_networks_that_an_operator_allows() -> None:
    rule = address_rule(("10.1.0.0/16", "fd00::/8"))
    assert rule.allows("10.1.2.3")
    assert rule.allows("::ffff:10.1.2.3")
    assert rule.allows("fd00::1")
    assert rule.allows("8.8.8.8")
    assert not rule.allows("10.2.0.1")
    assert not rule.allows("127.0.0.1")
    assert not rule.allows("169.254.169.254")
