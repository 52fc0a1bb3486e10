"""The world of language models: actor, director and judge, each asked through one client."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import lru_cache

from echo_env.agents.actor import LlmActor
from echo_env.agents.director import LlmDirector
from echo_env.agents.gated import GatedJudge
from echo_env.agents.judge import LlmJudge
from echo_env.agents.llm.client import LlmClient, client_of
from echo_env.roles import Cast

ROLES = ("actor", "director", "judge")


def cast_of(name: str) -> Callable[[int], Cast]:
    """Return what builds a conversation's roles: "llm:MODEL", or "llm:" and a models file.

    Warns once a process where one and the same model plays and judges.
    """
    client = client_of(name)
    players = {(m.model, m.api_base) for m in (client.models.of(role) for role in ROLES)}
    if len(players) == 1:
        _warn_of_one(name)
    return lambda seed: cast(client, seed)


def cast(client: LlmClient, seed: int) -> Cast:
    """Return the three roles of one conversation; the judge stands behind the safety gate."""
    return Cast(LlmActor(client, seed), LlmDirector(client), GatedJudge(LlmJudge(client)))


@lru_cache(maxsize=64)
def _warn_of_one(name: str) -> None:
    warnings.warn(
        f"'{name}': one model plays the person, directs and judges; a judge of its own kin is no independent one"
        " (give the roles models of their own in a models file)",
        stacklevel=3,
    )
