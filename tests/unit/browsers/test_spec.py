"""Specs of browsers: names, URLs, and what is wrong with them."""

from __future__ import annotations

import pytest

from slm2_web.browsers import NAMES, BrowserSpec, parse_browsers
from slm2_web.errors import InputError


def test_a_list_is_read_in_its_order() -> None:
    found = parse_browsers("firefox, chromium@ws://host:3000/x?y=1,webkit@https://grid:4444,webkit-unshared")
    assert [(spec.name, spec.url) for spec in found] == [
        ("firefox", None),
        ("chromium", "ws://host:3000/x?y=1"),
        ("webkit", "https://grid:4444"),
        ("webkit-unshared", None),
    ]
    assert [spec.engine for spec in found] == ["firefox", "chromium", "webkit", "webkit"]
    assert [spec.uses_playwright_server for spec in found] == [False, True, False, False]


@pytest.mark.parametrize("name", NAMES)
def test_a_spec_is_written_as_it_is_read(name: str) -> None:
    assert str(parse_browsers(name)[0]) == name
    assert BrowserSpec(name).title == NAMES[name][1]


def test_a_remote_spec_is_written_as_it_is_read() -> None:
    assert str(parse_browsers("firefox@wss://a:1/b")[0]) == "firefox@wss://a:1/b"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", "''"),
        ("opera", "'opera'"),
        ("chromium,", "''"),
        ("Chromium", "'Chromium'"),
        ("chromium@", "''"),
        ("chromium@host:1", "'host:1'"),
        ("chromium@ftp://host", "'ftp://host'"),
        ("chromium@ws://", "'ws://'"),
        ("chromium@ws://host:port", "'ws://host:port'"),
        ("chromium@http://[::1", "'http://[::1'"),
        ("firefox,firefox", "'firefox twice'"),
        ("webkit-unshared@ws://host", "'webkit-unshared@ws://host'"),
    ],
)
def test_what_is_no_browser_is_told(text: str, found: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_browsers(text)
    assert caught.value.code == "input.browser"
    assert f"found {found}; allowed: " in caught.value.message
