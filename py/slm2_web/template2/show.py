"""A family's transition table for people: Markdown and a diagram, as docs/template.md has them."""

from __future__ import annotations

from slm2_web.template2.spec import Family, Item, Marker, Slot, Step, Thinking


def table_of(family: Family) -> str:
    """The transition table in Markdown. States that take the same step share a line."""
    lines = ["| state | next | writes | then |", "|---|---|---|---|"]
    for (event, step), states in _grouped(family).items():
        written = " ".join(_show(item) for item in step.writes) or "nothing"
        lines.append(f"| {', '.join(states)} | `{event}` | {written} | {step.then} |")
    return "\n".join(lines) + "\n"


def diagram_of(family: Family) -> str:
    """The transition table as a Mermaid state diagram: an arrow per pair of states, with its events."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for (state, event), step in family.steps.items():
        arrows.setdefault((state, step.then), []).append(event.strip("<>"))
    lines = [f"    {state} --> {then}: {', '.join(events)}" for (state, then), events in arrows.items()]
    return "\n".join(["```mermaid", "stateDiagram-v2", *lines, "```"]) + "\n"


def thinking_of(thinking: Thinking) -> str:
    """When a message has a `thought`, as a list in Markdown."""
    order = [
        " and ".join(fact.value for fact in type(next(iter(facts))) if fact in facts)
        for facts in thinking.kept
    ]
    return "".join(f"- {line}\n" for line in order)


def _grouped(family: Family) -> dict[tuple[str, Step], list[str]]:
    grouped: dict[tuple[str, Step], list[str]] = {}
    for (state, event), step in family.steps.items():
        grouped.setdefault((event, step), []).append(state)
    return grouped


def _show(item: Item) -> str:
    if isinstance(item, Slot):
        return f"*{item.value}*"
    text = item.text.decode("utf-8").replace("\n", "\\n").replace("|", "\\|")
    return f"**`{text}`**" if isinstance(item, Marker) else f"`{text}`"
