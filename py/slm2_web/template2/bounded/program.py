"""A compiled template: its JSON form, the reader that checks it, and what running it means.

    {"version": 1, "source": SHA256, "date": DATE or null, "roles": [ROLE...], "variables": {NAME: TEXT...},
     "functions": [FUNCTION...]}

`source` is the hash of the Jinja text, `date` the day that the template takes for today, `roles` the roles
that messages may have, `variables` what the template finds under these names besides the conversation.
FUNCTION 0 is the template; the others are its macros and the conditions of its filtered loops.

    FUNCTION     {"slots": N, "parameters": [PARAMETER...], "body": [STATEMENT...]}
    PARAMETER    [SLOT, NAME]    [SLOT, NAME, EXPRESSION]: with a default

A function's variables are slots, empty at first. Where Jinja's scopes make a name mean another variable, the
compiler has given it another slot: there is no scope left to resolve. (UP, SLOT) is the slot of the function
UP levels outside.

    STATEMENT    ["text", TEXT]                                     the template's own words
                 ["out", LINE, EXPRESSION]                          the value's text
                 ["if", [[LINE, EXPRESSION, BODY]...], BODY]        first that is true, or else
                 ["for", LINE, EXPRESSION, TARGET, LOOP, TEST, BODY, ELSE]   LOOP: a slot or null;
                                                                    TEST: a function or null
                 ["set", LINE, TARGET, EXPRESSION]
                 ["capture", LINE, TARGET, FILTERS, BODY]           the body's text
                 ["filtered", LINE, FILTERS, BODY]                  the body's text through filters, written
                 ["macro", SLOT, NAME, FUNCTION]
                 ["name", SLOT, NAME]                               the slot := what the template finds there
                 ["copy", SLOT, UP, SLOT]    ["clear", [SLOT...]]    ["break"]    ["continue"]
    TARGET       ["slot", SLOT] | ["member", UP, SLOT, NAME, FIELD] (of a namespace) | ["each", [TARGET...]]
    FILTERS      [[NAME, [EXPRESSION...], {NAME: EXPRESSION...}]...]
    EXPRESSION   null, true, false, a number, a text: itself        ["get", UP, SLOT, NAME]
                 ["attr", E, NAME]      ["item", E, E]               ["slice", E, E, E, E]
                 ["list", [E...]]       ["tuple", [E...]]            ["dict", [[E, E]...]]
                 ["not", E]  ["and", [E...]]  ["or", [E...]]         ["choose", E test, E then, E else or []]
                 ["compare", E, [[OPERATOR, E]...]]                  ["cat", [E...]]
                 ["add", [E...]]        ["-", E, E]  and * / // %    ["neg", E]  ["pos", E]
                 ["call", E, [E...], {NAME: E...}]
                 ["filter", E, NAME, [E...], {NAME: E...}]           ["test", E, NAME, [E...]]

Running
-------
The reader turns each node into a Python closure, once. All loops are over finite values that are there before
the loop begins, a function's depth is bounded, and each statement costs as many steps as its expressions have
nodes, more where text or lists are made: see Meter. A program is data from outside: whatever isn't of this
form is `format.manifest`, and whatever is can do no more than spend its steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slm2_web.errors import FormatError
from slm2_web.strictjson import Checks, show
from slm2_web.template2.bounded import filters, text
from slm2_web.template2.bounded.filters import FILTERS, TESTS, Call, sliced
from slm2_web.template2.bounded.values import (
    MAX_CALLS,
    MAX_INT,
    MAX_RANGE,
    Builtin,
    Fault,
    Limit,
    Loop,
    Macro,
    Meter,
    Method,
    Namespace,
    Undefined,
    attribute,
    item,
    iterator,
    to_text,
)

VERSION = 1
MAX_NODES = 60_000
MAX_NESTING = 100
MAX_SLOTS = 4_096
MAX_FUNCTIONS = 512
MAX_TEXT = 1 << 20
MAX_NAME = 200
BUILTINS = ("namespace", "raise_exception", "range")
PLACE = "template.program"
_FIELDS = ("version", "source", "date", "roles", "variables", "functions")


class Frame:
    """One call of a function: its slots, and the call that it was defined in."""

    __slots__ = ("call", "meter", "names", "slots", "up")

    def __init__(self, n_slots: int, up: Frame | None, names: Mapping[str, Any], meter: Meter) -> None:
        self.slots: list[Any] = [_EMPTY] * n_slots
        self.up = up
        self.names = names
        self.meter = meter
        self.call: Call = up.call if up else Call(meter)


_EMPTY = object()
_BREAK, _CONTINUE = "break", "continue"

Expression = Callable[[Frame], Any]
Statement = Callable[[Frame, list[str]], str | None]
Target = Callable[[Frame, Any], None]


@dataclass(frozen=True, slots=True)
class Parameter:
    """A macro's parameter."""

    slot: int
    name: str
    default: Expression | None


@dataclass(slots=True)
class Function:
    """The template, a macro, or a filtered loop's condition."""

    n_slots: int
    parameters: Sequence[Parameter]
    body: Statement


@dataclass(frozen=True, slots=True)
class Program:
    """A compiled template, ready to run."""

    source: str
    roles: tuple[str, ...]
    variables: Mapping[str, str]
    main: Function
    words: frozenset[str]  # what it asks for by name: variables, attributes, keys

    def run(self, names: Mapping[str, Any], meter: Meter) -> str:
        """The text that the template writes when it finds `names`. Raises: Fault, Limit."""
        out: list[str] = []
        found: dict[str, Any] = {name: Builtin(name) for name in BUILTINS}
        found |= {name: text.literal(value) for name, value in self.variables.items()}
        try:
            self.main.body(Frame(self.main.n_slots, None, found | dict(names), meter), out)
        except RecursionError:
            raise Limit("nested too deeply") from None
        except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
            # What Python says where a template asks a value for what it can't do; Jinja's says the same.
            raise Fault(f"{type(error).__name__}: {error}") from None
        return text.concat(out)


def read_program(value: object) -> Program:
    """The program in the plain data of a manifest.

    Raises: FormatError `format.manifest` with the place, what was found and what is allowed.
    """
    root = _JSON.object_with(value, PLACE, _FIELDS)
    _JSON.integer(root["version"], f"{PLACE}.version", VERSION, VERSION)
    source = _JSON.sha256(root["source"], f"{PLACE}.source")
    if root["date"] is not None:
        _JSON.text(root["date"], f"{PLACE}.date", 10, 10)
    roles = _JSON.array(root["roles"], f"{PLACE}.roles", 1, 64)
    variables = _JSON.any_object(root["variables"], f"{PLACE}.variables")
    if len(variables) > 64:
        raise _bad(f"{PLACE}.variables", f"{len(variables)}", "at most 64")
    reader = _Reader(root["functions"])
    return Program(
        source,
        tuple(_JSON.text(role, f"{PLACE}.roles[{i}]", 1, 64) for i, role in enumerate(roles)),
        {
            _JSON.text(name, f"{PLACE}.variables", 1, MAX_NAME): _JSON.text(
                text_, f"{PLACE}.variables.{show(name)}", 0, MAX_TEXT
            )
            for name, text_ in variables.items()
        },
        reader.functions[0],
        frozenset(reader.words),
    )


class _Reader:
    """Makes closures of nodes. Every method takes a node and its place, and counts what it reads."""

    def __init__(self, functions: object) -> None:
        raw = _JSON.array(functions, f"{PLACE}.functions", 1, MAX_FUNCTIONS)
        self.words: set[str] = set()
        self.nodes = 0
        self.depth = 0
        self.in_loop = 0
        # Slots of the function that is read and of those around it, outermost first.
        self.scopes: list[int] = []
        self.raw = raw
        self.functions: dict[int, Function] = {}
        self.function(0)
        for index in range(len(raw)):
            if index not in self.functions:
                raise _bad(f"{PLACE}.functions[{index}]", "a function that nothing names", "none")

    def function(self, index: int) -> Function:
        """Read a function where it is defined, so that what is around it is known; each only once."""
        place = f"{PLACE}.functions[{index}]"
        if index in self.functions:
            raise _bad(place, "a function that is defined twice", "one definition")
        raw = _JSON.object_with(self.raw[index], place, ("slots", "parameters", "body"))
        n_slots = _JSON.integer(raw["slots"], f"{place}.slots", 0, MAX_SLOTS)
        result = Function(n_slots, (), _nothing)
        self.functions[index] = result
        self.scopes.append(n_slots)
        loops, self.in_loop = self.in_loop, 0
        parameters = []
        for i, entry in enumerate(_JSON.array(raw["parameters"], f"{place}.parameters", 0, 64)):
            where = f"{place}.parameters[{i}]"
            slot, name, *default = _JSON.array(entry, where, 2, 3)
            parameters.append(
                Parameter(
                    self.slot(slot, 0, where),
                    self.name(name, where),
                    self.expression(default[0], where) if default else None,
                )
            )
        result.parameters = parameters
        result.body = self.body(raw["body"], f"{place}.body")
        self.in_loop = loops
        self.scopes.pop()
        return result

    # --- parts

    def enter(self, place: str) -> None:
        self.nodes += 1
        self.depth += 1
        if self.nodes > MAX_NODES:
            raise _bad(place, f"more than {MAX_NODES} nodes", f"at most {MAX_NODES}")
        if self.depth > MAX_NESTING:
            raise _bad(place, f"nesting deeper than {MAX_NESTING}", f"at most {MAX_NESTING}")

    def node(self, raw: object, place: str, sizes: Mapping[str, int]) -> tuple[str, list[Any]]:
        """(operation, the rest) of a node whose operation is in `sizes`, with so many parts after it."""
        if not isinstance(raw, list) or not raw or not isinstance(raw[0], str) or raw[0] not in sizes:
            raise _bad(place, show(raw), "one of " + ", ".join(sizes))
        if len(raw) != sizes[raw[0]] + 1:
            raise _bad(place, f"{raw[0]} with {len(raw) - 1} parts", f"{sizes[raw[0]]}")
        return raw[0], raw[1:]

    def name(self, raw: object, place: str) -> str:
        name = _JSON.text(raw, place, 1, MAX_NAME)
        self.words.add(name)
        return name

    def up(self, raw: object, place: str) -> int:
        return _JSON.integer(raw, place, 0, len(self.scopes) - 1)

    def slot(self, raw: object, up: int, place: str) -> int:
        return _JSON.integer(raw, place, 0, self.scopes[-1 - up] - 1)

    def line(self, raw: object, place: str) -> int:
        return _JSON.integer(raw, place, 0, 1 << 24)

    # --- statements

    def body(self, raw: object, place: str) -> Statement:
        statements = [
            self.statement(entry, f"{place}[{i}]")
            for i, entry in enumerate(_JSON.array(raw, place, 0, MAX_NODES))
        ]
        if not statements:
            return _nothing
        if len(statements) == 1:
            return statements[0]

        def run(frame: Frame, out: list[str]) -> str | None:
            for statement in statements:
                signal = statement(frame, out)
                if signal:
                    return signal
            return None

        return run

    def statement(self, raw: object, place: str) -> Statement:
        self.enter(place)
        operation, parts = self.node(raw, place, _STATEMENTS)
        made: Statement = getattr(self, f"do_{operation}")(parts, place)
        self.depth -= 1
        return made

    def priced(self, raw: object, place: str) -> tuple[Expression, int]:
        """An expression and the number of its nodes."""
        before = self.nodes
        return self.expression(raw, place), self.nodes - before

    def do_text(self, parts: list[Any], place: str) -> Statement:
        words = text.literal(_JSON.text(parts[0], place, 0, MAX_TEXT))
        cost = 1 + (len(words) >> 4)

        def run(frame: Frame, out: list[str]) -> None:
            frame.meter.spend(cost)
            out.append(words)

        return run

    def do_out(self, parts: list[Any], place: str) -> Statement:
        line = self.line(parts[0], place)
        value, cost = self.priced(parts[1], place)

        def run(frame: Frame, out: list[str]) -> None:
            meter = frame.meter
            meter.line = line
            meter.spend(cost)
            written = to_text(value(frame), meter)
            meter.spend(len(written) >> 4)
            out.append(written)

        return run

    def do_if(self, parts: list[Any], place: str) -> Statement:
        branches = []
        for i, entry in enumerate(_JSON.array(parts[0], place, 1, 256)):
            where = f"{place}.if[{i}]"
            line, test, body = _JSON.array(entry, where, 3, 3)
            branches.append(
                (self.line(line, where), *self.priced(test, where), self.body(body, f"{where}.then"))
            )
        otherwise = self.body(parts[1], f"{place}.else")

        def run(frame: Frame, out: list[str]) -> str | None:
            meter = frame.meter
            for line, test, cost, body in branches:
                meter.line = line
                meter.spend(cost)
                if test(frame):
                    return body(frame, out)
            return otherwise(frame, out)

        return run

    def do_for(self, parts: list[Any], place: str) -> Statement:
        line = self.line(parts[0], place)
        values, cost = self.priced(parts[1], place)
        target = self.target(parts[2], place)
        loop_slot = None if parts[3] is None else self.slot(parts[3], 0, place)
        test = self.nested(parts[4], place)
        self.in_loop += 1
        body = self.body(parts[5], f"{place}.for")
        self.in_loop -= 1
        otherwise = self.body(parts[6], f"{place}.else")

        def run(frame: Frame, out: list[str]) -> str | None:
            meter, slots = frame.meter, frame.slots
            meter.line = line
            meter.spend(cost)
            source = values(frame)
            if test is not None:
                source = _filtered(test, source, frame)
            if loop_slot is None:
                each = iterator(source)
            else:
                each = loop = Loop(source)
            # As Jinja: a round that `break` or `continue` ends does not keep `else` from running.
            rounds = 0
            for value in each:
                meter.spend(2)
                target(frame, value)
                if loop_slot is not None:
                    slots[loop_slot] = loop
                signal = body(frame, out)
                if signal == _BREAK:
                    break
                rounds += not signal
            return None if rounds else otherwise(frame, out)

        return run

    def nested(self, raw: object, place: str) -> Function | None:
        """The function of a filtered loop's condition."""
        if raw is None:
            return None
        function = self.function(_JSON.integer(raw, place, 1, len(self.raw) - 1))
        if len(function.parameters) != 1:
            raise _bad(place, f"a condition with {len(function.parameters)} parameters", "1")
        return function

    def do_set(self, parts: list[Any], place: str) -> Statement:
        line = self.line(parts[0], place)
        target = self.target(parts[1], place)
        value, cost = self.priced(parts[2], place)

        def run(frame: Frame, out: list[str]) -> None:
            meter = frame.meter
            meter.line = line
            meter.spend(cost + 1)
            target(frame, value(frame))

        return run

    def do_capture(self, parts: list[Any], place: str) -> Statement:
        line = self.line(parts[0], place)
        target = self.target(parts[1], place)
        through = self.filters(parts[2], place)
        body = self.body(parts[3], f"{place}.capture")

        def run(frame: Frame, out: list[str]) -> None:
            target(frame, through(frame, _captured(body, frame, line)))

        return run

    def do_filtered(self, parts: list[Any], place: str) -> Statement:
        line = self.line(parts[0], place)
        through = self.filters(parts[1], place)
        body = self.body(parts[2], f"{place}.filtered")

        def run(frame: Frame, out: list[str]) -> None:
            out.append(to_text(through(frame, _captured(body, frame, line)), frame.meter))

        return run

    def filters(self, raw: object, place: str) -> Callable[[Frame, Any], Any]:
        """What a body's text goes through, the first filter first."""
        steps = []
        for entry in _JSON.array(raw, place, 0, 16):
            name, args, named = _JSON.array(entry, place, 3, 3)
            steps.append(self.filter_call(name, args, named, place))

        def through(frame: Frame, value: Any) -> Any:
            for step in steps:
                value = step(frame, value)
            return value

        return through

    def do_macro(self, parts: list[Any], place: str) -> Statement:
        slot = self.slot(parts[0], 0, place)
        name = self.name(parts[1], place)
        function = self.function(_JSON.integer(parts[2], place, 1, len(self.raw) - 1))

        def run(frame: Frame, out: list[str]) -> None:
            frame.slots[slot] = _macro(name, function, frame)

        return run

    def do_name(self, parts: list[Any], place: str) -> Statement:
        slot = self.slot(parts[0], 0, place)
        name = self.name(parts[1], place)

        def run(frame: Frame, out: list[str]) -> None:
            frame.slots[slot] = frame.names.get(name, _EMPTY)

        return run

    def do_copy(self, parts: list[Any], place: str) -> Statement:
        slot = self.slot(parts[0], 0, place)
        up = self.up(parts[1], place)
        source = self.slot(parts[2], up, place)

        def run(frame: Frame, out: list[str]) -> None:
            frame.slots[slot] = _outside(frame, up).slots[source]

        return run

    def do_clear(self, parts: list[Any], place: str) -> Statement:
        cleared = [self.slot(slot, 0, place) for slot in _JSON.array(parts[0], place, 0, MAX_SLOTS)]

        def run(frame: Frame, out: list[str]) -> None:
            for slot in cleared:
                frame.slots[slot] = _EMPTY

        return run

    def do_break(self, parts: list[Any], place: str) -> Statement:
        return self.signal(_BREAK, place)

    def do_continue(self, parts: list[Any], place: str) -> Statement:
        return self.signal(_CONTINUE, place)

    def signal(self, signal: str, place: str) -> Statement:
        if not self.in_loop:
            raise _bad(place, f"{signal} outside a loop", "only in one")
        return lambda frame, out: signal

    def target(self, raw: object, place: str) -> Target:
        self.enter(place)
        operation, parts = self.node(raw, place, _TARGETS)
        made: Target
        if operation == "slot":
            slot = self.slot(parts[0], 0, place)

            def made(frame: Frame, value: Any) -> None:
                frame.slots[slot] = value

        elif operation == "member":
            get = self.variable(parts[:3], place)
            field = self.name(parts[3], place)

            def made(frame: Frame, value: Any) -> None:
                namespace = get(frame)
                if not isinstance(namespace, Namespace):
                    raise Fault("cannot assign attribute on non-namespace object")
                namespace.fields[field] = value

        else:
            targets = [self.target(entry, place) for entry in _JSON.array(parts[0], place, 0, 16)]

            def made(frame: Frame, value: Any) -> None:
                values = list(iterator(value))
                if len(values) != len(targets):
                    raise Fault(f"cannot unpack {len(values)} values into {len(targets)}")
                for target, part in zip(targets, values, strict=True):
                    target(frame, part)

        self.depth -= 1
        return made

    # --- expressions

    def expression(self, raw: object, place: str) -> Expression:
        if raw is None or isinstance(raw, bool | int | float):
            self.nodes += 1
            if isinstance(raw, int) and not -MAX_INT < raw < MAX_INT:
                raise _bad(place, show(raw), "a number below 2^63")
            return lambda frame: raw
        if isinstance(raw, str):
            self.nodes += 1
            words = text.literal(_JSON.text(raw, place, 0, MAX_TEXT))
            self.words.add(raw)
            return lambda frame: words
        self.enter(place)
        operation, parts = self.node(raw, place, _EXPRESSIONS)
        where = f"{place}.{operation}"
        if operation in _ARITHMETIC:
            made = self.arithmetic(operation, parts, where)
        else:
            made = getattr(self, f"ex_{operation}")(parts, where)
        self.depth -= 1
        return made

    def expressions(self, raw: object, place: str, least: int = 0) -> list[Expression]:
        entries = _JSON.array(raw, place, least, MAX_NODES)
        return [self.expression(entry, f"{place}[{i}]") for i, entry in enumerate(entries)]

    def named(self, raw: object, place: str) -> dict[str, Expression]:
        entries = _JSON.any_object(raw, place)
        return {
            self.name(name, place): self.expression(entry, f"{place}.{show(name)}")
            for name, entry in entries.items()
        }

    def ex_get(self, parts: list[Any], place: str) -> Expression:
        return self.variable(parts, place)

    def variable(self, parts: list[Any], place: str) -> Expression:
        up = self.up(parts[0], place)
        slot = self.slot(parts[1], up, place)
        missing = Undefined(self.name(parts[2], place))
        if up == 0:

            def near(frame: Frame) -> Any:
                value = frame.slots[slot]
                return missing if value is _EMPTY else value

            return near

        def far(frame: Frame) -> Any:
            value = _outside(frame, up).slots[slot]
            return missing if value is _EMPTY else value

        return far

    def ex_attr(self, parts: list[Any], place: str) -> Expression:
        owner, name = self.expression(parts[0], place), self.name(parts[1], place)
        return lambda frame: attribute(owner(frame), name)

    def ex_item(self, parts: list[Any], place: str) -> Expression:
        owner, key = self.expression(parts[0], place), self.expression(parts[1], place)

        def run(frame: Frame) -> Any:
            value, at = owner(frame), key(frame)
            if isinstance(at, tuple):
                frame.meter.weigh(at)
            return item(value, at)

        return run

    def ex_slice(self, parts: list[Any], place: str) -> Expression:
        owner, *bounds = (self.expression(part, place) for part in parts)

        def run(frame: Frame) -> Any:
            value = owner(frame)
            index = slice(*(bound(frame) for bound in bounds))
            if isinstance(value, Undefined):
                raise Fault(f"{value.name!r} is undefined; it cannot be sliced")
            if isinstance(value, str):
                return sliced(frame.meter, value, index)
            if isinstance(value, dict):
                raise Fault("a dict cannot be sliced")
            frame.meter.spend(len(value))
            return value[index]

        return run

    def ex_list(self, parts: list[Any], place: str) -> Expression:
        entries = self.expressions(parts[0], place)
        return lambda frame: [entry(frame) for entry in entries]

    def ex_tuple(self, parts: list[Any], place: str) -> Expression:
        entries = self.expressions(parts[0], place)
        return lambda frame: tuple([entry(frame) for entry in entries])

    def ex_dict(self, parts: list[Any], place: str) -> Expression:
        pairs = []
        for entry in _JSON.array(parts[0], place, 0, MAX_NODES):
            key, value = _JSON.array(entry, place, 2, 2)
            pairs.append((self.expression(key, place), self.expression(value, place)))

        def run(frame: Frame) -> dict[Any, Any]:
            made = {}
            for key, value in pairs:
                at = key(frame)
                frame.meter.weigh(at)
                made[at] = value(frame)
            return made

        return run

    def ex_not(self, parts: list[Any], place: str) -> Expression:
        value = self.expression(parts[0], place)
        return lambda frame: not value(frame)

    def ex_and(self, parts: list[Any], place: str) -> Expression:
        values = self.expressions(parts[0], place, 1)

        def run(frame: Frame) -> Any:
            for value in values:
                found = value(frame)
                if not found:
                    break
            return found

        return run

    def ex_or(self, parts: list[Any], place: str) -> Expression:
        values = self.expressions(parts[0], place, 1)

        def run(frame: Frame) -> Any:
            for value in values:
                found = value(frame)
                if found:
                    break
            return found

        return run

    def ex_choose(self, parts: list[Any], place: str) -> Expression:
        test, then = self.expression(parts[0], place), self.expression(parts[1], place)
        if parts[2] == [] and isinstance(parts[2], list):
            missing = Undefined("an if without else")
            return lambda frame: then(frame) if test(frame) else missing
        otherwise = self.expression(parts[2], place)
        return lambda frame: then(frame) if test(frame) else otherwise(frame)

    def ex_compare(self, parts: list[Any], place: str) -> Expression:
        first = self.expression(parts[0], place)
        rest = []
        for entry in _JSON.array(parts[1], place, 1, 64):
            operator, value = _JSON.array(entry, place, 2, 2)
            if not isinstance(operator, str) or operator not in _COMPARISONS:
                raise _bad(place, show(operator), " | ".join(_COMPARISONS))
            rest.append((_COMPARISONS[operator], self.expression(value, place)))
        if len(rest) == 1:
            ((only, second),) = rest
            return lambda frame: only(frame.call, first(frame), second(frame))

        def run(frame: Frame) -> bool:
            left, held = first(frame), False
            for compare, value in rest:
                right = value(frame)
                held = compare(frame.call, left, right)
                if not held:
                    break
                left = right
            return held

        return run

    def ex_cat(self, parts: list[Any], place: str) -> Expression:
        values = self.expressions(parts[0], place, 1)

        def run(frame: Frame) -> str:
            meter = frame.meter
            texts = [to_text(value(frame), meter) for value in values]
            meter.spend(sum(map(len, texts)) >> 4)
            return text.concat(texts)

        return run

    def ex_add(self, parts: list[Any], place: str) -> Expression:
        first, *rest = self.expressions(parts[0], place, 2)

        def run(frame: Frame) -> Any:
            total = first(frame)
            meter = frame.meter
            for value in rest:
                more = value(frame)
                if isinstance(total, str) and isinstance(more, str):
                    meter.spend(len(total) + len(more) >> 4)
                    total = text.add(total, more)
                elif isinstance(total, list | tuple) and isinstance(more, list | tuple):
                    meter.spend(len(total) + len(more))
                    total = total + more  # type: ignore[operator]
                else:
                    total = _small(total + more)
            return total

        return run

    def arithmetic(self, operation: str, parts: list[Any], place: str) -> Expression:
        a, b = self.expression(parts[0], place), self.expression(parts[1], place)
        compute = _ARITHMETIC[operation]

        def run(frame: Frame) -> Any:
            left, right = a(frame), b(frame)
            if operation == "*" and isinstance(left, int) and isinstance(right, str | list | tuple):
                left, right = right, left
            if operation == "*" and isinstance(left, str | list | tuple):
                return _repeated(left, right, frame.meter)
            if operation == "%" and isinstance(left, str):
                raise Limit("% on a string")
            return _small(compute(left, right))

        return run

    def ex_neg(self, parts: list[Any], place: str) -> Expression:
        value = self.expression(parts[0], place)
        return lambda frame: -value(frame)

    def ex_pos(self, parts: list[Any], place: str) -> Expression:
        value = self.expression(parts[0], place)
        return lambda frame: +value(frame)

    def ex_call(self, parts: list[Any], place: str) -> Expression:
        callee = self.expression(parts[0], place)
        args = self.expressions(parts[1], place)
        named = self.named(parts[2], place)

        def run(frame: Frame) -> Any:
            function = callee(frame)
            given = [arg(frame) for arg in args]
            names = {name: arg(frame) for name, arg in named.items()}
            if isinstance(function, Method):
                return filters.call_method(frame.call, function, given, names)
            if isinstance(function, Macro):
                return function.call(given, names)
            if isinstance(function, Builtin):
                return _builtin(frame, function.name, given, names)
            if isinstance(function, Undefined):
                raise Fault(f"{function.name!r} is undefined; it cannot be called")
            raise Fault(f"a {type(function).__name__} cannot be called")

        return run

    def ex_filter(self, parts: list[Any], place: str) -> Expression:
        value = self.expression(parts[0], place)
        use = self.filter_call(parts[1], parts[2], parts[3], place)
        return lambda frame: use(frame, _paid(value(frame), frame.meter))

    def filter_call(self, name: Any, args: Any, named: Any, place: str) -> Callable[[Frame, Any], Any]:
        if not isinstance(name, str) or name not in FILTERS:
            raise _bad(place, show(name), " | ".join(FILTERS))
        given = self.expressions(args, place)
        names = self.named(named, place)
        if not filters.takes(FILTERS, name, len(given), names):
            raise _bad(place, f"{name} with {len(given)} arguments and {show(sorted(names))}", "its own")
        use = FILTERS[name]
        if not given and not names:
            return lambda frame, value: use(frame.call, value)

        def run(frame: Frame, value: Any) -> Any:
            return use(
                frame.call,
                value,
                *[arg(frame) for arg in given],
                **{k: arg(frame) for k, arg in names.items()},
            )

        return run

    def ex_test(self, parts: list[Any], place: str) -> Expression:
        value = self.expression(parts[0], place)
        name = parts[1]
        if not isinstance(name, str) or name not in TESTS:
            raise _bad(place, show(name), " | ".join(TESTS))
        args = self.expressions(parts[2], place)
        if not filters.takes(TESTS, name, len(args), ()):
            raise _bad(place, f"{name} with {len(args)} arguments", "its own")
        use = TESTS[name]
        if name in ("lower", "upper"):
            return lambda frame: use(frame.call, _paid(value(frame), frame.meter))
        return lambda frame: use(frame.call, value(frame), *[arg(frame) for arg in args])


_STATEMENTS: Mapping[str, int] = {
    "text": 1,
    "out": 2,
    "if": 2,
    "for": 7,
    "set": 3,
    "capture": 4,
    "filtered": 3,
    "macro": 3,
    "name": 2,
    "copy": 3,
    "clear": 1,
    "break": 0,
    "continue": 0,
}
_TARGETS: Mapping[str, int] = {"slot": 1, "member": 4, "each": 1}
_ARITHMETIC: Mapping[str, Callable[[Any, Any], Any]] = {
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
}
_EXPRESSIONS: Mapping[str, int] = {
    "get": 3,
    "attr": 2,
    "item": 2,
    "slice": 4,
    "list": 1,
    "tuple": 1,
    "dict": 1,
    "not": 1,
    "and": 1,
    "or": 1,
    "choose": 3,
    "compare": 2,
    "cat": 1,
    "add": 1,
    "neg": 1,
    "pos": 1,
    "call": 3,
    "filter": 4,
    "test": 3,
    **dict.fromkeys(_ARITHMETIC, 2),
}
_COMPARISONS: Mapping[str, Callable[[Call, Any, Any], bool]] = {
    "eq": filters.equal,
    "ne": lambda call, a, b: not filters.equal(call, a, b),
    "lt": filters.less,
    "lteq": filters.less_equal,
    "gt": filters.greater,
    "gteq": filters.greater_equal,
    "in": filters.contains,
    "notin": lambda call, a, b: not filters.contains(call, a, b),
}


def _nothing(frame: Frame, out: list[str]) -> None:
    pass


def _outside(frame: Frame, up: int) -> Frame:
    for _ in range(up):
        assert frame.up is not None
        frame = frame.up
    return frame


def _paid(value: Any, meter: Meter) -> Any:
    """The value, when it has been paid for to read it once if it is a string."""
    if isinstance(value, str):
        meter.spend(len(value) >> 4)
    return value


def _small(value: Any) -> Any:
    if isinstance(value, int) and not -MAX_INT < value < MAX_INT:
        raise Limit("a number of 2^63 or more")
    return value


def _repeated(value: Any, count: Any, meter: Meter) -> Any:
    if not isinstance(count, int):
        raise Fault("can't multiply a sequence by anything but a whole number")
    meter.spend(1 + len(value) * max(count, 0))
    if not isinstance(value, str):
        return value * count
    repeated = text.concat([value] * count)
    return text.safe(repeated) if isinstance(value, text.Safe) else repeated


def _captured(body: Statement, frame: Frame, line: int) -> str:
    frame.meter.line = line
    out: list[str] = []
    body(frame, out)
    whole = text.concat(out)
    frame.meter.spend(1 + (len(whole) >> 4))
    return whole


def _filtered(test: Function, source: Any, outside: Frame) -> Any:
    """The values for which the condition, a function of the value, writes anything."""
    (parameter,) = test.parameters
    frame = Frame(test.n_slots, outside, outside.names, outside.meter)
    for value in iterator(source):
        out: list[str] = []
        frame.slots[parameter.slot] = value
        test.body(frame, out)
        if out:
            yield value


def _macro(name: str, function: Function, outside: Frame) -> Macro:
    """The macro, which sees the variables of the call that it is defined in."""

    def call(given: list[Any], named: dict[str, Any]) -> str:
        meter = outside.meter
        if meter.depth >= MAX_CALLS:
            raise Limit(f"macros nested more than {MAX_CALLS} deep")
        parameters = function.parameters
        if len(given) > len(parameters):
            raise Fault(f"macro {name!r} takes not more than {len(parameters)} argument(s)")
        frame = Frame(function.n_slots, outside, outside.names, meter)
        rest = dict(named)
        for i, parameter in enumerate(parameters):
            if i < len(given):
                frame.slots[parameter.slot] = given[i]
            elif parameter.name in rest:
                frame.slots[parameter.slot] = rest.pop(parameter.name)
        if rest:
            raise Fault(f"macro {name!r} takes no keyword argument {next(iter(rest))!r}")
        for parameter in parameters:
            if frame.slots[parameter.slot] is _EMPTY:
                frame.slots[parameter.slot] = (
                    Undefined(parameter.name) if parameter.default is None else parameter.default(frame)
                )
        meter.depth += 1
        meter.spend(4)
        out: list[str] = []
        function.body(frame, out)
        meter.depth -= 1
        return text.concat(out)

    return Macro(name, call)


def _builtin(frame: Frame, name: str, given: list[Any], named: dict[str, Any]) -> Any:
    if name == "namespace":
        frame.meter.weigh(given)
        return Namespace(dict(*given, **named))
    if name == "raise_exception":
        message = given[0] if len(given) == 1 and not named else None
        raise Fault(message if isinstance(message, str) else "raise_exception")
    if named or not all(isinstance(value, int) for value in given):
        raise Fault("range() takes numbers")
    values = range(*given)
    if len(values) > MAX_RANGE:
        raise Fault(f"range() of more than {MAX_RANGE}")
    return values


def _bad(place: str, found: str, allowed: str) -> FormatError:
    return FormatError(
        "format.manifest",
        f"{place}: found {found}; allowed: {allowed}",
        {"place": place, "found": found, "allowed": allowed},
    )


_JSON = Checks(_bad)
