"""A request -> the ids of a prompt within its budget, and the account of what was left out.

Theory of operation
-------------------
The prompt is the template's rendering of policy, history and turn; local state and evidence stand before the
words of the current question, in markers (markers.py). If that is more than the budget, five passes shorten
it, in this order, each in steps, and none by a step more than needed:

    1  the oldest exchange is dropped, till KEEP_EXCHANGES are left
    2  the evidence of the lowest rank is dropped, till KEEP_EVIDENCE is left
    3  the oldest exchange that is left goes, and `<history_truncated>` stands in its place: in the first
       question after it, which in the end is the current one
    4  the evidence that is left loses its last character; with the last one it goes whole, and the marker
       of pass 3 after it
    5  refused: policy, tools, local state and turn alone are more than the budget. They are never shortened

Rank is relevance; of equals the earlier ranks higher. A pass begins when the one before has taken all its
steps. Whether that is enough is asked first; then the number of steps is found by halving. Every question is
"how many tokens has this prompt?", of its real ids. What does not fit a budget fits no smaller one: with a
smaller budget each question is answered alike or by "too many", so at least as many steps are taken, and
nothing that a budget has no room for comes back with a smaller one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from slm2_web.errors import InputError
from slm2_web.prompt2.account import Account
from slm2_web.prompt2.composition import Composition, Plan
from slm2_web.prompt2.folding import FoldingEncoder
from slm2_web.prompt2.ledger import Ledger
from slm2_web.prompt2.request import PromptRequest, check_request, question_of
from slm2_web.template2.machine import HasRender
from slm2_web.template2.spec import Conversation
from slm2_web.tokenizer2.runs import Run
from slm2_web.tokenizer2.tokenizer import Tokenizer

KEEP_EXCHANGES = 2
KEEP_EVIDENCE = 1


@dataclass(frozen=True, slots=True)
class Prompt:
    """The ids of a prompt, the runs that they are of, and its account."""

    ids: list[int]
    runs: list[Run]
    ledger: Ledger


def assemble(template: HasRender, tokenizer: Tokenizer, request: PromptRequest) -> Prompt:
    """The prompt of `request`: at most `budget_tokens` ids. The same request gives the same ids.

    Raises: InputError `input.budget` with the numbers (`prompt_tokens` is the least possible); `input.json`
    and `input.text` for local state and evidence that cannot be used; `template.*` and `input.*` of the
    stages before.
    """
    check_request(request)
    encoder = FoldingEncoder(tokenizer)
    composition = Composition(request)

    def count(conversation: Conversation) -> int:
        return encoder.count(template.render(conversation))

    def fits(plan: Plan) -> bool:
        return count(composition.conversation(plan)) <= request.budget_tokens

    plan = _shortened(composition, fits)
    account = Account(composition, count)
    if not fits(plan):
        raise _refusal(account, request, count(composition.conversation(plan)))
    runs = template.render(composition.conversation(plan))
    ledger = account.ledger(plan, keep_exchanges=KEEP_EXCHANGES, keep_evidence=KEEP_EVIDENCE)
    return Prompt(encoder.encode(runs), runs, ledger)


@dataclass(frozen=True, slots=True)
class _Pass:
    """`after(step)` is the plan after so many steps of this pass, 1 to `n_steps`."""

    n_steps: int
    after: Callable[[int], Plan]


def _shortened(composition: Composition, fits: Callable[[Plan], bool]) -> Plan:
    """The first plan that fits; where none does, the last one."""
    plan = composition.everything
    if fits(plan):
        return plan
    for one in _passes(composition):
        plan = one.after(one.n_steps)
        if fits(plan):
            low, high = 1, one.n_steps
            while low < high:
                middle = (low + high) // 2
                if fits(one.after(middle)):
                    high = middle
                else:
                    low = middle + 1
            return one.after(high)
    return plan


def _passes(composition: Composition) -> Iterator[_Pass]:
    """Passes 1 to 4, those that have steps; each goes on from where the one before ends."""
    n_exchanges, n_evidence = len(composition.exchanges), len(composition.evidence)
    oldest, best = max(n_exchanges - KEEP_EXCHANGES, 0), min(n_evidence, KEEP_EVIDENCE)
    n_cuts = max(len(composition.best_text), 1) if best else 0
    # A turn without words of its own has no place for the marker.
    can_mark = question_of(composition.request.turn) is not None
    plan0 = composition.everything
    plan1 = replace(plan0, first_exchange=oldest)
    plan2 = replace(plan1, n_evidence=best)
    plan3 = replace(plan2, first_exchange=n_exchanges, marker=can_mark and oldest < n_exchanges)

    def after_cut(step: int) -> Plan:
        if step < n_cuts:
            return replace(plan3, missing=step)
        return replace(plan3, n_evidence=0, marker=plan3.marker and step == n_cuts)

    passes = (
        _Pass(oldest, lambda step: replace(plan0, first_exchange=step)),
        _Pass(n_evidence - best, lambda step: replace(plan1, n_evidence=n_evidence - step)),
        _Pass(n_exchanges - oldest, lambda step: replace(plan3, first_exchange=oldest + step)),
        _Pass(n_cuts + plan3.marker, after_cut),
    )
    return (one for one in passes if one.n_steps)


def _refusal(account: Account, request: PromptRequest, prompt_tokens: int) -> InputError:
    """Pass 5."""
    parts = {f"{part.kind}_tokens": part.tokens for part in account.fixed_parts()}
    shown = ", ".join(f"{key.removesuffix('_tokens')} {tokens}" for key, tokens in parts.items())
    return InputError(
        "input.budget",
        f"the prompt has at least {prompt_tokens} tokens ({shown}); allowed: {request.budget_tokens}",
        {"prompt_tokens": prompt_tokens, "budget_tokens": request.budget_tokens, **parts},
    )
