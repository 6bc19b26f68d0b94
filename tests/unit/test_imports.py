"""Imports look back only, in the order of the list in the package's docstring."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import slm2_web

PACKAGE = Path(slm2_web.__file__).parent
BROWSER_MODULES = {"js", "pyodide", "pyodide_js"}


def stage_order() -> dict[str, int]:
    """Place of each stage in the docstring's list; `a -> b` are two places, `a, b` is one."""
    docstring = slm2_web.__doc__ or ""
    order: dict[str, int] = {}
    for line in docstring.splitlines():
        if not (match := re.match(r"    (\w+(?:(?:, | -> )\w+)*)(?:  |$)", line)):
            continue
        for group in match[1].split(" -> "):
            order.update(dict.fromkeys(group.split(", "), len(set(order.values()))))
    return order


ORDER = stage_order()
FILES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


def stage_of(module: str) -> str:
    """The stage of `slm2_web.STAGE.…`."""
    return module.split(".")[1]


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """(line, module) of every import in the file, those inside functions too."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports name the package"
            module = node.module or ""
            if module == "slm2_web":
                for alias in node.names:
                    yield node.lineno, f"slm2_web.{alias.name}"
            else:
                yield node.lineno, module


def test_the_list_is_read() -> None:
    first = ["errors", "container", "manifest", "tokenizer2", "template2", "prompt2", "forward2", "sampling2"]
    assert [name for name in ORDER if name in first] == first
    assert ORDER["cli"] == ORDER["compile"] == max(ORDER.values())


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_look_back(path: Path) -> None:
    stage = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    assert stage in ORDER, f"{stage} is not in the list of slm2_web/__init__.py"
    for line, module in imports(path):
        if module.split(".")[0] in BROWSER_MODULES:
            assert stage == "bridge", f"{path}:{line}: only bridge imports {module}"
        if module.startswith("slm2_web.") and module != "slm2_web.__version__":
            assert stage_of(module) in ORDER, f"{module} is not in the list of slm2_web/__init__.py"
            assert ORDER[stage_of(module)] <= ORDER[stage], f"{path}:{line}: {stage} comes before {module}"
