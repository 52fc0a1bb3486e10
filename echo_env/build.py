"""From names to a wired conversation: the one place where configuration meets implementations."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, cast

from pydantic import Field

from echo_env import registry
from echo_env.epm import Scorer
from echo_env.errors import ConfigError
from echo_env.profiles import Scenario
from echo_env.rewards import JudgedRecipe, Recipe
from echo_env.roles import Actor, Cast, Director, Judge, Policy
from echo_env.scorers import NO_EPM, get_scorer
from echo_env.session import DialogueSession
from echo_env.types import EpisodeHeader, Record
from echo_env.version import VERSION


class WorldConfig(Record):
    """Which world a conversation takes place in."""

    backend: str = "embedded"
    judge: str | None = None
    """Another judge than the backend's own, by registered name or "module:attribute"."""
    actor: str | None = None
    """Another actor than the backend's own."""
    director: str | None = None
    """Another director than the backend's own."""
    scorer: str = "strict"
    recipe: str = "epm"
    recipe_options: dict[str, Any] = Field(default_factory=dict)
    """Settings that the recipe takes: its judges, its reference policy."""
    max_turns: Annotated[int, Field(ge=1)] | None = None
    """Turns after which a conversation is cut off (truncation). The person's own patience is the scorer's."""


CHAT_TURNS = 12
"""Turns of a chit-chat where the configuration sets no limit: there is no success to reach."""


def conversation_seed(seed: int, scenario: str, episode: int = 0) -> int:
    """Return the seed of one conversation, from the run's seed, the scenario and the number of the episode."""
    return zlib.crc32(f"{seed}:{scenario}:{episode}".encode())


def build_session(world: WorldConfig, scenario: Scenario, seed: int) -> DialogueSession:
    """Wire one conversation.

    Raises:
        ConfigError: A name is unknown or cannot be loaded.
    """
    make_cast = cast("Callable[[int], Cast]", registry.resolve("backend", world.backend))
    roles = make_cast(seed)
    if world.judge is not None:
        roles = replace(roles, judge=build_judge(world.judge))
    if world.actor is not None:
        roles = replace(roles, actor=cast("Callable[[int], Actor]", registry.resolve("actor", world.actor))(seed))
    if world.director is not None:
        roles = replace(roles, director=cast("Callable[[], Director]", registry.resolve("director", world.director))())
    recipe = recipe_of(world)
    if not scenario.chitchat:
        return DialogueSession(scenario, roles, scorer_of(world), recipe, budget=world.max_turns)
    if not isinstance(recipe, JudgedRecipe):
        raise ConfigError(
            f"recipe '{world.recipe}' is made of EPM, which does not apply to chit-chat ({scenario.id})",
            "take one with judges of its own:  recipe='humanlike' or 'echo_n1'",
        )
    return DialogueSession(scenario, roles, NO_EPM, recipe, budget=world.max_turns or CHAT_TURNS)


def build_judge(name: str) -> Judge:
    """Return a judge by name, for one conversation.

    Raises:
        ConfigError: There is no such judge.
    """
    return cast("Callable[[], Judge]", registry.resolve("judge", name))()


def scorer_of(world: WorldConfig) -> Scorer:
    """Return the world's scorer."""
    return get_scorer(world.scorer)


def recipe_of(world: WorldConfig) -> Recipe:
    """Return the world's recipe, for one conversation.

    Raises:
        ConfigError: There is no such recipe, or it does not take one of the options.
    """
    make = cast("Callable[..., Recipe]", registry.resolve("recipe", world.recipe))
    try:
        return make(**world.recipe_options)
    except TypeError as e:
        raise ConfigError(f"recipe '{world.recipe}' does not take these options: {e}", "see docs/design.md") from None


def build_policy(name: str, seed: int = 0, options: Mapping[str, Any] | None = None) -> Policy:
    """Return a policy by registered name, "module:attribute", or a local folder of a Hugging Face model.

    Raises:
        ConfigError: There is no such policy, or it does not take one of the options.
    """
    options = options or {}
    if "seed" in options:
        raise ConfigError("the policy's seed is the run's seed, not an option", "use --seed")
    make = policy_maker(name)
    try:
        return make(seed=seed, **options)
    except TypeError as e:
        raise ConfigError(f"policy '{name}' does not take these options: {e}", "see  echo-env run --help") from None


def policy_maker(name: str) -> Callable[..., Policy]:
    """Return what builds a policy; a registered name wins over a folder of the same name.

    Raises:
        ConfigError: There is no such policy.
    """
    if name not in registry.names("policy") and Path(name).is_dir():
        local_model = cast("Callable[..., Policy]", registry.load("echo_env.agents.policy:local_model"))
        return lambda **options: local_model(name, **options)
    if "/" in name and ":" not in name:
        raise ConfigError(
            f"there is no folder '{name}'", "a policy is a name (echo-env list policy), a folder or llm:..."
        )
    return cast("Callable[..., Policy]", registry.resolve("policy", name))


def episode_header(session: DialogueSession, policy: str, seed: int, episode: int) -> EpisodeHeader:
    """Return the header of a conversation's record."""
    s = session.scenario
    return EpisodeHeader(
        episode_id=f"{s.id}.{episode}",
        scenario=s.id,
        scenario_hash=s.digest,
        split=s.split,
        language=s.language,
        domain=s.domain,
        p0=s.p0,
        policy=policy,
        judge=session.cast.judge.id,
        rubric=session.cast.judge.rubric,
        scorer=session.scorer.id,
        recipe=session.recipe.id,
        actor=session.cast.actor.id,
        director=session.cast.director.id,
        seed=seed,
        max_turns=session.budget or session.scorer.max_turns,
        echo_env=VERSION,
    )
