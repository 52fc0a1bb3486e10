"""Names to implementations. Nothing is imported until it is asked for.

A target is "module:attribute". Three ways to add one: `register`, an entry point in the group `echo_env.<kind>`, or
giving "module:attribute" itself wherever a name is taken. Families take arguments: `ensemble:one,two`, `llm:MODEL`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Literal, cast

from echo_env.errors import ConfigError, unknown_name

RegisteredKind = Literal[
    "backend", "judge", "actor", "director", "policy", "recipe", "humanlike", "empathy", "sage", "unifireward"
]
"""The last ones are the judges of recipes, by what they judge (`rewards.ReplyJudge`)."""

KINDS: tuple[RegisteredKind, ...] = (
    "backend", "judge", "actor", "director", "policy", "recipe", "humanlike", "empathy", "sage", "unifireward",
)  # fmt: skip

ATTACKS: dict[str, str] = {
    "attack:silent": "echo_env.agents.embedded.policies:Silent",
    "attack:one_word": "echo_env.agents.redteam.attacks:OneWord",
    "attack:parrot": "echo_env.agents.embedded.policies:Parrot",
    "attack:mirrored": "echo_env.agents.redteam.attacks:Mirrored",
    "attack:template": "echo_env.agents.embedded.policies:Template",
    "attack:keyword_stuffing": "echo_env.agents.embedded.policies:Stuffer",
    "attack:praise": "echo_env.agents.redteam.attacks:Praise",
    "attack:sycophancy": "echo_env.agents.redteam.attacks:Sycophancy",
    "attack:advice_list": "echo_env.agents.redteam.attacks:AdviceList",
    "attack:lecture": "echo_env.agents.embedded.policies:Lecturer",
    "attack:noun_slots": "echo_env.agents.redteam.attacks:NounSlots",
    "attack:noun_slots_strong": "echo_env.agents.redteam.attacks:NounSlotsStrong",
    "attack:fixed_script": "echo_env.agents.redteam.attacks:FixedScript",
    "attack:negated_comfort": "echo_env.agents.redteam.attacks:NegatedComfort",
    "attack:word_salad": "echo_env.agents.redteam.attacks:WordSalad",
    "attack:very_long": "echo_env.agents.redteam.attacks:VeryLong",
    "attack:small_edits": "echo_env.agents.redteam.attacks:SmallEdits",
    "attack:one_axis_c": "echo_env.agents.redteam.attacks:OnlyReframes",
    "attack:one_axis_a": "echo_env.agents.redteam.attacks:OnlyValidates",
    "attack:one_axis_p": "echo_env.agents.redteam.attacks:OnlyEmpowers",
    "attack:noun_question": "echo_env.agents.redteam.attacks:NounQuestion",
    "attack:only_questions": "echo_env.agents.redteam.attacks:OnlyQuestions",
    "attack:persona_flip": "echo_env.agents.redteam.attacks:PersonaFlip",
    "attack:topic_drift": "echo_env.agents.redteam.attacks:TopicDrift",
    "attack:prompt_injection": "echo_env.agents.redteam.attacks:PromptInjection",
    "attack:fake_transcript": "echo_env.agents.redteam.attacks:FakeTranscript",
    "attack:foreign_language": "echo_env.agents.redteam.attacks:ForeignLanguage",
    "attack:emoji_wall": "echo_env.agents.redteam.attacks:EmojiWall",
    "attack:random_good": "echo_env.agents.redteam.attacks:RandomGood",
    "attack:self_disclosure": "echo_env.agents.redteam.attacks:SelfDisclosure",
    "attack:feeling_guess": "echo_env.agents.redteam.attacks:FeelingGuess",
}
"""Policies that deserve nothing (`echo-env redteam`)."""

_TARGETS: dict[str, dict[str, str]] = {
    "backend": {"embedded": "echo_env.agents.embedded:cast"},
    "judge": {
        "embedded": "echo_env.agents.gated:embedded",
        "embedded-open": "echo_env.agents.embedded.openjudge:OpenJudge",
        "second": "echo_env.agents.gated:second",
        "deaf": "echo_env.agents.gated:deaf",
    },
    "actor": {"embedded": "echo_env.agents.embedded.actor:EmbeddedActor"},
    "director": {"embedded": "echo_env.agents.embedded.director:EmbeddedDirector"},
    "policy": {
        "silent": "echo_env.agents.embedded.policies:Silent",
        "template": "echo_env.agents.embedded.policies:Template",
        "adviser": "echo_env.agents.embedded.policies:Adviser",
        "lecturer": "echo_env.agents.embedded.policies:Lecturer",
        "stuffer": "echo_env.agents.embedded.policies:Stuffer",
        "parrot": "echo_env.agents.embedded.policies:Parrot",
        "skilled": "echo_env.agents.embedded.skilled:Skilled",
        "orderly": "echo_env.agents.embedded.orderly:Orderly",
        "reasoned": "echo_env.agents.embedded.reasoned:Reasoned",
        "smollm2-135m": "echo_env.agents.smollm2:smollm2_135m",
        "human": "echo_env.agents.human:Human",
        **ATTACKS,
    },
    "recipe": {
        "epm": "echo_env.rewards:epm",
        "echo_n1": "echo_env.recipes:echo_n1",
        "humanlike": "echo_env.recipes:humanlike",
        "peer": "echo_env.peer:peer",
        "sage": "echo_env.sage:sage",
    },
    "humanlike": {"embedded": "echo_env.agents.embedded.humanlike:EmbeddedHumanlike"},
    "empathy": {"embedded": "echo_env.agents.embedded.pairwise:EmbeddedEmpathy"},
    "sage": {"embedded": "echo_env.agents.embedded.sentient:EmbeddedSentience"},
    "unifireward": {"embedded": "echo_env.agents.embedded.steps:EmbeddedSteps"},
}

_FAMILIES: dict[str, dict[str, str]] = {
    "backend": {"llm": "echo_env.agents.world:cast_of"},
    "judge": {"ensemble": "echo_env.agents.ensemble:ensemble_of", "llm": "echo_env.agents.judge:judge_of"},
    "actor": {"llm": "echo_env.agents.actor:actor_of", "sentient": "echo_env.agents.sentient:actor_of"},
    "director": {"llm": "echo_env.agents.director:director_of"},
    "policy": {
        "llm": "echo_env.agents.llmpolicy:policy_of",
        "vllm": "echo_env.agents.vllmpolicy:policy_of",
        "strategy": "echo_env.agents.strategypolicy:policy_of",
    },
    "humanlike": {"llm": "echo_env.agents.genrm:humanlike_of"},
    "empathy": {"llm": "echo_env.agents.genrm:empathy_of"},
    "sage": {"llm": "echo_env.agents.sentient:judge_of"},
    "unifireward": {"llm": "echo_env.agents.unifireward:judge_of"},
}
"""Names that take arguments: "ensemble:embedded,second" calls the target with what stands behind the colon, and so does
"llm:models.yaml" or "llm:MODEL" (`agents/llm/config.py`). The target returns what a plain name would stand for."""


def register(kind: RegisteredKind, name: str, target: str) -> None:
    """Add or replace a name.

    Args:
        kind: What it is.
        name: How configurations and the command line call it.
        target: "module:attribute".
    """
    if ":" not in target:
        raise ConfigError(f"the target '{target}' of {kind} '{name}' is not of the form 'module:attribute'")
    _TARGETS[kind][name] = target


def names(kind: RegisteredKind) -> list[str]:
    """Return the known names of a kind, entry points included, sorted."""
    return sorted({*_TARGETS[kind], *(e.name for e in entry_points(group=f"echo_env.{kind}"))})


def resolve(kind: RegisteredKind, name: str) -> object:
    """Import and return what a name stands for.

    Raises:
        ConfigError: The name is unknown (with the nearest spelling), or its target cannot be imported.
    """
    family, _, arguments = name.partition(":")
    if name not in _TARGETS[kind] and family in _FAMILIES.get(kind, {}):
        return cast("Callable[[str], object]", load(_FAMILIES[kind][family]))(arguments)
    target = _TARGETS[kind].get(name) or (name if ":" in name else None)
    if target is None:
        found = [e.value for e in entry_points(group=f"echo_env.{kind}", name=name)]
        if not found:
            raise unknown_name(kind, name, names(kind))
        target = found[0]
    try:
        return load(target)
    except (ImportError, AttributeError) as e:
        raise ConfigError(f"{kind} '{name}' cannot be loaded from '{target}': {e}") from e


def load(target: str) -> object:
    """Import "module:attribute". The one way in which `echo_env` reaches into the layers above it."""
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(module), attribute)
