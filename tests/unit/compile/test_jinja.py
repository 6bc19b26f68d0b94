"""Jinja templates compiled, against jinja2: the published ones, the language piece by piece, and mutants."""

from __future__ import annotations

import datetime
import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import published_templates
from jinja_oracle import DATE, VARIABLES, environment, rendered
from slm2_web.compile.jinja import compile_template, date_text
from slm2_web.errors import FormatError, InputError
from slm2_web.template2.compiled import write

DOCS = Path(__file__).parents[3] / "docs" / "template.md"
PUBLISHED = published_templates.table()
UNSUPPORTED = [name for name, entry in PUBLISHED.items() if "unsupported" in entry]

NAMES: dict[str, Any] = {
    "messages": [
        {"role": "system", "content": "  Be brief.\n"},
        {"role": "user", "content": "a-b-c <i> \u00e9"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"function": {"name": "f", "arguments": {"x": 1}}}],
        },
        {"role": "user", "content": "A\tB\n\nC\r\nd"},
    ],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"b": [1, 2.5, None], "a": {}}}}],
    "documents": None,
    "add_generation_prompt": True,
    "s": "one two  three one",
    "t": "\n x \n",
    "numbers": [3, 1, 2, 2],
    "words": ["b", "A", "c", "a"],
    "pairs": {"b": 2, "A": "x", "c": None, "items": "i"},
    "people": [{"name": "Bo", "age": 3}, {"name": "al", "age": 5, "x": {"y": 1}}, {"age": 3}],
    "number": 7,
    "half": 2.5,
    "yes": True,
    "nothing": None,
}


def both(source: str, names: dict[str, Any] = NAMES) -> tuple[str | None, str | None]:
    """What the program writes and what jinja2 writes; None for a refusal."""
    program = published_templates.program_of(source)
    try:
        found: str | None = write(program, names)
    except InputError:
        found = None
    return found, rendered(environment().from_string(source), names)


# --- the published templates


def test_the_table_is_of_the_published_templates() -> None:
    assert list(PUBLISHED) == list(published_templates.sources())
    compiled = [entry for entry in PUBLISHED.values() if entry.get("rendered", 0) >= 200]
    assert len(compiled) >= 50
    assert len(compiled) + len(UNSUPPORTED) == len(PUBLISHED)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_template_equals_jinja2_or_is_refused(name: str) -> None:
    assert published_templates.outcome(name, published_templates.sources()[name]) == PUBLISHED[name]


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_what_is_refused_is_a_true_limit(name: str) -> None:
    # The filter is neither Jinja's nor one that transformers adds: who gets to that line gets an exception.
    assert PUBLISHED[name]["unsupported"] == "the filter from_json"
    assert "from_json" not in environment().filters
    source = published_templates.sources()[name]
    assert "from_json" in source.splitlines()[PUBLISHED[name]["line"] - 1]
    template = environment().from_string(source)
    failures = set()
    for names in published_templates.draws(name, source):
        try:
            template.render(**VARIABLES, **names)
        except Exception as error:
            failures.add(str(error))
    assert "No filter named 'from_json' found." in failures


def test_the_documentation_has_the_table() -> None:
    assert published_templates.markdown(PUBLISHED) in DOCS.read_text("utf-8")


# --- the language

SNIPPETS = r"""
{{ s }}|{{ number }}|{{ half }}|{{ yes }}|{{ nothing }}|{{ missing }}|{{ numbers }}|{{ pairs }}|{{ people }}
{{ 1 }}{{ 1.0 }}{{ 1e30 }}{{ 'a' 'b' }}{{ "q'" }}{{ [1, 'x', none] }}{{ (1,) }}{{ {'k': [true]} }}{{ () }}
{{ messages[0].content }}{{ messages[-1]['role'] }}{{ messages[9] }}{{ pairs.b }}{{ pairs['zz'] }}
{{ missing.x }}
{{ missing['x'] }}
{{ missing() }}
{{ missing[1:] }}
{{ missing + 'x' }}
{{ missing ~ 'x' ~ none ~ 1 ~ 1.5 ~ true ~ [1] }}
{{ none + 'x' }}
{{ 'x' + 1 }}
{{ [1] + [2] }}{{ (1, 2) + (3,) }}{{ 'a' + 'b' + 'c' }}{{ 1 + 2 + half }}{{ true + 1 }}
{{ [1] + (2,) }}
{{ 'ab' * 3 }}{{ 2 * 'x' }}{{ [1] * 2 }}{{ 'x' * -1 }}{{ 7 // 2 }}{{ -7 // 2 }}{{ 7 / 2 }}{{ -7 % 3 }}{{ 7.5 % 2 }}
{{ 1 / 0 }}
{{ 'x' * half }}
{{ -number }}{{ +number }}{{ - -1 }}{{ not yes }}{{ not missing }}{{ not [] }}
{{ -s }}
{{ 1 < 2 < 3 }}{{ 1 < 3 < 2 }}{{ 1 == 1.0 }}{{ 'a' == 'a' }}{{ [1] == [1.0] }}{{ {} == {} }}{{ none == missing }}
{{ 'a' < 1 }}
{{ missing == missing }}{{ missing != 1 }}{{ missing in [1] }}{{ 1 in missing }}{{ missing in pairs }}
{{ missing in 'x' }}
{{ 'a' in 'cab' }}{{ 'a' not in 'cab' }}{{ 2 in numbers }}{{ 'b' in pairs }}{{ '' in '' }}{{ 'x' in {'x': 1}.items() }}
{{ [] in pairs }}
{{ 1 and 0 }}{{ '' or 'x' }}{{ 0 or '' or none }}{{ 1 and 2 and 3 }}{{ none and missing.x }}{{ 1 or missing.x }}
{{ 'y' if yes else 'n' }}{{ 'y' if missing }}|{{ ('y' if missing) is defined }}{{ 1 if 0 else 2 if 0 else 3 }}
{{ s[1] }}{{ s[-1] }}{{ s[99] }}{{ s[1:3] }}{{ s[::-1] }}{{ s[:-3:2] }}{{ s[5:2] }}{{ s[-3:] }}{{ numbers[1:] }}{{ numbers[::-2] }}
{{ s['x'] }}{{ s[half] }}{{ s[true] }}{{ s[none] }}{{ numbers['x'] }}{{ numbers[true] }}{{ numbers[[]] }}{{ pairs[[]] }}
{{ pairs[1:2] }}
{{ numbers[::0] }}
{{ pairs.items is defined }}{{ pairs['items'] }}{{ {}['items'] is defined }}{{ {}['zork'] is defined }}{{ 'yes' if {}.items }}
{{ s.zork }}{{ number.zork }}{{ none.zork }}{{ numbers.zork }}{{ yes.zork }}{{ (1).zork }}{{ [].append is defined }}
{{ numbers.append(1) }}
{{ pairs.pop('b') }}
{{ pairs.update({}) }}
{{ 'x'.zork() }}
{{ number() }}
{{ s.upper() }}{{ s.lower() }}{{ s.title() }}{{ s.capitalize() }}{{ s.swapcase() }}{{ 'ßǅ'.upper() }}{{ 'ΑΣ'.lower() }}
{{ t.strip() }}|{{ t.lstrip() }}|{{ t.rstrip() }}|{{ t.strip('\n') }}|{{ 'xxaxx'.strip('x') }}|{{ 'abc'.lstrip('ba') }}|{{ t.strip(none) }}
{{ t.strip(1) }}
{{ t.strip('a', 'b') }}
{{ s.split() }}{{ s.split(' ') }}{{ s.split(' ', 1) }}{{ s.split('one') }}{{ s.split(none, 1) }}{{ s.rsplit(' ', 1) }}{{ s.split(sep='t') }}
{{ s.split(maxsplit=1) }}{{ s.rsplit(none, 2) }}{{ ''.split() }}{{ ''.split('x') }}{{ 'a,,b'.split(',') }}{{ 'xabbab'.split('ab') }}
{{ s.split('') }}
{{ s.split(1) }}
{{ messages[3].content.splitlines() }}{{ 'a\nb\n'.splitlines(true) }}{{ 'a\x0bb\u2028c'.splitlines() }}
{{ s.partition(' ') }}{{ s.rpartition(' ') }}{{ s.partition('zz') }}{{ s.rpartition('zz') }}
{{ s.startswith('one') }}{{ s.startswith(('x', 'o')) }}{{ s.endswith('one') }}{{ s.startswith('two', 4) }}{{ s.endswith('') }}
{{ s.startswith(1) }}
{{ s.find('two') }}{{ s.find('zz') }}{{ s.rfind('one') }}{{ s.count('one') }}{{ s.index('two') }}
{{ s.index('zz') }}
{{ s.replace('one', '1') }}{{ s.replace('one', '1', 1) }}{{ s.replace('', '-') }}{{ s.replace('', '-', 3) }}{{ 'aaa'.replace('aa', 'b') }}
{{ s.replace(1, 2) }}
{{ ', '.join(words) }}{{ ''.join([]) }}{{ '-'.join('abc') }}{{ '-'.join(pairs) }}
{{ ', '.join(numbers) }}
{{ s.removeprefix('one') }}{{ s.removesuffix('one') }}{{ s.removeprefix('') }}{{ s.removesuffix('') }}{{ s.removesuffix('zz') }}
{{ '7'.isdigit() }}{{ 'x'.isalpha() }}{{ ' '.isspace() }}{{ 'A'.isupper() }}{{ 'a'.islower() }}{{ 'A b'.istitle() }}{{ '½'.isnumeric() }}
{{ '{}-{}'.format(1, 'x') }}{{ '{1}{0}'.format('a', 'b') }}{{ '{a}{{}}'.format(a=s) }}{{ '{}'.format(none) }}
{{ '{}'.format() }}
{{ '{a}'.format(1) }}
{{ '{}{0}'.format(1) }}
{{ pairs.get('b') }}{{ pairs.get('z') }}{{ pairs.get('z', 'd') }}{{ pairs.keys() | list }}{{ pairs.values() | list }}{{ pairs.items() | list }}
{{ pairs.get() }}
{{ numbers.count(2) }}{{ numbers.index(2) }}{{ (1, 2).count(1) }}
{{ numbers.index(99) }}
{{ s | upper }}{{ s | lower }}{{ s | title }}{{ s | capitalize }}{{ 'a-b (c'|title }}{{ 7 | upper }}{{ none | lower }}{{ missing | upper }}
{{ t | trim }}|{{ 'xax' | trim('x') }}|{{ 7 | trim }}|{{ missing | trim }}|
{{ s | length }}{{ numbers | length }}{{ pairs | count }}{{ missing | length }}{{ pairs.items() | length }}
{{ 7 | length }}
{{ none | length }}
{{ (numbers | map('string')) | length }}
{{ s | list }}{{ pairs | list }}{{ numbers | first }}{{ numbers | last }}{{ s | first }}{{ s | last }}{{ [] | first }}{{ pairs | last }}{{ '' | last }}
{{ none | first }}
{{ numbers | join }}{{ numbers | join('-') }}{{ people | join(', ', attribute='age') }}{{ [none, true, 1.5, 'x', missing] | join('|') }}{{ 'abc' | join('.') }}{{ missing | join }}
{{ none | join }}
{{ missing | default('d') }}{{ none | default('d') }}{{ none | default('d', true) }}{{ '' | d('e', boolean=true) }}{{ missing | default }}{{ 0 | default(1) }}
{{ numbers | sort }}{{ words | sort }}{{ words | sort(case_sensitive=true) }}{{ words | sort(reverse=true) }}{{ people | sort(attribute='age') }}{{ ([{'n': 'b', 'a': 1}, {'n': 'A', 'a': 1}]) | sort(attribute='a,n') }}
{{ [1, 'x'] | sort }}
{{ pairs | dictsort }}{{ pairs | dictsort(true) }}{{ {'a': 2, 'b': 1} | dictsort(by='value') }}{{ {'a': 2, 'b': 1} | dictsort(reverse=true) }}
{{ pairs | dictsort(by='x') }}
{{ numbers | dictsort }}
{{ words | unique | list }}{{ ['a', 'A', 1, 1.0] | unique | list }}{{ words | unique(true) | list }}{{ people | unique(attribute='age') | list }}
{{ numbers | min }}{{ numbers | max }}{{ [] | min }}{{ words | max }}{{ people | min(attribute='age') }}
{{ numbers | reverse | list }}{{ s | reverse }}{{ pairs | reverse | list }}{{ (numbers | map('string')) | reverse }}
{{ '7' | int }}{{ 'x' | int }}{{ 'x' | int(5) }}{{ '7.9' | int }}{{ 'ff' | int(0, 16) }}{{ none | int }}{{ ' 7 ' | int }}{{ '1e999' | int }}{{ '7.5' | float }}{{ 'x' | float }}{{ -7 | abs }}
{{ numbers | map('string') | list }}{{ words | map('upper') | join }}{{ people | map(attribute='name') | list }}{{ people | map(attribute='x.y') | list }}{{ people | map(attribute='name', default='?') | list }}{{ words | map('replace', 'a', 'z') | list }}{{ none | map('upper') | list }}
{{ numbers | map | list }}
{{ numbers | select | list }}{{ numbers | select('odd') | list }}{{ numbers | reject('eq', 2) | list }}{{ [0, 1, '', 'x'] | reject | list }}{{ numbers | select('>', 1) | list }}{{ numbers | select('in', [1, 3]) | list }}
{{ people | selectattr('name') | list }}{{ people | selectattr('age', 'equalto', 3) | list }}{{ people | rejectattr('name', 'defined') | list }}{{ people | selectattr('x.y') | list }}{{ people | rejectattr('age', '==', 3) | map(attribute='name') | first }}
{{ s | replace('one', 'x') }}{{ s | replace('one', 'x', 1) }}{{ 7 | replace(7, 8) }}{{ missing | replace('a', 'b') }}
{{ 'a\nb\n\nc' | indent }}|{{ 'a\nb' | indent(2, true) }}|{{ 'a\n\nb' | indent(1, false, true) }}|{{ 'a\nb' | indent('>>') }}|{{ '' | indent(first=true) }}|{{ 'a\x0bb' | indent }}
{{ pairs | items | list }}{{ missing | items | list }}{{ (none | items) is iterable }}
{{ none | items | list }}
{{ pairs | string }}{{ 7 | string }}{{ missing | string }}{{ none | string }}
{{ s | safe }}{{ ('<b>' | safe) + '<i>' }}{{ '<i>' + ('<b>' | safe) }}{{ ('<b>' | safe) ~ '<i>' }}{{ ('&' | safe) | length }}{{ ('<b>' | safe).upper() + '"' }}{{ (' < ' | safe) | trim + '&' }}{{ ('a<b' | safe).split('<')[1] + "'" }}{{ ('x' | safe)[0] + '>' }}{{ ('x' | safe) | string + '>' }}{{ ('<' | safe) | replace('x', 'y') + '>' }}{{ ['<' | safe, '>'] | join + '<' }}
{{ messages | tojson }}{{ tools | tojson(indent=2) }}{{ tools | tojson(indent=0) }}{{ 'é"\\\n\u2028' | tojson }}{{ 'é😀' | tojson(ensure_ascii=true) }}{{ pairs | tojson(separators=(',', ':')) }}{{ {'b': 1, 'a': []} | tojson(sort_keys=true) }}{{ {1: 2, none: 3, true: 4, 1.5: 5} | tojson }}{{ (1, [2]) | tojson }}{{ {} | tojson(indent=4) }}{{ [[], {}] | tojson(indent=1) }}{{ 'x' | tojson(indent='\t') }}{{ [1] | tojson(indent='\t') }}
{{ missing | tojson }}
{{ {(1,): 2} | tojson }}
{{ namespace() | tojson }}
{{ missing is defined }}{{ s is defined }}{{ missing is undefined }}{{ none is none }}{{ s is string }}{{ 7 is string }}{{ pairs is mapping }}{{ s is iterable }}{{ 7 is iterable }}{{ missing is iterable }}{{ none is iterable }}{{ s is sequence }}{{ numbers is sequence }}{{ pairs is sequence }}{{ missing is sequence }}{{ pairs.items() is sequence }}{{ (numbers | map('string')) is sequence }}{{ range(2) is sequence }}
{{ 7 is number }}{{ yes is number }}{{ half is number }}{{ 's' is number }}{{ 7 is integer }}{{ yes is integer }}{{ half is float }}{{ yes is boolean }}{{ 1 is boolean }}{{ yes is true }}{{ 1 is true }}{{ false is false }}{{ 7 is odd }}{{ 7 is even }}{{ 6 is divisibleby 3 }}{{ 'A' is upper }}{{ 'a' is lower }}{{ 2 is in numbers }}{{ 2 is eq 2 }}{{ 2 is ne 2 }}{{ 2 is gt 1 }}{{ 2 is le(1) }}{{ 2 is not lessthan 1 }}
{{ 7 is divisibleby 0 }}
{% for n in numbers %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.depth }}{{ loop.zork }};{% endfor %}{{ loop }}
{% for k, v in pairs.items() %}{{ k }}={{ v }}{% if not loop.last %}, {% endif %}{% else %}none{% endfor %}
{% for a, b in numbers %}{% endfor %}
{% for a, b in [[1, 2, 3]] %}{% endfor %}
{% for a, (b, c) in [[1, 'xy'], (2, [3, 4])] %}{{ a }}{{ b }}{{ c }}{% endfor %}
{% for n in missing %}x{% else %}empty{% endfor %}{% for n in [] %}x{% else %}{{ n }}empty{% endfor %}{% for n in [1] %}x{% else %}empty{% endfor %}
{% for n in none %}x{% endfor %}
{% for n in 7 %}x{% endfor %}
{% for c in s %}{{ loop.last }}{{ c }}{% endfor %}{% for i in range(3) %}{{ i }}{% endfor %}{% for i in range(5, 1, -2) %}{{ i }}{% endfor %}{{ range(3) }}{{ range(4) | length }}{{ range(3) | list }}
{% for n in range(100001) %}{% endfor %}
{{ range('x') }}
{% for n in numbers if n > 1 %}{{ n }}{{ loop.index }}{{ loop.length }}{{ loop.last }}{% endfor %}{% for n in numbers if n > 9 %}x{% else %}e{% endfor %}{% for a, b in pairs.items() if b %}{{ a }}{% endfor %}
{% set ns = namespace(n=0) %}{% for n in numbers if ns.n < 3 %}{% set ns.n = ns.n + n %}{{ n }}{% endfor %}{{ ns.n }}
{% for n in numbers %}{% if n == 1 %}{% continue %}{% endif %}{{ n }}{% if loop.index == 3 %}{% break %}{% endif %}{% endfor %}
{% for n in numbers %}{% continue %}{% else %}else runs{% endfor %}{% for n in numbers %}{% break %}{% else %}else runs{% endfor %}{% for n in numbers %}{% if loop.last %}{% break %}{% endif %}{% else %}else does not{% endfor %}
{% for n in numbers | map('string') %}{{ loop.last }}{{ loop.length }}{{ n }}{% endfor %}{% set it = numbers | map('string') %}{{ it | first }}{{ it | list }}{{ it | list }}{{ 'y' if it }}
{% for a in [1, 2] %}{% for b in [3, 4] %}{{ loop.index }}{% endfor %}{{ loop.index }}{% endfor %}{% for a in [1] %}{% set outer = loop %}{% for b in [1, 2] %}{{ outer.index }}{{ loop.index }}{% endfor %}{% endfor %}
{% set x = 1 %}{% for n in numbers %}{% set x = x + n %}{{ x }}{% endfor %}{{ x }}
{% for n in numbers %}{{ x }}{% set x = n %}{{ x }}{% endfor %}{{ x }}
{% if yes %}{% set x = 1 %}{% endif %}{{ x }}{% if nothing %}{% set y = 1 %}{% else %}{% set z = 2 %}{% endif %}{{ y }}{{ z }}{% if missing %}{% set tools = 1 %}{% endif %}{{ tools | length }}
{% if no %}{% set number = 1 %}{% elif yes %}{% set number = 2 %}{% else %}{% set number = 3 %}{% endif %}{{ number }}
{{ number }}{% set number = number + 1 %}{{ number }}{% for n in [1] %}{{ number }}{% set number = 0 %}{{ number }}{% endfor %}{{ number }}
{% for n in numbers %}{% if loop.first %}{% set seen = n %}{% endif %}{{ seen }}{% endfor %}{{ seen }}
{% set a, b = 1, 'x' %}{{ a }}{{ b }}{% set a, b = b, a %}{{ a }}{{ b }}{% set c = (1, 2) %}{{ c }}
{% set a, b = 1 %}
{% set ns = namespace(a=1, b='x') %}{% set ns.a = ns.a + 1 %}{{ ns.a }}{{ ns.b }}{{ ns.c }}{{ ns['a'] }}{% for n in numbers %}{% set ns.a = n %}{% endfor %}{{ ns.a }}{{ namespace({'k': 1}, j=2).k }}{{ ns.items is defined }}
{% set x = 1 %}{% set x.y = 2 %}
{% set zork.y = 2 %}
{% set ns = namespace() %}{% set ns.a, ns.b = 1, 2 %}{{ ns.a }}{{ ns.b }}
{% set x %}a{{ number }}b{% set y = 2 %}{% endset %}{{ x }}{{ y }}{% set x | upper | trim %} q {% endset %}{{ x }}{% set ns = namespace() %}{% set ns.t %}z{% endset %}{{ ns.t }}
{% filter upper %}a{{ s }}{% set s = 'w' %}{{ s }}{% endfilter %}{{ s }}{% filter replace('a', 'b') | trim %} aa {% endfilter %}
{% macro m(a, b=2, c='x') %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1) }}{{ m(1, c=3) }}{{ m() }}{{ m(a=1, b=none) }}{{ m(1, 2, 3) | length }}
{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}
{% macro m(a) %}{% endmacro %}{{ m(z=2) }}
{% macro m(a, b=a) %}{{ b }}{% endmacro %}{{ m(5) }}{% macro k(x=none) %}{{ x is none }}{% endmacro %}{{ k() }}
{% set x = 1 %}{% macro m() %}{{ x }}{% set x = 5 %}{{ x }}{% endmacro %}{% set x = 2 %}{{ m() }}{{ x }}
{% macro m() %}{{ later }}{% endmacro %}{% set later = 3 %}{{ m() }}{% for n in [1] %}{% set later = 4 %}{{ m() }}{% endfor %}
{% macro f(n) %}{% if n %}{{ n }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(5) }}{% macro g() %}{% macro h() %}in{% endmacro %}{{ h() }}{% endmacro %}{{ g() }}{{ h is defined }}
{% for n in numbers %}{% macro m() %}{{ n }}{{ loop.index }}{% endmacro %}{{ m() }}{% endfor %}{{ m is defined }}
{% macro m(ns) %}{% set ns.a = ns.a + 1 %}{% endmacro %}{% set ns = namespace(a=0) %}{{ m(ns) }}{{ m(ns) }}{{ ns.a }}
{% macro m() %}{% for n in numbers %}{% if n == 1 %}{% break %}{% endif %}{{ n }}{% endfor %}{% endmacro %}{{ m() }}
{{ raise_exception('no') }}
{{ raise_exception() }}
{% if raise_exception is defined %}{{ 'd' }}{% endif %}{{ namespace is defined }}{{ zork is defined }}{{ bos_token }}{{ eos_token ~ pad_token }}
{{ strftime_now('%d %B %Y, %a %A %b %j %H:%M:%S %y %m %%') }}{{ strftime_now is defined }}{{ 'y' if strftime_now is undefined }}
{% set strftime_now = 3 %}{{ strftime_now }}
{% generation %}{{ s }}{% set s = 1 %}{{ s }}{% endgeneration %}{{ s }}
{#- comment -#}  {{- s -}}  {% raw %}{{ s }}{% endraw %}{%+ if yes %} a{% endif %}
"""  # noqa: E501


@pytest.mark.parametrize("source", [line for line in SNIPPETS.splitlines() if line])
def test_the_language(source: str) -> None:
    found, expected = both(source)
    assert found == expected


@pytest.mark.parametrize(
    "source",
    [
        "a\r\n  {% if yes %}\r\n  b\n  {%- endif %}\n\n{# c #}\nd {{ s }}\n\n",
        "  {% if yes %}  \n  x  \n  {% endif %}  \ny",
        "  {%+ if yes %}  \n  x  \n  {%+ endif +%}  \ny\r",
        "{{ s }}\n  {{- s -}}  \n {{ s }}\n\n\n",
    ],
)
def test_lines_blocks_and_new_lines(source: str) -> None:
    found, expected = both(source)
    assert found == expected is not None


@pytest.mark.parametrize(
    "source",
    ["{{ {}.items }}", "{{ s.upper }}", "{{ namespace() }}", "{{ namespace }}", "{{ numbers | map }}"],
)
def test_what_python_would_show_with_an_address_is_not_written(source: str) -> None:
    with pytest.raises(InputError) as error:
        write(published_templates.program_of(source), NAMES)
    assert error.value.code == "template.limit"
    assert error.value.detail["line"] == 1


def test_most_snippets_render() -> None:
    lines = [line for line in SNIPPETS.splitlines() if line]
    assert sum(both(line)[0] is not None for line in lines) > len(lines) // 2 > 50


@pytest.mark.parametrize(
    ("source", "construct", "line"),
    [
        ("{% include 'x' %}", "the statement Include", 1),
        ("\n{% extends 'x' %}", "the statement Extends", 2),
        ("\n\n{% block b %}{% endblock %}", "the statement Block", 3),
        ("{% import 'x' as y %}", "the statement Import", 1),
        ("{% from 'x' import y %}", "the statement FromImport", 1),
        ("{% macro m() %}{{ caller() }}{% endmacro %}\n", "the name caller in a macro", 1),
        ("{% macro m() %}{{ varargs }}{% endmacro %}", "the name varargs in a macro", 1),
        ("{% macro m() %}{{ kwargs }}{% endmacro %}", "the name kwargs in a macro", 1),
        ("{% macro m() %}{% endmacro %}\n{% call m() %}{% endcall %}", "the statement CallBlock", 2),
        ("x\n{% for x in y recursive %}{% endfor %}", "a recursive loop", 2),
        ("{% with a = 1 %}{% endwith %}", "the statement With", 1),
        ("{{ 2 ** 3 }}", "the expression Pow", 1),
        ("\n{{ '%s' % x }}", "% on a string", 2),
        ("{{ x | from_json }}", "the filter from_json", 1),
        ("{{ x | urlize }}", "the filter urlize", 1),
        ("{{ x | upper(1) }}", "the filter upper(_)", 1),
        ("{{ x | tojson(depth=1) }}", "the filter tojson(depth=_)", 1),
        ("{{ x | map('urlize') }}", "map with the filter 'urlize'", 1),
        ("{{ x | select(y) }}", "select with the test '?'", 1),
        ("{{ x is callable }}", "the test callable", 1),
        ("{{ x is divisibleby }}", "the test divisibleby with 0 arguments", 1),
        ("{{ f(*x) }}", "a call with * or **", 1),
        ("{{ x | default(*y) }}", "a filter with * or **", 1),
        ("{{ x.__class__ }}", "the attribute __class__", 1),
        ("{{ x.encode() }}", "the method encode", 1),
        ("{{ cycler('a') }}", "the function cycler", 1),
        ("\n{% if x %}{{ dict(a=1) }}{% endif %}", "the function dict", 2),
        ("{{ self.x() }}", "the name self", 1),
        ("{{ strftime_now(x) }}", "strftime_now without a format in its place", 1),
        ("{% set now = strftime_now %}", "strftime_now without a format in its place", 1),
        ("{{ strftime_now('%Z') }}", "strftime_now with the format '%Z'", 1),
        ("{{ 9223372036854775808 }}", "a number of 2^63 or more", 1),
        ("{{ 1e999 }}", "a number that is not finite", 1),
        ("{{ x", "a syntax error: unexpected end of template, expected 'end of print statement'.", 1),
        ("{% for x in y %}", "a syntax error: ", 1),
        ("{{ " + "(" * 3000 + "x" + ")" * 3000 + " }}", "expressions nested too deeply", 1),
        ("x" * (1 << 18) + "x", "a template of 262145 characters", 1),
    ],
)
def test_an_unsupported_construct_is_refused_by_name_and_line(source: str, construct: str, line: int) -> None:
    with pytest.raises(FormatError) as error:
        compile_template(source, {}, date=DATE, place="here")
    assert error.value.code == "format.unsupported"
    assert error.value.detail["place"] == f"here, line {line}"
    assert error.value.detail["found"].startswith(construct)


def test_the_date_is_refused_unless_it_is_given_and_is_recorded() -> None:
    source = "\n{% if strftime_now is defined %}{{ strftime_now('%d %b %Y') }}{% endif %}"
    with pytest.raises(FormatError) as error:
        compile_template(source, {})
    assert error.value.detail["found"] == "the function strftime_now"
    assert error.value.detail["place"] == "chat_template, line 2"
    made = compile_template(source, {}, date=datetime.date(2024, 2, 29))
    assert made["date"] == "2024-02-29"
    assert "29 Feb 2024" in json.dumps(made)


def test_dates_are_as_strftime_writes_them() -> None:
    form = "%a %A %b %B %d %H %j %m %M %S %y %Y %%"
    for offset in range(0, 4000, 7):
        day = datetime.date(2024, 1, 1) + datetime.timedelta(days=offset)
        assert date_text(form, day) == day.strftime(form)
    assert date_text("%", DATE) is None
    assert date_text("%-d", DATE) is None


def test_roles_are_those_that_the_template_compares() -> None:
    source = (
        "{% if m.role == 'ipython' or m['role'] in ['function', 'x y'] or role != \"critic\" %}"
        "{% elif m.kind == 'other' %}{% endif %}"
    )
    expected = ["system", "user", "assistant", "tool", "critic", "function", "ipython"]
    assert compile_template(source, {})["roles"] == expected


# --- mutants

_CHUNK = re.compile(r"(\{%.*?%\}|\{\{.*?\}\}|\{#.*?#\})", re.DOTALL)
_WORD = re.compile(r"'[^'\n]*'|\w+|==|!=|[-+~|.\[\]]")
_SPARE = (
    "1",
    "'x'",
    "none",
    "messages",
    "loop.index0",
    "+",
    "~",
    "==",
    "|",
    ".",
    "content",
    "not",
    "0",
    "-1",
)


def _mutant(name: str, seed: int) -> str:
    """A published template with a chunk or a word of it changed."""
    rng = random.Random(f"{name}/{seed}")
    chunks = _CHUNK.split(published_templates.sources()[name])
    for _ in range(rng.choice((1, 1, 2))):
        at = rng.randrange(len(chunks))
        kind = rng.random()
        if kind < 0.15:
            chunks[at] = ""
        elif kind < 0.3:
            other = rng.randrange(len(chunks))
            chunks[at], chunks[other] = chunks[other], chunks[at]
        elif words := [found for found in _WORD.finditer(chunks[at]) if chunks[at][0] == "{"]:
            found, spare = rng.choice(words), rng.choice([*_SPARE, rng.choice(words)[0], ""])
            chunks[at] = chunks[at][: found.start()] + spare + chunks[at][found.end() :]
    return "".join(chunks)


@settings(max_examples=100)
@given(st.sampled_from(sorted(set(PUBLISHED) - set(UNSUPPORTED))), st.integers(0, 1 << 20))
def test_a_mutant_is_equal_or_refused(name: str, seed: int) -> None:
    source = _mutant(name, seed)
    try:
        program = published_templates.program_of(source)
    except FormatError:
        return
    template = environment().from_string(source)
    for _, names in zip(range(3), published_templates.draws(name, source), strict=False):
        expected = rendered(template, names)
        try:
            found: str | None = write(program, names)
        except InputError as error:
            if error.code == "template.limit":
                continue
            found = None
        assert found == expected


def test_variables_are_found_by_name() -> None:
    program = published_templates.program_of("{{ bos_token }}{{ sep_token }}")
    assert write(program, {"messages": []}) == VARIABLES["bos_token"]
