"""A local model that hears another conversation's user messages, many conversations at once (`agents/controls.py`).

    echo-env run --policy MODEL --seed 7 --out FOLDER
    PYTHONPATH=benchmarks echo-env run --policy swapped:Listener --seed 7 --out OTHER
        (and --option model=MODEL --option heard=FOLDER)

The person of the second run is answered as if the next person of the first had spoken. A conversation is recognised by
how it opens, so both runs need the same scenarios, episodes and seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from echo_env.agents.controls import swapped
from echo_env.agents.policy import local_model
from echo_env.errors import ConfigError
from echo_env.record import find_runs
from echo_env.roles import Observation
from echo_env.types import Episode


def partners(episodes: Sequence[Episode]) -> dict[str, tuple[str, ...]]:
    """Return what is heard in place of a conversation, by its opening: what the next person said.

    Args:
        episodes: Of at least two scenarios.

    Raises:
        ConfigError: There is only one person.
    """
    spoken: dict[str, tuple[str, ...]] = {}
    openings: dict[str, list[str]] = {}
    for episode in sorted(episodes, key=lambda e: e.header.episode_id, reverse=True):
        if episode.turns:
            spoken[episode.header.scenario] = tuple(turn.user for turn in episode.turns)
            openings.setdefault(episode.header.scenario, []).append(episode.turns[0].user)
    if len(spoken) < 2:
        raise ConfigError("to swap messages takes conversations of two people", "record more scenarios")
    people = sorted(spoken)
    after = dict(zip(people, [*people[1:], people[0]], strict=True))
    return {opening: spoken[after[person]] for person in people for opening in openings[person]}


class Listener:
    """A model folder as a policy that hears somebody else.

    Args:
        model: The folder.
        heard: Folder of runs whose messages are swapped.
        seed: Seed of everything drawn.
        options: Of the model (`agents/policy.py`).
    """

    def __init__(self, model: str, heard: str, seed: int = 0, **options: Any) -> None:
        self.policy = local_model(model, seed=seed, **options)
        self.partners = partners([e for run in find_runs(Path(heard)) for e in run.episodes()])
        self.id = f"{self.policy.id}-swapped"

    async def respond(self, observation: Observation) -> str:
        """Return the reply to one conversation."""
        return self.respond_batch([observation])[0]

    def respond_batch(self, observations: Sequence[Observation], seeds: Sequence[int] | None = None) -> list[str]:
        """Return the replies to many conversations."""
        return self.policy.respond_batch([self._instead(o) for o in observations], seeds)

    def _instead(self, observation: Observation) -> Observation:
        opening = observation.messages[0].text
        if opening not in self.partners:
            raise ConfigError("this conversation was not recorded", "record it with the same scenarios and seed")
        return swapped(observation, self.partners[opening])
