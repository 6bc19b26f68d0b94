"""The five passes: each alone, all against a slow assembly, and what holds of every prompt."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prompt_oracles import everything, of_ledger, requests, slow_ids, steps
from slm2_web.errors import InputError
from slm2_web.prompt2.assemble import KEEP_EVIDENCE, KEEP_EXCHANGES, Prompt, assemble
from slm2_web.prompt2.ledger import Ledger, Part
from slm2_web.prompt2.request import Evidence, PromptRequest, request_of
from slm2_web.template2.spec import Conversation, Message, ToolCall
from slm2_web.tokenizer2.native import native_tokenizer
from slm2_web.tokenizer2.runs import Untrusted
from unit.prompt2.conftest import Model

DOCS = Path(__file__).parents[3] / "docs" / "prompt.md"
QUESTION = Message("user", b"And now?")
quick = settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


def chat(n_exchanges: int) -> tuple[Message, ...]:
    """Exchanges that can be told apart, and longer than a marker."""
    messages: list[Message] = []
    for n in range(1, n_exchanges + 1):
        messages += [Message("user", b"hello q%d" % n), Message("assistant", b"hello a%d" % n + b"." * 40)]
    return tuple(messages)


def evidence(*relevances: float) -> tuple[Evidence, ...]:
    """Texts e1, e2 and so on, of 100 characters."""
    return tuple(Evidence(f"e{n}", r, b"%d" % n * 100) for n, r in enumerate(relevances, 1))


def left_out(ledger: Ledger) -> dict[str, tuple[str, int | None]]:
    """What became of the parts that are not whole, by label."""
    return {part.label: (part.state, part.in_pass) for part in ledger.parts if part.state != "kept"}


def fit(model: Model, request: PromptRequest, budget_tokens: int) -> Prompt:
    prompt = assemble(*model, replace(request, budget_tokens=budget_tokens))
    assert len(prompt.ids) == prompt.ledger.prompt_tokens <= budget_tokens
    return prompt


def attempt(model: Model, request: PromptRequest) -> Prompt | InputError:
    """A prompt, or its refusal."""
    try:
        return assemble(*model, request)
    except InputError as error:
        if error.code != "input.budget":
            raise
        return error


def size(model: Model, request: PromptRequest) -> int:
    """The tokens of everything."""
    return len(fit(model, request, 1 << 30).ids)


def text_of(model: Model, prompt: Prompt) -> bytes:
    return model.tokenizer.decode(prompt.ids)


# --- each pass --------------------------------------------------------------------------------------------


def test_what_fits_is_the_templates_own(smollm2: Model) -> None:
    messages = (Message("system", b"Be kind."), *chat(3), QUESTION)
    conversation = Conversation(messages)
    ids = smollm2.tokenizer.encode(smollm2.template.render(conversation))
    request = request_of(conversation, budget_tokens=len(ids))
    prompt = assemble(*smollm2, request)
    assert prompt.ids == ids
    assert prompt.ledger.left_tokens == 0
    assert left_out(prompt.ledger) == {}


def test_pass_1_drops_the_oldest_exchanges_whole(tiny: Model) -> None:
    request = PromptRequest(b"policy", chat(5), (QUESTION,), 0)
    n, exchange = size(tiny, request), size(tiny, request) - size(tiny, replace(request, history=chat(4)))
    for n_dropped in (1, 2, 3):
        for spare in (0, exchange - 1):
            prompt = fit(tiny, request, n - n_dropped * exchange + spare)
            assert left_out(prompt.ledger) == {
                f"{2 * i + 1}-{2 * i + 2}": ("dropped", 1) for i in range(n_dropped)
            }
            text = text_of(tiny, prompt)
            for number in range(1, 6):
                for part in (b"hello q%d", b"hello a%d"):
                    assert (part % number in text) == (number > n_dropped)


def test_pass_2_drops_the_lowest_evidence(tiny: Model) -> None:
    request = PromptRequest(None, (), (QUESTION,), 0, evidence=evidence(0.5, 0.9, 0.1, 0.9))
    sizes = [size(tiny, replace(request, evidence=evidence(*[0.5] * n))) for n in (4, 3, 2, 1)]
    dropped = [set(left_out(fit(tiny, request, n).ledger)) for n in sizes]
    # Of equals the later one goes first; what is kept stands in the order of its rank.
    assert dropped == [set(), {"e3"}, {"e3", "e1"}, {"e3", "e1", "e4"}]
    text = text_of(tiny, fit(tiny, request, sizes[0]))
    assert sorted([b"e1", b"e2", b"e3", b"e4"], key=text.index) == [b"e2", b"e4", b"e1", b"e3"]
    assert all(state == ("dropped", 2) for state in left_out(fit(tiny, request, sizes[3]).ledger).values())


def test_pass_2_waits_for_pass_1(tiny: Model) -> None:
    request = PromptRequest(None, chat(3), (QUESTION,), 0, evidence=evidence(0.1, 0.9))
    n = size(tiny, request)
    assert left_out(fit(tiny, request, n - 1).ledger) == {"0-1": ("dropped", 1)}
    n = size(tiny, replace(request, history=chat(2)))
    assert left_out(fit(tiny, request, n - 1).ledger) == {"0-1": ("dropped", 1), "e1": ("dropped", 2)}


def test_pass_3_leaves_the_marker_for_the_middle(tiny: Model) -> None:
    request = PromptRequest(b"policy", chat(4), (QUESTION,), 0)
    n = size(tiny, replace(request, history=chat(KEEP_EXCHANGES)))
    prompt = fit(tiny, request, n - 1)
    assert left_out(prompt.ledger) == {"1-2": ("dropped", 1), "3-4": ("dropped", 1), "5-6": ("dropped", 3)}
    text = text_of(tiny, prompt)
    assert b"user\n<history_truncated>\n<user_message>\nhello q4<|im_end|>" in text
    prompt = fit(tiny, request, len(prompt.ids) - 1)
    assert left_out(prompt.ledger)["7-8"] == ("dropped", 3)
    assert b"user\n<history_truncated>\n<user_message>\nAnd now?<|im_end|>" in text_of(tiny, prompt)


def test_pass_4_cuts_evidence_between_characters(tiny: Model) -> None:
    text = "\u65e5\u672c\u8a9e" * 30
    request = PromptRequest(
        None, chat(1), (QUESTION,), 0, b"12:00", (Evidence("a", 0, text.encode()), *evidence(-1))
    )
    alone = replace(request, history=(), evidence=request.evidence[:1])
    n = size(tiny, alone)
    for missing in (100, 101, 102, 200):
        prompt = fit(tiny, request, n - missing)
        assert left_out(prompt.ledger) == {
            "0-1": ("dropped", 3),
            "a": ("cut", 4),
            "e1": ("dropped", 2),
        }
        assert n - missing - len(prompt.ids) < 3  # the bytes of one character
        (kept,) = [part for part in text_of(tiny, prompt).split(b"\n") if part.startswith("\u65e5".encode())]
        assert text.startswith(kept.decode())


def test_pass_4_drops_what_cannot_be_cut_and_then_the_marker(tiny: Model) -> None:
    request = PromptRequest(None, chat(1), (QUESTION,), 0, evidence=evidence(1))
    least = size(tiny, replace(request, history=(), evidence=()))
    for budget in range(least, size(tiny, request)):
        prompt = fit(tiny, request, budget)
        states = left_out(prompt.ledger)
        assert states["0-1"] == ("dropped", 3)
        assert (b"<history_truncated>" in text_of(tiny, prompt)) == (len(prompt.ids) > least), (
            "the marker goes last"
        )
    assert left_out(fit(tiny, request, least).ledger)["e1"] == ("dropped", 4)
    assert fit(tiny, request, least).ids == tiny.tokenizer.encode(
        tiny.template.render(Conversation((QUESTION,)))
    )


def test_pass_5_refuses_with_the_numbers(qwen3: Model) -> None:
    request = PromptRequest(
        policy=b"Be kind.",
        history=chat(3),
        turn=(QUESTION,),
        budget_tokens=0,
        local_state=b"12:00",
        evidence=evidence(1, 2),
        tools=(b'{"type": "function"}',),
    )
    least = size(qwen3, replace(request, history=(), evidence=()))
    fit(qwen3, request, least)
    for budget in (least - 1, 1, 0, -5):
        with pytest.raises(InputError) as error:
            assemble(*qwen3, replace(request, budget_tokens=budget))
        assert error.value.code == "input.budget"
        detail = error.value.detail
        assert (detail["prompt_tokens"], detail["budget_tokens"]) == (least, budget)
        parts = [detail[f"{kind}_tokens"] for kind in ("policy", "turn", "local_state", "tools", "frame")]
        assert all(parts)
        assert abs(sum(parts) - least) < 10  # the line before the words, and seams


def test_a_tool_loop_stays_with_its_question(qwen3: Model) -> None:
    """CTX-02: what must go is the first exchange, not the beginning of the loop."""
    call = ToolCall(b"f", b"{}")
    loop = (
        Message("user", b"q1"),
        Message("assistant", b"", tool_calls=(call,)),
        Message("tool", b"r1"),
        Message("assistant", b"", tool_calls=(call,)),
        Message("tool", b"r2"),
    )
    old = (Message("user", b"q0"), Message("assistant", b"a0"))
    conversation = Conversation((Message("system", b"s"), *old, *loop))
    request = request_of(conversation, budget_tokens=0)
    assert (request.policy, request.history, request.turn) == (b"s", old, loop)
    kept = qwen3.tokenizer.encode(qwen3.template.render(Conversation((Message("system", b"s"), *loop))))
    assert fit(qwen3, request, size(qwen3, request) - 1).ids != kept  # the marker tells that something went
    assert fit(qwen3, request, len(kept)).ids == kept
    # A loop of the past goes with its question, in one piece.
    past = (*loop, Message("assistant", b"a1"))
    request = PromptRequest(None, (*past, *chat(2)), (QUESTION,), 0)
    prompt = fit(qwen3, request, size(qwen3, request) - 1)
    assert left_out(prompt.ledger) == {"0-5": ("dropped", 1)}


# --- every prompt -----------------------------------------------------------------------------------------


@quick
@given(request=requests(tools=False), data=st.data())
def test_equals_the_slow_assembly_chatml(tiny: Model, request: PromptRequest, data: st.DataObject) -> None:
    check_against_slow(tiny, request, data)


@quick
@given(request=requests(tools=True), data=st.data())
def test_equals_the_slow_assembly_qwen3(qwen3: Model, request: PromptRequest, data: st.DataObject) -> None:
    check_against_slow(qwen3, request, data)


def check_against_slow(model: Model, request: PromptRequest, data: st.DataObject) -> None:
    plans = [(0, everything(request)), *steps(everything(request))]
    ids = [slow_ids(*model, request, what) for _, what in plans]
    lengths = list(map(len, ids))
    budget = data.draw(st.integers(min(lengths) - 3, lengths[0]), label="budget")
    request = replace(request, budget_tokens=budget)
    prompt = attempt(model, request)
    if isinstance(prompt, InputError):
        assert prompt.detail["prompt_tokens"] == lengths[-1] > budget
        return
    assert len(prompt.ids) <= budget
    (index, *_) = [index for index, found in enumerate(ids) if found == prompt.ids]
    in_pass = max((part.in_pass or 0 for part in prompt.ledger.parts if part.state != "kept"), default=0)
    # No step more than needed: one step less does not fit.
    assert index == 0 or lengths[index - 1] > budget
    # The marker's going, the last step of all, is no part's loss.
    marker_went = bool(request.history) and not request.evidence and index == len(plans) - 1
    assert in_pass == plans[index][0] - marker_went
    # What the ledger says is what the prompt holds.
    if all(part.state != "cut" for part in prompt.ledger.parts):
        assert slow_ids(*model, request, of_ledger(request, prompt.ledger)) == prompt.ids
    check_ledger(request, prompt)


def check_ledger(request: PromptRequest, prompt: Prompt) -> None:
    parts = prompt.ledger.parts
    assert sum(part.tokens for part in parts) == len(prompt.ids) == prompt.ledger.prompt_tokens
    assert prompt.ledger.left_tokens == request.budget_tokens - len(prompt.ids) >= 0
    for part in parts:
        assert (part.state == "kept") == (part.in_pass is None) or part.kind == "history_truncated"
        if part.kind in ("policy", "turn", "local_state", "tools"):
            assert (part.state, part.tokens) == ("kept", part.offered_tokens)
        if part.kind != "seams":
            assert part.tokens >= 0
            assert part.state != "dropped" or part.tokens == 0
    # Passes in order: what an earlier pass could still have given up is gone.
    history = [part for part in parts if part.kind == "history"]
    found = [part for part in parts if part.kind == "evidence"]
    passes = {part.in_pass for part in parts if part.in_pass}
    n_history, n_evidence = (sum(p.state != "dropped" for p in kind) for kind in (history, found))
    if passes & {2, 3, 4}:
        assert n_history <= KEEP_EXCHANGES
    if passes & {3, 4}:
        assert n_evidence <= KEEP_EVIDENCE
    if 4 in passes:
        assert n_history == 0
    assert [part.state for part in history] == sorted((p.state for p in history), key="dropped kept".index)


@quick
@given(request=requests(tools=True), data=st.data())
def test_a_smaller_budget_brings_nothing_back(
    qwen3: Model, request: PromptRequest, data: st.DataObject
) -> None:
    check_monotone(qwen3, request, data)


@quick
@given(request=requests(tools=False), data=st.data())
def test_a_smaller_budget_brings_nothing_back_without_frames(
    tiny_raw: Model, request: PromptRequest, data: st.DataObject
) -> None:
    check_monotone(tiny_raw, request, data)


def check_monotone(model: Model, request: PromptRequest, data: st.DataObject) -> None:
    n = size(model, request)
    budgets = sorted(data.draw(st.lists(st.integers(0, n), min_size=2, max_size=6)), reverse=True)
    before: Prompt | None = None
    refused = False
    for budget in budgets:
        prompt = attempt(model, replace(request, budget_tokens=budget))
        if isinstance(prompt, InputError):
            assert prompt.detail["prompt_tokens"] > budget
            refused = True
            continue
        assert not refused, "what was refused with more is not accepted with less"
        assert len(prompt.ids) <= budget
        check_ledger(replace(request, budget_tokens=budget), prompt)
        assert assemble(*model, replace(request, budget_tokens=budget)) == prompt
        if before is not None:
            for old, new in zip(named(before), named(prompt), strict=True):
                order = ("kept", "cut", "dropped")
                assert order.index(old.state) <= order.index(new.state)
                assert new.tokens <= old.tokens
        before = prompt


def named(prompt: Prompt) -> list[Part]:
    return [part for part in prompt.ledger.parts if part.kind in ("history", "evidence")]


def test_the_kernel_gives_the_same_prompt(smollm2: Model, smollm2_file: bytes) -> None:
    request = PromptRequest(b"Be kind.", chat(4), (QUESTION,), 0, b"12:00", evidence(1, 2, 3))
    by_kernel = Model(smollm2.template, native_tokenizer(smollm2_file))
    n = size(smollm2, request)
    for budget in (n, n - 40, n - 200, n // 2, n // 3):
        assert fit(by_kernel, request, budget) == fit(smollm2, request, budget)


# --- the account ------------------------------------------------------------------------------------------


def test_the_account_of_a_plain_chat_has_no_seams(smollm2: Model, qwen3: Model) -> None:
    for model in (smollm2, qwen3):
        for policy in (None, b"", b"Be kind."):
            turn = (Message("user", b" \nAnd now?"),)
            request = PromptRequest(policy, chat(4), turn, 0, b"12:00", evidence(1, 2))
            request = replace(request, turn=(QUESTION,))
            for budget in (1 << 20, size(model, request) - 40, size(model, replace(request, history=()))):
                prompt = fit(model, request, budget)
                (seams,) = [part for part in prompt.ledger.parts if part.kind == "seams"]
                assert (seams.tokens, seams.offered_tokens) == (0, 0)


def test_the_account_counts_a_part_as_it_stands(qwen3: Model) -> None:
    request = PromptRequest(
        b"Be kind.", chat(1), (QUESTION,), 1 << 20, b"12:00", evidence(1), (b'{"type": "function"}',)
    )
    parts = {part.kind: part.tokens for part in assemble(*qwen3, request).ledger.parts}
    count = qwen3.tokenizer.encode
    assert parts["policy"] == len(count([Untrusted(b"Be kind.")]))
    assert parts["turn"] == len(count([Untrusted(b"And now?")]))
    assert parts["local_state"] == len(count([Untrusted(b"<local_state>\n12:00\n</local_state>\n")]))
    words = [b"user\nhello q1", b"\n", b"assistant\nhello a1" + b"." * 40, b"\n"]
    assert parts["history"] == 4 + sum(len(count([Untrusted(text)])) for text in words)


def test_the_ledger_as_json(tiny: Model) -> None:
    ledger = fit(tiny, PromptRequest(None, (), (QUESTION,), 0), 100).ledger
    data = ledger.as_json()
    assert list(data) == ["budget_tokens", "prompt_tokens", "left_tokens", "offered_tokens", "parts"]
    assert data["budget_tokens"] - data["left_tokens"] == data["prompt_tokens"] == data["offered_tokens"]
    assert [part["kind"] for part in data["parts"]] == [
        "policy", "turn", "local_state", "tools", "frame", "seams",
    ]  # fmt: skip
    assert data["parts"][1] == {
        "kind": "turn", "label": "0-0", "state": "kept", "in_pass": None, "tokens": 8, "offered_tokens": 8,
    }  # fmt: skip


# --- errors -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("messages", "code"),
    [
        ((), "template.order"),
        ((Message("system", b"x"),), "template.order"),
        ((QUESTION, Message("assistant", b"x")), "template.order"),
        ((Message("tool", b"x"),), "template.role"),
        ((Message("user", "x"),), "template.content"),  # type: ignore[arg-type]
        ((Message("user", b"\xff"),), "input.text"),
        ((*chat(3), Message("user", b"\xff")), "input.text"),
        ((Message("user", b"\x04"),), "input.character"),
    ],
)
def test_errors_of_the_stages_before_pass_through(
    smollm2: Model, messages: tuple[Message, ...], code: str
) -> None:
    request = request_of(Conversation(messages), budget_tokens=8192)
    with pytest.raises(InputError) as error:
        assemble(*smollm2, request)
    assert error.value.code == code
    if code.startswith("input."):
        with pytest.raises(InputError) as plain:
            smollm2.tokenizer.encode(smollm2.template.render(Conversation(messages)))
        assert error.value.detail == plain.value.detail


def test_the_documentation_names_the_floors() -> None:
    text = DOCS.read_text("utf-8")
    assert f"`KEEP_EXCHANGES` = {KEEP_EXCHANGES}" in text
    assert f"`KEEP_EVIDENCE` = {KEEP_EVIDENCE}" in text
