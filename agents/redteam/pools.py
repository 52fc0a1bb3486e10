"""The sentences of the scripted attacks, and the conversations that some of them quote from."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from echo_env.agents.embedded.skilled import Skilled
from echo_env.build import WorldConfig, build_session, conversation_seed
from echo_env.driving import run_now
from echo_env.errors import ScenarioError
from echo_env.profiles import Scenario, data_root, get_scenario, scenario_ids
from echo_env.types import Axis, Record
from echo_env.yamlfiles import read_yaml

FOLDER = "attacks"
OPPOSITE: Mapping[Axis, Axis] = {"C": "A", "A": "P", "P": "A"}
"""Whose first need is furthest: a person who wants to be heard is rushed by steps, one who wants steps or order is held
up by comfort."""


@lru_cache(maxsize=4)
def pool(name: str = "en") -> dict[str, tuple[str, ...]]:
    """Return phrases by bank.

    Args:
        name: "en" for what the scripted attacks say, "fragments" for what the searcher builds replies from.

    Raises:
        ScenarioError: The file is missing, or a bank is not a list of texts.
    """
    path = data_root() / FOLDER / f"{name}.yaml"
    banks: dict[str, tuple[str, ...]] = {}
    for kind, bank in _mapping(path).items():
        if kind == "language":
            continue
        if not isinstance(bank, list) or not bank or not all(isinstance(text, str) for text in bank):
            raise ScenarioError(f'{path}: {kind}: expected a list of texts; for example  {kind}: ["Yes.", "No."]')
        banks[kind] = tuple(bank)
    return banks


class Script(Record):
    """Replies that are given one after the other, whatever the person says."""

    found_by: str
    """The command that found it."""
    judge: str
    """Id of the judge that it was found against."""
    scorer: str
    judge_calls: int
    mean_return: float
    """Of the conversations that it was found on."""
    replies: Annotated[tuple[str, ...], Field(min_length=1)]


def read_script(path: Path) -> Script:
    """Read a script.

    Raises:
        ScenarioError: It cannot be read, or a field is missing or wrong.
    """
    try:
        return Script.model_validate(_mapping(path))
    except ValidationError as e:
        fault = e.errors()[0]
        where = ".".join(str(part) for part in fault["loc"])
        raise ScenarioError(f"{path}: {where}: {fault['msg']}", 'for example  replies: ["I hear you."]') from None


@lru_cache(maxsize=1)
def fixed_script() -> Script:
    """Return the best script that was found for all of the benchmark at once."""
    return read_script(data_root() / FOLDER / "fixed_script.yaml")


def _mapping(path: Path) -> dict[str, object]:
    data = read_yaml(path)
    if not isinstance(data, dict):
        raise ScenarioError(f"{path}: expected a mapping, this file holds {type(data).__name__}")
    return data


@lru_cache(maxsize=256)
def skilled_replies(scenario: str, seed: int = 0) -> tuple[str, ...]:
    """Return what the reference companion says to the embedded person of a scenario, in order."""
    session = build_session(WorldConfig(), get_scenario(scenario), conversation_seed(seed, scenario))
    policy, replies = Skilled(seed), []
    observation = run_now(session.open())
    while session.outcome is None:
        replies.append(run_now(policy.respond(observation)))
        observation = run_now(session.reply(replies[-1])).observation
    return tuple(replies)


@lru_cache(maxsize=4)
def _openings(split: str) -> dict[str, str]:
    return {dict(get_scenario(i).items())["opening"].say: i for i in scenario_ids(split)}


def whose(opening: str) -> Scenario | None:
    """Return the shipped scenario that a first message opens; None for a person that no file knows."""
    for split in ("benchmark", "dev", "train"):
        found = _openings(split).get(opening)
        if found is not None:
            return get_scenario(found)
    return None


@lru_cache(maxsize=4)
def by_first_need(axis: Axis) -> tuple[str, ...]:
    """Return the ids of the benchmark's scenarios whose first need is on an axis."""
    return tuple(i for i in scenario_ids("benchmark") if get_scenario(i).needs[0].axis == axis)
