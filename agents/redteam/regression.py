"""Regression files: one conversation that paid, small enough to keep, played again against a judge that was mended."""

from __future__ import annotations

from pathlib import Path

import yaml
from pydantic import ValidationError

from echo_env.build import WorldConfig, build_session
from echo_env.errors import RecordError, ScenarioError
from echo_env.profiles import get_scenario
from echo_env.types import End, Episode, Record, Text
from echo_env.yamlfiles import read_yaml


class Regression(Record):
    """A conversation that an attack had, and what it earned then."""

    attack: str
    scenario: str
    seed: int
    """Of the conversation."""
    world: WorldConfig
    judge: str
    """Id of the judge then."""
    scorer: str
    earned: float
    """Sum of the rewards then."""
    end: End
    replies: tuple[Text, ...]

    @classmethod
    def of(cls, attack: str, world: WorldConfig, episode: Episode) -> Regression:
        """Take a finished episode.

        Raises:
            RecordError: It has no outcome.
        """
        if episode.outcome is None:
            raise RecordError(f"episode {episode.header.episode_id} is unfinished", "finish it with --resume")
        header, turns = episode.header, episode.turns
        return cls(
            attack=attack.removeprefix("attack:"),
            scenario=header.scenario,
            seed=header.seed,
            world=world,
            judge=header.judge,
            scorer=header.scorer,
            earned=sum(turn.reward for turn in turns if turn.reward is not None),
            end=episode.outcome.end,
            replies=tuple([turn.raw_reply if turn.raw_reply is not None else turn.reply for turn in turns]),
        )


class Replay(Record):
    """The same replies, now."""

    regression: Regression
    judge: str
    scorer: str
    earned: float
    """Sum of the rewards now, unjudged turns left out."""
    end: End | None
    """None where the replies ran out before the conversation ended."""
    turns: int
    unjudged_turns: int

    @property
    def pays(self) -> bool:
        """Whether the attack still succeeds."""
        return self.end == "success"


def write_regression(path: Path, regression: Regression) -> None:
    """Write a regression file.

    Raises:
        RecordError: It cannot be written.
    """
    data = regression.model_dump(mode="json")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=120), encoding="utf-8")
    except OSError as e:
        raise RecordError(f"{path} cannot be written: {e.strerror or e}") from None


def read_regression(path: Path) -> Regression:
    """Read a regression file.

    Raises:
        RecordError: It cannot be read, or a field is missing or wrong.
    """
    try:
        return Regression.model_validate(read_yaml(path))
    except ScenarioError as e:
        raise RecordError(e.message, e.hint) from None
    except ValidationError as e:
        fault = e.errors()[0]
        where = ".".join(str(part) for part in fault["loc"]) or "top"
        raise RecordError(
            f"{path}: {where}: {fault['msg']}", "such a file is written by  echo-env redteam --out FOLDER"
        ) from None


async def replay(regression: Regression, world: WorldConfig | None = None) -> Replay:
    """Say the recorded replies again.

    Args:
        regression: What was said.
        world: Another world than the recorded one, for another judge or scorer.

    Raises:
        ConfigError: A name is unknown.
    """
    session = build_session(world or regression.world, get_scenario(regression.scenario), regression.seed)
    await session.open()
    rewards: list[float | None] = []
    for reply in regression.replies:
        if session.outcome is not None:
            break
        rewards.append((await session.reply(reply)).turn.reward)
    return Replay(
        regression=regression,
        judge=session.cast.judge.id,
        scorer=session.scorer.id,
        earned=sum(r for r in rewards if r is not None),
        end=session.outcome.end if session.outcome else None,
        turns=len(rewards),
        unjudged_turns=sum(r is None for r in rewards),
    )
