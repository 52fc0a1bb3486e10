"""Recipes with judges of their own: `echo_n1`, the reward that Echo-N1 trains its policy with, and `humanlike`.

    R = r_empathy + r_humanlike                                     (Echo-N1 eq. 7)
    r_empathy = R_process * 1[better than a reference]              (eq. 5 and 6)
    r_humanlike = 1[human rather than machine]                      (eq. 1 to 4)

Chit-chat gets r_humanlike alone (section 2.4). The judges are named: `embedded` needs no key and no network,
`llm:FILE` asks a language model, and a trained judge is whatever its name is registered for.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import cast

from echo_env import registry
from echo_env.build import build_policy
from echo_env.driving import both, waits
from echo_env.errors import ConfigError
from echo_env.registry import RegisteredKind
from echo_env.rewards import ReplyJudge, ReplyView, Step, no_verdict, verdict_of
from echo_env.roles import Observation, Policy
from echo_env.session import visible
from echo_env.types import Message, Verdict, storable

REFERENCE = "adviser"
"""Who gives the reply to beat where nobody is named. Echo-N1 takes replies that were rated 3 of 5 (section 2.4):
`adviser` takes up what was said and then hands out advice, which is neither deaf nor what most people came for."""
MOST_REFERENCES = 4096
"""Reference replies that a process keeps."""

_replies: OrderedDict[tuple[str, str, tuple[Message, ...]], str] = OrderedDict()


@dataclass(frozen=True, slots=True)
class Reference:
    """A frozen policy whose reply is the one to beat.

    Its reply to a conversation is kept, so that all who answer at that point are compared with one and the same.
    """

    name: str
    policy: Policy

    async def complete(self, view: ReplyView) -> ReplyView:
        """Return the view with a reference reply; one that the prompt brought stays.

        Raises:
            RoleFailure: The policy gave none.
        """
        if view.reference is not None:
            return view
        observation = observed(view)
        key = (self.name, observation.language, observation.messages)
        reply = _replies.get(key)
        if reply is None:
            reply = visible(storable(await self.policy.respond(observation)))
            reply = _replies.setdefault(key, reply)  # a sibling may have been faster; its reference is everybody's
            while len(_replies) > MOST_REFERENCES:
                _replies.popitem(last=False)
        return replace(view, reference=reply)


def observed(view: ReplyView) -> Observation:
    """Return what a policy would see in a view: the conversation up to the user's newest message."""
    judged = view.judged
    messages = [
        Message(role=role, text=text)
        for e in judged.history
        for role, text in (("user", e.user), ("companion", e.reply))
    ]
    return Observation((*messages, Message(role="user", text=judged.exchange.user)), judged.profile.language)


@lru_cache(maxsize=8)
def reference_policy(name: str) -> Reference:
    """Return a reference policy, built once a process: a local model is loaded once.

    Raises:
        ConfigError: There is no such policy.
    """
    return Reference(name, build_policy(name))


class EchoN1Recipe:
    """Echo-N1's reward of one reply (eq. 7): empathy against a reference, gated by process, plus humanlike.

    Args:
        humanlike: Tells human from machine.
        empathy: Compares a reply with the reference.
        reference: Who gives the reference where the prompt brings none.
    """

    id = "echo_n1-1"

    def __init__(self, humanlike: ReplyJudge, empathy: ReplyJudge, reference: Reference) -> None:
        self.humanlike, self.empathy, self.reference = humanlike, empathy, reference
        self.waits = waits(humanlike, empathy, reference.policy)

    async def verdicts(self, view: ReplyView) -> tuple[Verdict, ...]:
        """Ask both judges; in chit-chat, the humanlike one."""
        tone = verdict_of("humanlike", self.humanlike, view)
        if view.judged.profile.chitchat:
            return (await tone,)
        empathy, human = await both(self._compare(view), tone, waiting=self.waits)
        return (empathy, human)

    async def _compare(self, view: ReplyView) -> Verdict:
        try:
            view = await self.reference.complete(view)
        except Exception as e:  # without a reference there is nothing to compare with: a missing verdict
            return no_verdict("empathy", self.empathy.id, e, view)
        return await verdict_of("empathy", self.empathy, view)

    def turn(self, step: Step) -> dict[str, float] | None:
        """Return {"empathy": 0..1, "humanlike": 0 or 1}; None where one is missing. Chit-chat has the latter alone."""
        return _parts(step.verdicts)


class HumanlikeRecipe:
    """r_humanlike alone (Echo-N1 eq. 1 to 4), for chit-chat and for ablations."""

    id = "humanlike-1"

    def __init__(self, humanlike: ReplyJudge) -> None:
        self.humanlike = humanlike
        self.waits = waits(humanlike)

    async def verdicts(self, view: ReplyView) -> tuple[Verdict, ...]:
        """Ask the judge."""
        return (await verdict_of("humanlike", self.humanlike, view),)

    def turn(self, step: Step) -> dict[str, float] | None:
        """Return {"humanlike": 0 or 1}; None where the verdict is missing."""
        return _parts(step.verdicts)


def _parts(verdicts: tuple[Verdict, ...]) -> dict[str, float] | None:
    """Shape raw verdicts into parts: a comparison counts as far as its reasoning was whole (Echo-N1 eq. 6)."""
    parts: dict[str, float] = {}
    for verdict in verdicts:
        if verdict.value is None:
            return None
        parts[verdict.kind] = verdict.parts.get("process", 1.0) * verdict.value
    return parts or None


def echo_n1(
    judges: str = "embedded",
    humanlike: str | None = None,
    empathy: str | None = None,
    reference: str = REFERENCE,
    context: bool | None = None,
    self_correction: bool | None = None,
) -> EchoN1Recipe:
    """Build the recipe `echo_n1`.

    Args:
        judges: Name of both judges: "embedded", or "llm:FILE".
        humanlike: Name of the humanlike judge, where it is another one.
        empathy: Name of the empathy judge, where it is another one.
        reference: Name of the policy whose reply is to be beaten.
        context: Whether the humanlike judge sees the conversation (eq. 4) or the reply alone (eq. 3).
        self_correction: Whether the empathy judge is told to go over its verdict before it gives it (section 3.2.2).

    Raises:
        ConfigError: A name is unknown, or a judge does not take a setting.
    """
    return EchoN1Recipe(
        reply_judge("humanlike", humanlike or judges, context=context),
        reply_judge("empathy", empathy or judges, self_correction=self_correction),
        reference_policy(reference),
    )


def humanlike(judges: str = "embedded", humanlike: str | None = None, context: bool | None = None) -> HumanlikeRecipe:
    """Build the recipe `humanlike`; its settings are those of `echo_n1`."""
    return HumanlikeRecipe(reply_judge("humanlike", humanlike or judges, context=context))


def reply_judge(kind: RegisteredKind, name: str, **settings: object) -> ReplyJudge:
    """Return a judge of replies by name, for one conversation.

    Args:
        kind: What it judges.
        name: A registered name, a family ("llm:FILE") or "module:attribute".
        settings: Its settings; those that are None are left to it.

    Raises:
        ConfigError: There is no such judge, or it does not take a setting.
    """
    make = cast("Callable[..., ReplyJudge]", registry.resolve(kind, name))
    given = {key: value for key, value in settings.items() if value is not None}
    try:
        return make(**given)
    except TypeError as e:
        raise ConfigError(
            f"the {kind} judge '{name}' does not take these settings: {e}", "see docs/design.md"
        ) from None
