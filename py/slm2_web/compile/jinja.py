"""A Jinja chat template -> a program in the bounded instruction form (template2/bounded/program.py).

Theory of operation
-------------------
jinja2's parser reads the template, set up as `transformers` sets it up, and jinja2's own analysis of names
says which variable each name means; what jinja2 turns into Python, this file turns into the program's plain
data, scope for scope: a frame of jinja2's is a set of slots here, and what it loads on entering a frame is
the statements `name`, `copy` and `clear`. Nothing is run.

What the form doesn't offer is refused with its name and the template's line. There is no near enough: a
template compiles whole or not at all.

`strftime_now(FORMAT)` is today's date, which would make yesterday's prompt another prompt. It is refused,
unless the caller fixes the date: then it is the text of that date, as if the template said so itself.
"""

from __future__ import annotations

import datetime
import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

import jinja2.ext
from jinja2 import TemplateSyntaxError, nodes
from jinja2.compiler import find_undeclared
from jinja2.idtracking import (
    VAR_LOAD_ALIAS,
    VAR_LOAD_PARAMETER,
    VAR_LOAD_RESOLVE,
    VAR_LOAD_UNDEFINED,
    Symbols,
)
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from slm2_web.compile.gguf import unsupported
from slm2_web.template2.bounded import program
from slm2_web.template2.bounded.filters import FILTERS, TESTS, takes
from slm2_web.template2.bounded.values import DENIED, MAX_INT, METHODS, OTHERS

MAX_SOURCE = 1 << 18
# Roles that any template may be given; others only where the template compares a role with them.
ROLES = ("system", "user", "assistant", "tool")
_ROLE = re.compile("[a-z][a-z_]{0,31}")
_CALLABLE = frozenset().union(*METHODS.values(), *DENIED.values())
_NEVER_CALLABLE = frozenset().union(*OTHERS.values()) - _CALLABLE
_GLOBALS = frozenset({"cycler", "dict", "joiner", "lipsum"})
_DATE = "strftime_now"
_ARITHMETIC: Mapping[type[nodes.BinExpr], str] = {
    nodes.Sub: "-",
    nodes.Mul: "*",
    nodes.Div: "/",
    nodes.FloorDiv: "//",
    nodes.Mod: "%",
}
_MONTHS = (
    *("January", "February", "March", "April", "May", "June", "July"),
    *("August", "September", "October", "November", "December"),
)
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


class _Generation(jinja2.ext.Extension):
    """`{% generation %}`: marks what the assistant says, for training. A scope of its own, and no text."""

    tags = {"generation"}  # noqa: RUF012  jinja2's own type

    def parse(self, parser: Parser) -> nodes.Node:
        """The block as a scope."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def compile_template(
    source: str,
    variables: Mapping[str, str],
    *,
    date: datetime.date | None = None,
    place: str = "chat_template",
) -> dict[str, Any]:
    """The program of a template, as plain data that `read_program` reads.

    variables  what the template finds besides the conversation: `bos_token`, `eos_token` ...
    date       what `strftime_now` gives
    place      where the template comes from, for errors

    Raises: FormatError `format.unsupported` with the construct and the template's line.
    """
    try:
        return _compiled(source, variables, date)
    except _Refusal as refusal:
        construct, line, allowed = refusal.args
        raise unsupported(f"{place}, line {line}", construct, allowed) from None
    except RecursionError:  # chains are parsed in a loop, and walked by calls
        raise unsupported(place, "expressions nested too deeply", "less nesting") from None


def _compiled(source: str, variables: Mapping[str, str], date: datetime.date | None) -> dict[str, Any]:
    if len(source) > MAX_SOURCE:
        _refuse(f"a template of {len(source)} characters", 1, f"at most {MAX_SOURCE}")
    try:
        tree = environment().parse(source)
    except TemplateSyntaxError as error:
        _refuse(f"a syntax error: {error.message}", error.lineno, "a Jinja template")
    except RecursionError:
        _refuse("expressions nested too deeply", 1, "less nesting")
    except ValueError as error:  # a number of more digits than Python reads
        _refuse(f"a value that can't be read: {error}", 1, "a Jinja template")
    compiler = _Compiler(date)
    compiler.template(tree)
    return {
        "version": program.VERSION,
        "date": None if date is None else date.isoformat(),
        "source": hashlib.sha256(source.encode("utf-8")).hexdigest(),
        "roles": [*ROLES, *sorted(_compared_roles(tree) - set(ROLES))],
        "variables": dict(variables),
        "functions": compiler.functions,
    }


def environment() -> ImmutableSandboxedEnvironment:
    """jinja2, set up as `transformers` sets it up; without the functions that it adds."""
    return ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )


class _Refusal(Exception):
    """A construct that the form lacks."""


def _refuse(construct: str, line: int | None, allowed: str = "what docs/template.md lists") -> NoReturn:
    raise _Refusal(construct, line or 0, allowed)


def _compared_roles(tree: nodes.Template) -> set[str]:
    """The words that the template compares a role with."""
    found: set[str] = set()
    for compare in tree.find_all(nodes.Compare):
        sides = [compare.expr, *(operand.expr for operand in compare.ops)]
        if not any(map(_is_role, sides)):
            continue
        for side in sides:
            for const in [side] if isinstance(side, nodes.Const) else side.find_all(nodes.Const):
                if isinstance(const.value, str) and _ROLE.fullmatch(const.value) and const.value != "role":
                    found.add(const.value)
    return found


def _is_role(node: nodes.Node) -> bool:
    if isinstance(node, nodes.Getattr):
        return node.attr == "role"
    if isinstance(node, nodes.Getitem):
        return isinstance(node.arg, nodes.Const) and node.arg.value == "role"
    return isinstance(node, nodes.Name) and node.name in ("role", "message_role")


def date_text(form: str, date: datetime.date) -> str | None:
    """`strftime` in the C locale at midnight; None for a directive that isn't here."""
    values = {
        "%": "%",
        "a": _DAYS[date.weekday()][:3],
        "A": _DAYS[date.weekday()],
        "b": _MONTHS[date.month - 1][:3],
        "B": _MONTHS[date.month - 1],
        "d": f"{date.day:02}",
        "H": "00",
        "j": f"{date.timetuple().tm_yday:03}",
        "m": f"{date.month:02}",
        "M": "00",
        "S": "00",
        "y": f"{date.year % 100:02}",
        "Y": f"{date.year:04}",
    }
    parts = re.split("%(.?)", form, flags=re.DOTALL)
    if any(directive not in values for directive in parts[1::2]):
        return None
    return "".join(values[part] if i % 2 else part for i, part in enumerate(parts))


@dataclass(slots=True)
class _Function:
    """A function that is being compiled: its slots by jinja2's identifiers."""

    outside: _Function | None
    slots: dict[str, int] = field(default_factory=dict)

    def slot(self, identifier: str) -> int:
        """The slot of this function for an identifier, a new one where it has none."""
        return self.slots.setdefault(identifier, len(self.slots))


@dataclass(frozen=True, slots=True)
class _Frame:
    """Where a node stands: the function, and what jinja2 knows about names there."""

    function: _Function
    symbols: Symbols

    def inner(self, function: _Function | None = None) -> _Frame:
        """A scope in this one."""
        return _Frame(function or self.function, Symbols(self.symbols, self.symbols.level + 1))

    def find(self, name: str) -> list[Any]:
        """[up, slot] of the variable that a name means."""
        return self.locate(self.symbols.ref(name))

    def locate(self, identifier: str) -> list[Any]:
        """[up, slot] of an identifier."""
        up, function = 0, self.function
        while identifier not in function.slots:
            assert function.outside is not None, identifier
            up, function = up + 1, function.outside
        return [up, function.slots[identifier]]


class _Compiler:
    def __init__(self, date: datetime.date | None) -> None:
        self.date = date
        self.functions: list[dict[str, Any]] = []

    def template(self, tree: nodes.Template) -> None:
        if find_undeclared(tree.body, ("self",)):
            _refuse("the name self", 1)
        frame = _Frame(_Function(None), Symbols())
        frame.symbols.analyze_node(tree)
        self.finish(self.reserve(), frame, [], [*self.entered(frame, tree), *self.body(tree.body, frame)])

    def reserve(self) -> int:
        """The index of a new function."""
        self.functions.append({})
        return len(self.functions) - 1

    def finish(self, index: int, frame: _Frame, parameters: list[Any], body: list[Any]) -> None:
        self.functions[index] |= {"slots": len(frame.function.slots), "parameters": parameters, "body": body}

    def entered(self, frame: _Frame, node: nodes.Node) -> list[Any]:
        """What entering a scope does to its variables."""
        statements: list[Any] = []
        cleared = []
        for identifier, (action, what) in frame.symbols.loads.items():
            if action == VAR_LOAD_ALIAS:
                source = frame.locate(what)
                statements.append(["copy", frame.function.slot(identifier), *source])
                continue
            slot = frame.function.slot(identifier)
            if action == VAR_LOAD_RESOLVE:
                self.check_global(what, node)
                statements.append(["name", slot, what])
            elif action == VAR_LOAD_UNDEFINED:
                cleared.append(slot)
            else:
                assert action == VAR_LOAD_PARAMETER
        return [*([["clear", cleared]] if cleared else []), *statements]

    def check_global(self, name: str, node: nodes.Node) -> None:
        """Nothing; an error for a function of Jinja's that this form lacks, at the line that uses it."""
        if name in _GLOBALS or (name == _DATE and self.date is None):
            uses = [found.lineno for found in node.find_all(nodes.Name) if found.name == name]
            _refuse(f"the function {name}", min(uses, default=node.lineno))

    # --- statements

    def body(self, statements: Iterable[nodes.Node], frame: _Frame) -> list[Any]:
        compiled: list[Any] = []
        for node in statements:
            visit = getattr(self, f"do_{type(node).__name__}", None)
            if visit is None:
                _refuse(f"the statement {type(node).__name__}", node.lineno)
            compiled += visit(node, frame)
        return _joined(compiled)

    def do_Output(self, node: nodes.Output, frame: _Frame) -> list[Any]:
        return [
            ["text", part.data]
            if isinstance(part, nodes.TemplateData)
            else ["out", part.lineno, self.expression(part, frame)]
            for part in node.nodes
        ]

    def do_If(self, node: nodes.If, frame: _Frame) -> list[Any]:
        branches = [
            [branch.lineno, self.expression(branch.test, frame), self.body(branch.body, frame)]
            for branch in (node, *node.elif_)
        ]
        return [["if", branches, self.body(node.else_, frame)]]

    def do_For(self, node: nodes.For, frame: _Frame) -> list[Any]:
        if node.recursive:
            _refuse("a recursive loop", node.lineno)
        inside, otherwise = frame.inner(), frame.inner()
        loop = None
        if find_undeclared(node.iter_child_nodes(only=("body",)), ("loop",)):
            loop = inside.function.slot(inside.symbols.declare_parameter("loop"))
        inside.symbols.analyze_node(node, for_branch="body")
        if node.else_:
            otherwise.symbols.analyze_node(node, for_branch="else")
        test = None if node.test is None else self.condition(node, frame)
        values = self.expression(node.iter, frame)
        entered = self.entered(inside, node)
        body = [*entered, *self.body(node.body, inside)]
        target = self.target(node.target, inside)
        rest: list[Any] = []
        if node.else_:
            rest = [*self.entered(otherwise, node), *self.body(node.else_, otherwise)]
        return [["for", node.lineno, values, target, loop, test, body, rest]]

    def condition(self, node: nodes.For, frame: _Frame) -> int:
        """The function of the loop's condition; its parameter is the loop's value."""
        assert node.test is not None
        index = self.reserve()
        inside = frame.inner(_Function(frame.function))
        inside.symbols.analyze_node(node, for_branch="test")
        value = inside.function.slot("value")
        entered = self.entered(inside, node)
        unpack = ["set", node.lineno, self.target(node.target, inside), ["get", 0, value, "value"]]
        branch = [node.test.lineno, self.expression(node.test, inside), [["text", "1"]]]
        self.finish(index, inside, [[value, "value"]], [*entered, unpack, ["if", [branch], []]])
        return index

    def do_Assign(self, node: nodes.Assign, frame: _Frame) -> list[Any]:
        value = self.expression(node.node, frame)
        return [["set", node.lineno, self.target(node.target, frame), value]]

    def do_AssignBlock(self, node: nodes.AssignBlock, frame: _Frame) -> list[Any]:
        inside = frame.inner()
        inside.symbols.analyze_node(node)
        entered = self.entered(inside, node)
        through = self.filters(node.filter, inside)
        body = self.body(node.body, inside)
        return [*entered, ["capture", node.lineno, self.target(node.target, frame), through, body]]

    def do_FilterBlock(self, node: nodes.FilterBlock, frame: _Frame) -> list[Any]:
        inside = frame.inner()
        inside.symbols.analyze_node(node)
        entered = self.entered(inside, node)
        body = self.body(node.body, inside)
        return [*entered, ["filtered", node.lineno, self.filters(node.filter, inside), body]]

    def do_Scope(self, node: nodes.Scope, frame: _Frame) -> list[Any]:
        inside = frame.inner()
        inside.symbols.analyze_node(node)
        return [*self.entered(inside, node), *self.body(node.body, inside)]

    def do_Macro(self, node: nodes.Macro, frame: _Frame) -> list[Any]:
        for name in ("caller", "kwargs", "varargs"):
            if find_undeclared(node.body, (name,)):
                _refuse(f"the name {name} in a macro", node.lineno)
        index = self.reserve()
        inside = frame.inner(_Function(frame.function))
        inside.symbols.analyze_node(node)
        entered = self.entered(inside, node)
        first_default = len(node.args) - len(node.defaults)
        parameters = []
        for i, arg in enumerate(node.args):
            default = node.defaults[i - first_default : i - first_default + 1] if i >= first_default else []
            parameters.append([inside.find(arg.name)[1], arg.name, *self.expressions(default, inside)])
        self.finish(index, inside, parameters, [*entered, *self.body(node.body, inside)])
        return [["macro", frame.find(node.name)[1], node.name, index]]

    def do_Break(self, node: nodes.Break, frame: _Frame) -> list[Any]:
        return [["break"]]

    def do_Continue(self, node: nodes.Continue, frame: _Frame) -> list[Any]:
        return [["continue"]]

    def target(self, node: nodes.Node, frame: _Frame) -> list[Any]:
        if isinstance(node, nodes.Name):
            up, slot = frame.find(node.name)
            assert up == 0
            return ["slot", slot]
        if isinstance(node, nodes.NSRef):
            return ["member", *frame.find(node.name), node.name, node.attr]
        assert isinstance(node, nodes.Tuple), node
        return ["each", [self.target(part, frame) for part in node.items]]

    def filters(self, node: nodes.Filter | None, frame: _Frame) -> list[Any]:
        """A chain of filters without its innermost value, the first filter first."""
        chain: list[Any] = []
        while node is not None:
            chain.insert(0, self.filter_call(node, frame))
            inner = node.node
            assert inner is None or isinstance(inner, nodes.Filter)
            node = inner
        return chain

    # --- expressions

    def expression(self, node: nodes.Node, frame: _Frame) -> Any:
        if type(node) in _ARITHMETIC:
            return self.arithmetic(node, frame)
        visit = getattr(self, f"ex_{type(node).__name__}", None)
        if visit is None:
            _refuse(f"the expression {type(node).__name__}", node.lineno)
        return visit(node, frame)

    def expressions(self, many: Iterable[nodes.Node], frame: _Frame) -> list[Any]:
        return [self.expression(node, frame) for node in many]

    def ex_Const(self, node: nodes.Const, frame: _Frame) -> Any:
        value = node.value
        if isinstance(value, int) and not -MAX_INT < value < MAX_INT:
            _refuse("a number of 2^63 or more", node.lineno)
        if isinstance(value, float) and value in (float("inf"), float("-inf")):
            _refuse("a number that is not finite", node.lineno)
        return value

    def ex_TemplateData(self, node: nodes.TemplateData, frame: _Frame) -> Any:
        return node.data

    def ex_Name(self, node: nodes.Name, frame: _Frame) -> Any:
        if self.is_date(node, frame):
            _refuse(f"{_DATE} without a format in its place", node.lineno)
        return ["get", *frame.find(node.name), node.name]

    def is_date(self, node: nodes.Node, frame: _Frame) -> bool:
        """Whether the node is the name `strftime_now`, and not a variable of the template's."""
        if not isinstance(node, nodes.Name) or node.name != _DATE:
            return False
        load = frame.symbols.find_load(frame.symbols.ref(_DATE))
        return load is not None and load[0] == VAR_LOAD_RESOLVE

    def ex_Getattr(self, node: nodes.Getattr, frame: _Frame) -> Any:
        if node.attr.startswith("__"):
            _refuse(f"the attribute {node.attr}", node.lineno)
        return ["attr", self.expression(node.node, frame), node.attr]

    def ex_Getitem(self, node: nodes.Getitem, frame: _Frame) -> Any:
        owner = self.expression(node.node, frame)
        if isinstance(node.arg, nodes.Slice):
            bounds = (node.arg.start, node.arg.stop, node.arg.step)
            return ["slice", owner, *(None if b is None else self.expression(b, frame) for b in bounds)]
        return ["item", owner, self.expression(node.arg, frame)]

    def ex_List(self, node: nodes.List, frame: _Frame) -> Any:
        return ["list", self.expressions(node.items, frame)]

    def ex_Tuple(self, node: nodes.Tuple, frame: _Frame) -> Any:
        return ["tuple", self.expressions(node.items, frame)]

    def ex_Dict(self, node: nodes.Dict, frame: _Frame) -> Any:
        return ["dict", [self.expressions((pair.key, pair.value), frame) for pair in node.items]]

    def ex_Not(self, node: nodes.Not, frame: _Frame) -> Any:
        return ["not", self.expression(node.node, frame)]

    def ex_And(self, node: nodes.And, frame: _Frame) -> Any:
        return ["and", self.expressions(_chain(node), frame)]

    def ex_Or(self, node: nodes.Or, frame: _Frame) -> Any:
        return ["or", self.expressions(_chain(node), frame)]

    def ex_Add(self, node: nodes.Add, frame: _Frame) -> Any:
        return ["add", self.expressions(_chain(node), frame)]

    def ex_Concat(self, node: nodes.Concat, frame: _Frame) -> Any:
        return ["cat", self.expressions(node.nodes, frame)]

    def arithmetic(self, node: Any, frame: _Frame) -> Any:
        operation = _ARITHMETIC[type(node)]
        if operation == "%" and isinstance(node.left, nodes.Const) and isinstance(node.left.value, str):
            _refuse("% on a string", node.lineno)
        return [operation, *self.expressions((node.left, node.right), frame)]

    def ex_Neg(self, node: nodes.Neg, frame: _Frame) -> Any:
        return ["neg", self.expression(node.node, frame)]

    def ex_Pos(self, node: nodes.Pos, frame: _Frame) -> Any:
        return ["pos", self.expression(node.node, frame)]

    def ex_Compare(self, node: nodes.Compare, frame: _Frame) -> Any:
        operands = [[operand.op, self.expression(operand.expr, frame)] for operand in node.ops]
        return ["compare", self.expression(node.expr, frame), operands]

    def ex_CondExpr(self, node: nodes.CondExpr, frame: _Frame) -> Any:
        otherwise = [] if node.expr2 is None else self.expression(node.expr2, frame)
        return ["choose", *self.expressions((node.test, node.expr1), frame), otherwise]

    def ex_Call(self, node: nodes.Call, frame: _Frame) -> Any:
        if node.dyn_args is not None or node.dyn_kwargs is not None:
            _refuse("a call with * or **", node.lineno)
        if self.is_date(node.node, frame):
            return self.date_call(node)
        callee = node.node
        if isinstance(callee, nodes.Getattr) and callee.attr in _NEVER_CALLABLE:
            _refuse(f"the method {callee.attr}", node.lineno)
        named = self.named(node.kwargs, frame)
        return ["call", self.expression(callee, frame), self.expressions(node.args, frame), named]

    def named(self, keywords: Iterable[Any], frame: _Frame) -> dict[str, Any]:
        """Arguments by name."""
        return {keyword.key: self.expression(keyword.value, frame) for keyword in keywords}

    def date_call(self, node: nodes.Call) -> str:
        """The text of the fixed date."""
        assert self.date is not None
        form = node.args[0] if len(node.args) == 1 and not node.kwargs else None
        if not isinstance(form, nodes.Const) or not isinstance(form.value, str):
            _refuse(f"{_DATE} without a format in its place", node.lineno)
        found = date_text(form.value, self.date)
        if found is None:
            _refuse(f"{_DATE} with the format {form.value!r}", node.lineno)
        return found

    def ex_Filter(self, node: nodes.Filter, frame: _Frame) -> Any:
        assert node.node is not None
        return ["filter", self.expression(node.node, frame), *self.filter_call(node, frame)]

    def filter_call(self, node: nodes.Filter, frame: _Frame) -> list[Any]:
        """[name, arguments, named arguments]."""
        if node.dyn_args is not None or node.dyn_kwargs is not None:
            _refuse("a filter with * or **", node.lineno)
        if node.name not in FILTERS:
            _refuse(f"the filter {node.name}", node.lineno)
        named = self.named(node.kwargs, frame)
        if not takes(FILTERS, node.name, len(node.args), named):
            shown = ", ".join([*("_" for _ in node.args), *(f"{name}=_" for name in named)])
            _refuse(f"the filter {node.name}({shown})", node.lineno)
        if node.name in ("map", "select", "reject", "selectattr", "rejectattr"):
            self.check_inner(node)
        return [node.name, self.expressions(node.args, frame), named]

    def check_inner(self, node: nodes.Filter) -> None:
        """Nothing; an error for a filter or test that is named in a text, and isn't there."""
        at = int(node.name.endswith("attr"))
        table, what = (FILTERS, "filter") if node.name == "map" else (TESTS, "test")
        if len(node.args) > at:
            name = node.args[at]
            if not isinstance(name, nodes.Const) or name.value not in table:
                _refuse(f"{node.name} with the {what} {getattr(name, 'value', '?')!r}", node.lineno)

    def ex_Test(self, node: nodes.Test, frame: _Frame) -> Any:
        if self.is_date(node.node, frame) and node.name in ("defined", "undefined"):
            return node.name == "defined"
        if node.name not in TESTS or node.kwargs or node.dyn_args or node.dyn_kwargs:
            _refuse(f"the test {node.name}", node.lineno)
        if not takes(TESTS, node.name, len(node.args), ()):
            _refuse(f"the test {node.name} with {len(node.args)} arguments", node.lineno)
        return ["test", self.expression(node.node, frame), node.name, self.expressions(node.args, frame)]


def _chain(node: nodes.BinExpr) -> list[nodes.Node]:
    """The operands of a left-nested chain of one operation."""
    operands: list[nodes.Node] = []
    at: nodes.Node = node
    while type(at) is type(node):
        assert isinstance(at, nodes.BinExpr)
        operands.insert(0, at.right)
        at = at.left
    return [at, *operands]


def _joined(statements: list[Any]) -> list[Any]:
    """The statements, with neighbouring texts as one."""
    joined: list[Any] = []
    for statement in statements:
        if statement[0] == "text" and joined and joined[-1][0] == "text":
            joined[-1] = ["text", joined[-1][1] + statement[1]]
        else:
            joined.append(statement)
    return joined
