"""PEER (structured empathetic reasoning with UnifiReward): the form of a reply that shows its steps, and its reward.

A policy thinks in three steps before it speaks, and the person sees the last part alone:

    <think>
    <history>what they told, and the stage of support</history>
    <emotion>what they feel, and how strongly</emotion>
    <strategy>one of eight strategies, and why</strategy>
    </think>
    The reply.

The reward (PEER section 4.1) is 0.5 for each step that is right, 0.5 for a reply at least as good as a reference, and
1 for the whole form; 3 at most, never negative. What needs siblings, the weights against redundancy (eq. 3 to 5),
belongs to the trainer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeVar, cast, get_args

from echo_env.driving import waits
from echo_env.recipes import REFERENCE, Reference, reference_policy, reply_judge
from echo_env.rewards import ReplyJudge, ReplyView, Step, no_verdict, verdict_of
from echo_env.session import visible
from echo_env.types import Verdict

KIND = "unifireward"
StepName = Literal["history", "emotion", "strategy"]
STEPS: tuple[StepName, ...] = get_args(StepName)
STEP_POINTS, RESPONSE_POINTS, FORMAT_POINTS = 0.5, 0.5, 1.0
"""What a right step, a reply at least as good as the reference, and the whole form are worth."""

Stage = Literal["exploration", "comforting", "action"]
STAGES: dict[Stage, tuple[str, ...]] = {
    "exploration": ("exploration", "exploring", "探索"),
    "comforting": ("comforting", "comfort", "reassurance", "安抚", "安慰"),
    "action": ("action", "行动"),
}
"""Stages of support (ESConv), and the words by which a step may name them."""

Strategy = Literal[
    "small talk", "questioning", "restatement", "naming feelings", "self-disclosure", "affirmation", "suggestion",
    "information",
]  # fmt: skip
STRATEGIES: dict[Strategy, tuple[str, ...]] = {
    "small talk": ("small talk", "闲聊"),
    "questioning": ("questioning", "question", "提问"),
    "restatement": ("restatement", "restate", "paraphrase", "复述"),
    "naming feelings": ("naming feelings", "name feelings", "reflection of feelings", "说出感受", "情感反映"),
    "self-disclosure": ("self-disclosure", "self disclosure", "自我表露"),
    "affirmation": ("affirmation", "affirm", "肯定"),
    "suggestion": ("suggestion", "suggest", "建议"),
    "information": ("information", "inform", "提供信息"),
}
"""The eight strategies of PEER (after Hill's helping skills), and the words by which a step may name them."""

N = TypeVar("N", bound=str)
_THINK = re.compile(r"<think\b[^>]*>|</think\s*>", re.IGNORECASE)
_TAG = re.compile(r"<\s*(/?)\s*(history|emotion|strategy)\b[^>]*>", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Steps:
    """A policy's output, taken apart."""

    texts: Mapping[StepName, str]
    """Each step's words; "" for one that is missing, or is there twice."""
    response: str
    """What the person sees."""
    in_order: bool
    """Whether the steps stand in their order, each once."""

    @property
    def complete(self) -> bool:
        """Whether the whole form is there: three steps in their order, each with words, and a reply with words."""
        return self.in_order and all(map(_worded, [*self.texts.values(), self.response]))


def read_steps(output: str) -> Steps:
    """Take a policy's full output apart.

    Spelling is forgiven: case, attributes, blanks in a tag, a closing tag that is left out before the next one. What is
    missing is not: a step outside of the thinking was shown to the person, and is none.
    """
    response = visible(output)
    hidden = _hidden(output)
    found: list[tuple[StepName, str]] = []
    tags = list(_TAG.finditer(hidden))
    for k, tag in enumerate(tags):
        if not tag[1]:
            end = tags[k + 1].start() if k + 1 < len(tags) else len(hidden)
            found.append((cast(StepName, tag[2].lower()), hidden[tag.end() : end].strip()))
    names = [name for name, _ in found]
    texts = {name: text for name, text in found if names.count(name) == 1}
    return Steps({name: texts.get(name, "") for name in STEPS}, response, tuple(names) == STEPS)


def _hidden(output: str) -> str:
    """Return what of an output stands in `<think>` blocks: what `session.visible` leaves out."""
    marks = list(_THINK.finditer(output))
    if not marks:
        return ""
    begin = 0 if marks[0][0].startswith("</") else marks[0].end()
    last = marks[-1]
    return _THINK.sub("\n", output[begin : last.start() if last[0].startswith("</") else len(output)])


def _worded(text: str) -> bool:
    return re.search(r"\w", text) is not None


def named(text: str, words: Mapping[N, tuple[str, ...]]) -> list[N]:
    """Return which of several things a step names, by the words for each (`STAGES`, `STRATEGIES`)."""
    lowered = text.lower()
    return [name for name, forms in words.items() if any(_says(lowered, form) for form in forms)]


def _says(text: str, form: str) -> bool:
    if not form.isascii():  # Chinese has no blanks between words
        return form in text
    return re.search(rf"(?<![a-z]){re.escape(form)}s?(?![a-z])", text) is not None


def points(steps: Steps, right: Mapping[StepName, bool], response: float) -> dict[str, float]:
    """Return the parts of the reward.

    Args:
        steps: The output.
        right: Which steps are right; a missing one never is.
        response: How far the reply is at least as good as the reference, 0..1.
    """
    parts: dict[str, float] = {name: STEP_POINTS * (right[name] and bool(steps.texts[name])) for name in STEPS}
    return {**parts, "response": RESPONSE_POINTS * response, "format": FORMAT_POINTS * steps.complete}


class PeerRecipe:
    """PEER's reward of one output.

    Args:
        judge: UnifiReward, or what stands in for it.
        reference: Who gives the reference where the prompt brings none.
    """

    id = "peer-1"

    def __init__(self, judge: ReplyJudge, reference: Reference) -> None:
        self.judge, self.reference = judge, reference
        self.waits = waits(judge, reference.policy)

    async def verdicts(self, view: ReplyView) -> tuple[Verdict, ...]:
        """Ask the judge, with a reference to compare with."""
        try:
            view = await self.reference.complete(view)
        except Exception as e:  # without a reference there is nothing to compare with: a missing verdict
            return (no_verdict(KIND, self.judge.id, e, view),)
        return (await verdict_of(KIND, self.judge, view),)

    def turn(self, step: Step) -> dict[str, float] | None:
        """Return the parts: history, emotion, strategy, response, format; None without a verdict."""
        verdict = next((v for v in step.verdicts if v.kind == KIND), None)
        if verdict is None or verdict.value is None:
            return None
        return dict(verdict.parts)


def peer(
    judges: str = "embedded", reference: str = REFERENCE, orders: Literal["one", "both"] | None = None
) -> PeerRecipe:
    """Build the recipe `peer`.

    Args:
        judges: Name of the judge: "embedded", or "llm:FILE".
        reference: Name of the policy whose reply is to be matched.
        orders: Whether a language model compares the replies in one order or in both; the embedded judge knows none.

    Raises:
        ConfigError: A name is unknown, or the judge does not take a setting.
    """
    return PeerRecipe(reply_judge("unifireward", judges, orders=orders), reference_policy(reference))
