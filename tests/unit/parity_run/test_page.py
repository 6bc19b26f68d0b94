"""The certificate's page: every cell and stage is in it, in words, and nothing of it is markup."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from certificates import HASHES, all_kinds, cell, certificate, equal, stage
from slm2_web.parity_run.page import certificate_page


class Reader(HTMLParser):
    """Text of the body by table row; tags."""

    VOID = ("meta", "rect", "wbr")

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.rows: list[str] = []
        self.words: list[str] = []
        self.feed(page)
        assert self.open == [], self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in self.VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append("")

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" in self.open:
            return
        self.words.append(data)
        if "tr" in self.open:
            self.rows[-1] += f" {data}"


def test_every_cell_has_its_row_and_every_stage_its_verdict() -> None:
    page = Reader(certificate_page(all_kinds()))
    matrix = page.rows[1:7]
    assert "CPython" in matrix[0]
    assert matrix[0].count("baseline") == 3
    assert "120" in matrix[0]
    assert "Chromium" in matrix[1]
    assert matrix[1].count("✓ equal") == 2
    assert "≠ differs" in matrix[2]
    assert "✓ equal" in matrix[2]
    assert "! failed" in matrix[3]
    assert "no WebGPU (navigator.gpu is undefined)" in matrix[4]
    assert matrix[5].count("! not reached") == 2


def test_a_difference_shows_its_input_and_both_outputs() -> None:
    text = " ".join(Reader(certificate_page(all_kinds())).words)
    assert "tokenizer: Firefox, WASM, shared memory" in text
    for part in ("é\\ud800<i>", '{"ids": [1, 2]}', '{"ids": [1, 3]}', "the GPU was lost <b>", "browser.late"):
        assert part in text
    assert "In size quick only." in text


def test_nothing_that_was_told_is_markup() -> None:
    page = certificate_page(all_kinds())
    assert not {"script", "i", "b", "img", "iframe", "link"} & set(Reader(page).tags)
    assert "default-src 'none'" in page
    assert not re.search(r"(src|href)=|url\(|@import", page)


def test_equal_digests_are_drawn_alike_and_others_are_not() -> None:
    def drawn(digest: str | None) -> list[str]:
        page = certificate_page(certificate(cell("chromium", "wasm", stage("tokenizer", digest))))
        return re.findall(r'<svg viewBox="0 0 8 8".*?</svg>', page)

    base, forward, found = drawn(None)
    assert base == found != forward
    other = drawn("f" * 64)
    assert other[2] != other[0] == base
    assert base.count("<rect") == base.count("/>") == 64
    assert base.count('class="off"/>') == 64 - bin(int(HASHES["a"][:16], 16)).count("1")


def test_the_headline_says_what_came_of_it() -> None:
    assert "<h1>The same bits.</h1>" in certificate_page(equal())
    twice = certificate(cell("chromium", "wasm", stage("forward")), cell("firefox", "wasm", stage("forward")))
    assert "<h1>The same bits, 2 times.</h1>" in certificate_page(twice)
    assert "<h1>Not the same bits: 3 of 4 differ or failed.</h1>" in certificate_page(all_kinds())


def test_artifacts_are_listed_with_their_hashes() -> None:
    text = " ".join(Reader(certificate_page(all_kinds())).words)
    for part in ("models/tiny/manifest.json", HASHES["c"], "worker/wasm/forward.wasm", HASHES["d"]):
        assert part in text
