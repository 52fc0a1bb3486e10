"""Conversations without any model: reference policies play people of the train split, written in chat format."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial

from echo_env.agents.policy import system_prompt
from echo_env.agents.rollout import seeded
from echo_env.agents.synthesis.conversations import ChatLine, Conversation, Job, Meta
from echo_env.build import WorldConfig, build_policy, build_session, conversation_seed, policy_maker
from echo_env.errors import ConfigError
from echo_env.profiles import get_scenario, scenario_ids
from echo_env.types import CHITCHAT

SPLIT = "train"
"""What is measured on is never trained on."""


def counts_of(mix: Mapping[str, Fraction], count: int) -> dict[str, int]:
    """Return how many of a count fall to each share, by largest remainder; of equal remainders the first named wins.

    Args:
        mix: Weights above 0; they need not sum to 1.
        count: How many there are.

    Raises:
        ConfigError: There is no weight, or one is not above 0.
    """
    if not mix or any(weight <= 0 for weight in mix.values()):
        raise ConfigError("a mix gives each policy a share above 0", "--mix skilled=0.7,template=0.3")
    total = sum(mix.values())
    exact = {name: weight * count / total for name, weight in mix.items()}
    counts = {name: math.floor(share) for name, share in exact.items()}
    left = count - sum(counts.values())
    for name in sorted(exact, key=lambda n: counts[n] - exact[n])[:left]:
        counts[name] += 1
    return counts


def jobs(
    mix: Mapping[str, Fraction], count: int, seed: int, *, split: str = SPLIT, language: str = "en",
    max_turns: int | None = None,
) -> list[Job]:  # fmt: skip
    """Return conversations of a stated mix of policies, each with another person until all have been met.

    Args:
        mix: Share of each policy.
        count: Conversations.
        seed: Seed of who meets whom, and of everything said.
        split: Only "train".
        language: Of the people.
        max_turns: Turns after which a conversation is cut off.

    Raises:
        ConfigError: The split is one that is measured on, or holds nobody of the language; a policy is unknown.
    """
    if split != SPLIT:
        raise ConfigError(f"split '{split}' is for measuring, and nothing is trained on it", f"--split {SPLIT}")
    for name in mix:
        policy_maker(name)
    people = scenario_ids(split)
    if get_scenario(people[0]).language != language:
        raise ConfigError(f"split '{split}' holds nobody who speaks '{language}'", "leave --language out")
    return _meetings(mix, count, seed, people, WorldConfig(max_turns=max_turns))


def chats(mix: Mapping[str, Fraction], count: int, seed: int, *, max_turns: int | None = None) -> list[Job]:
    """Return chit-chats of a stated mix of policies with the people of the split `chitchat`, whom nothing ails.

    Args:
        mix: Share of each policy.
        count: Conversations.
        seed: Seed of who meets whom, and of everything said.
        max_turns: Turns after which a conversation is cut off; `build.CHAT_TURNS` where there is no limit.

    Raises:
        ConfigError: A policy is unknown.
    """
    for name in mix:
        policy_maker(name)
    world = WorldConfig(recipe="humanlike", max_turns=max_turns)
    return _meetings(mix, count, seed, scenario_ids(CHITCHAT), world)


def _meetings(
    mix: Mapping[str, Fraction], count: int, seed: int, people: Sequence[str], world: WorldConfig
) -> list[Job]:
    rnd, people = random.Random(f"{seed}/recorded"), list(people)
    rnd.shuffle(people)
    who = [name for name, number in counts_of(mix, count).items() for _ in range(number)]
    rnd.shuffle(who)
    jobs = []
    for number, policy in enumerate(who):
        episode, place = divmod(number, len(people))
        meeting = _Meeting(policy, people[place], episode, seed, number)
        jobs.append(Job(meeting.id, partial(_play, world, meeting)))
    return jobs


@dataclass(frozen=True, slots=True)
class _Meeting:
    """Who meets whom."""

    policy: str
    person: str
    episode: int
    seed: int
    number: int

    @property
    def id(self) -> str:
        return f"{self.person}.{self.episode}.{self.policy}.{self.seed}"


async def _play(world: WorldConfig, meeting: _Meeting) -> Conversation:
    scenario = get_scenario(meeting.person)
    own = conversation_seed(meeting.seed, meeting.person, meeting.episode)
    session, policy = build_session(world, scenario, own), build_policy(meeting.policy, meeting.seed)
    policy = seeded(policy, own)
    observation, rewards = await session.open(), []
    while session.outcome is None:
        advance = await session.reply(await policy.respond(observation))
        observation = advance.observation
        rewards.append(advance.turn.reward)
    system = system_prompt(None)
    said = observation.messages[: 2 * session.turns]  # the person's last words stand in `closing`
    lines = [ChatLine(role="user" if m.role == "user" else "assistant", content=m.text) for m in said]
    meta = Meta(
        id=meeting.id,
        source="recorded",
        language=scenario.language,
        seed=meeting.seed,
        number=meeting.number,
        facets={"scenario": meeting.person, "scenario_hash": scenario.digest, "domain": scenario.domain},
        models={"companion": policy.id, "user": session.cast.actor.id, "director": session.cast.director.id},
        prompts={"companion": system.id},
        turns=session.turns,
        end=session.outcome.end,
        closing=session.outcome.closing,
        rewards=tuple(rewards),
    )
    return Conversation(messages=(ChatLine(role="system", content=system.text), *lines), meta=meta)
