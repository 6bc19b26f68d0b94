"""The kept modules are what their sources give, and have no memory of their own."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from slm2_web.compile.wasm import SOURCES, WasmBuildError, build, differences, main

MODULES = sorted(SOURCES.glob("*.wasm"))
IMPORT, GLOBAL, EXPORT, START, ELEMENT, CODE, DATA = 2, 6, 7, 8, 9, 10, 11


def sections(module: bytes) -> dict[int, bytes]:
    """The module's sections by id."""
    assert module[:8] == b"\0asm\1\0\0\0"
    found: dict[int, bytes] = {}
    at = 8
    while at < len(module):
        kind = module[at]
        size, at = leb128(module, at + 1)
        found[kind] = module[at : at + size]
        at += size
    return found


def leb128(data: bytes, at: int) -> tuple[int, int]:
    """(number, place after it)."""
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def names(section: bytes) -> Iterator[str]:
    """The exported names."""
    count, at = leb128(section, 0)
    for _ in range(count):
        size, at = leb128(section, at)
        yield section[at : at + size].decode()
        _, at = leb128(section, at + size + 1)


def test_a_fresh_build_gives_the_same_bytes() -> None:
    assert MODULES
    assert differences() == []


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_a_module_has_a_memory_of_others_and_nothing_else(path: Path) -> None:
    found = sections(path.read_bytes())
    assert not found.keys() & {START, ELEMENT, DATA}
    # One import: the memory, whose flags say whether it is shared.
    head = b"\x01\x03env\x06memory\x02"
    assert found[IMPORT].startswith(head)
    assert found[IMPORT][len(head)] & 2 == (2 if path.name.endswith(".shared.wasm") else 0)
    # One global: the stack's top, which is 0, so that its first use would trap if nobody set it.
    assert found[GLOBAL] == b"\x01\x7f\x01\x41\x00\x0b"


def test_the_tokenizer_needs_no_stack_and_exports_what_the_callers_use() -> None:
    found = sections((SOURCES / "tokenizer.wasm").read_bytes())
    # No code reads the stack's top: global.get 0, followed by the constant that is to be subtracted.
    assert b"\x23\x00\x41" not in found[CODE]
    functions = {"tok_encode", "tok_out_cap", "tok_scratch_bytes", "tok_split", "tok_normalize"}
    assert set(names(found[EXPORT])) == functions | {"__stack_pointer"}


def test_differences_are_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.c").write_text('__attribute__((export_name("x"))) int x(void) { return 1; }\n')
    (tmp_path / "old.wasm").write_bytes(b"")
    assert differences(tmp_path) == ["old.wasm", "x.shared.wasm", "x.wasm"]
    build(tmp_path, tmp_path)
    assert differences(tmp_path) == ["old.wasm"]
    (tmp_path / "x.c").write_text('__attribute__((export_name("x"))) int x(void) { return 2; }\n')
    assert differences(tmp_path) == ["old.wasm", "x.shared.wasm", "x.wasm"]
    assert main(["--check"]) == 0
    assert capsys.readouterr() == ("", "")


def test_a_place_elsewhere_gives_the_same_bytes(tmp_path: Path) -> None:
    elsewhere = tmp_path / "some where" / "else"
    elsewhere.mkdir(parents=True)
    shutil.copy(SOURCES / "tokenizer.c", elsewhere)
    for path in build(tmp_path / "out", elsewhere):
        assert path.read_bytes() == (SOURCES / path.name).read_bytes()


def test_a_source_that_does_not_compile_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.c").write_text("int x(void) { return y; }\n")
    with pytest.raises(WasmBuildError, match=r"x\.c"):
        build(tmp_path, tmp_path)
