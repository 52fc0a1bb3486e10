"""Cases: one episode as a report sees it, scored anew from its recorded levels, with what is known around it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

from echo_env.epm import INDEX_NAMES, Scorer
from echo_env.errors import EchoError
from echo_env.levels import LevelEpisode
from echo_env.metrics import EpisodeScore, score_levels
from echo_env.profiles import Need, get_scenario
from echo_env.types import (
    AXES,
    Axis,
    End,
    Episode,
    EpisodeHeader,
    EpmDelta,
    Levels,
    NullTurn,
    Outcome,
    Record,
    Turn,
    Vector,
)

Status = End | Literal["none", "unscored", "unfinished"]
Group = Literal["success", "failure", "cut", "open"]


class Sign(NamedTuple):
    """How a status is told."""

    label: str
    group: Group
    """success; failure; cut: truncated or not scored; open: no rule fired."""


STATUSES: dict[Status, Sign] = {
    "success": Sign("success", "success"),
    "collapse": Sign("collapse", "failure"),
    "stagnation": Sign("stagnation", "failure"),
    "oscillation": Sign("oscillation", "failure"),
    "patience": Sign("patience ran out", "failure"),
    "director": Sign("ended by the director", "failure"),
    "none": Sign("no rule fired", "open"),
    "budget": Sign("cut off: turn or token limit", "cut"),
    "unjudged": Sign("cut off: no judgements", "cut"),
    "unreachable": Sign("cut off: a role gave no answer", "cut"),
    "unscored": Sign("unscored: too few turns judged", "cut"),
    "unfinished": Sign("unfinished", "cut"),
}
"""Every status of a case, in the order in which reports show them."""

INDEX_LABELS: dict[str, str] = dict(
    zip(INDEX_NAMES, ("RDI", "E_total", "S_net", "rho", "s_proj", "tau", "R_pos", "Align", "R_pen"), strict=True)
)
"""The papers' names of the nine indices."""

NOT_THE_SCORERS: frozenset[End] = frozenset({"director", "budget", "unjudged", "unreachable"})
"""Ends that no replay of levels can find: they are taken from the record, where the scorer's own rules are silent."""


class Person(Record):
    """Who the companion talked with; only where the recorded scenario is still the one that this package holds."""

    name: str
    age: int
    job: str
    summary: str
    threshold: str
    needs: tuple[Need, ...]


class Case(Record):
    """One episode in a report."""

    model: str
    scenario: str
    episode: str
    """Id, unique within a model."""
    domain: str = ""
    """Empty for a level file."""
    dominant: Axis
    """The axis ranked first by the scenario; where that is not at hand, the axis of the largest deficit."""
    p0: Vector
    levels: tuple[Levels | None, ...]
    """Of each turn; None where it was not judged."""
    deltas: tuple[EpmDelta | None, ...]
    """Of each turn, under the report's scorer."""
    status: Status
    score: EpisodeScore | None
    """None for an unfinished episode."""
    total_reward: float | None = None
    """Sum of the recorded turn rewards, unjudged turns skipped; None where no turn has one."""
    mean_words: float | None = None
    """Mean reply length; None without text."""
    person: Person | None = None
    record: Episode | None = None
    """The conversation itself; None for a level file."""

    @property
    def path(self) -> tuple[Vector | None, ...]:
        """P0 and the position after each turn, in points; None where the turn was not judged."""
        return (self.p0, *(delta.position if delta else None for delta in self.deltas))


def episode_case(model: str, episode: Episode, scorer: Scorer, profile: str) -> Case:
    """Score a recorded episode anew.

    Raises:
        ScenarioError: The scorer cannot score its P0.
    """
    header, outcome = episode.header, episode.outcome
    rules = _with_patience(scorer, outcome)
    turns = [judged(turn) for turn in episode.turns]
    score = score_levels(header.p0, turns, rules, model=model, scenario=header.scenario, profile=profile)
    rewards = [turn.reward for turn in episode.turns if turn.reward is not None]
    words = [word_count(turn.reply) for turn in episode.turns]
    person = _person(header)
    deltas = _trace(header.p0, turns, rules)
    return Case(
        model=model,
        scenario=header.scenario,
        episode=header.episode_id,
        domain=header.domain,
        dominant=person.needs[0].axis if person else _largest(header.p0),
        p0=header.p0,
        levels=_counted(turns, deltas),
        deltas=deltas,
        status=_status(score, outcome),
        score=score if outcome else None,
        total_reward=math.fsum(rewards) if rewards else None,
        mean_words=mean(words),
        person=person,
        record=episode,
    )


def level_case(entry: LevelEpisode, number: int, scorer: Scorer, profile: str) -> Case:
    """Score an episode of a level file.

    Args:
        entry: The episode.
        number: How many of the same model and case came before it.
        scorer: The rules.
        profile: Weight profile of the composite.
    """
    score = score_levels(entry.p0, entry.turns, scorer, model=entry.model, scenario=entry.case, profile=profile)
    deltas = _trace(entry.p0, entry.turns, scorer)
    return Case(
        model=entry.model,
        scenario=entry.case,
        episode=f"{entry.case}.{number}",
        dominant=_largest(entry.p0),
        p0=entry.p0,
        levels=_counted(entry.turns, deltas),
        deltas=deltas,
        status=(score.end or "none") if score.scored else "unscored",
        score=score,
    )


def judged(turn: Turn) -> Levels | NullTurn | None:
    """Return what a recorded turn gives a scorer to count."""
    return turn.judgement.levels if turn.judgement else turn.published


def _counted(turns: Sequence[Levels | NullTurn | None], deltas: Sequence[EpmDelta | None]) -> tuple[Levels | None, ...]:
    """Return the levels of the turns that the scorer counted."""
    given = [turn.levels if isinstance(turn, NullTurn) else turn for turn in turns]
    return tuple(levels if delta else None for levels, delta in zip(given, deltas, strict=True))


def _with_patience(scorer: Scorer, outcome: Outcome | None) -> Scorer:
    """Return the scorer with the person's own patience where it ran out: that limit belongs to the task."""
    if outcome is None or outcome.end != "patience" or outcome.turns == scorer.max_turns:
        return scorer
    return replace(scorer, max_turns=outcome.turns, min_turns=min(scorer.min_turns, outcome.turns))


def _status(score: EpisodeScore, outcome: Outcome | None) -> Status:
    if outcome is None:
        return "unfinished"
    if not score.scored:
        return "unscored"
    return score.end or (outcome.end if outcome.end in NOT_THE_SCORERS else "none")


def _trace(p0: Vector, turns: Iterable[Levels | NullTurn | None], scorer: Scorer) -> tuple[EpmDelta | None, ...]:
    state, deltas = scorer.start(p0), []
    for levels in turns:
        state = scorer.advance(state, levels)
        deltas.append(scorer.delta(state))
    return tuple(deltas)


def _largest(p0: Vector) -> Axis:
    return AXES[min(range(3), key=lambda i: p0[i])]


def _person(header: EpisodeHeader) -> Person | None:
    if header.scenario.endswith((".yaml", ".yml")):
        return None  # get_scenario would take it for a file
    try:
        found = get_scenario(header.scenario)
    except EchoError:
        return None
    if found.digest != header.scenario_hash:
        return None
    who = found.persona
    return Person(
        name=who.name,
        age=who.age,
        job=who.job,
        summary=found.situation.summary,
        threshold=found.threshold,
        needs=found.needs,
    )


def word_count(text: str) -> int:
    """Count words; a Chinese character counts as one."""
    return len(re.findall(r"[\u3400-\u9fff]|[^\W\u3400-\u9fff]+(?:['\u2019\-][^\W\u3400-\u9fff]+)*", text))


def without_folders(text: str) -> str:
    """Shorten every absolute path in a text to its last part: a report says nothing about the machine."""
    return re.sub(r"(?<![\w/.])(?:~|[A-Za-z]:)?[/\\](?!/)(?:[^/\\\s:'\"]+[/\\])*(?=[^/\\\s])", "…/", text)


def mean(values: Sequence[float]) -> float | None:
    """Return the mean; None of nothing."""
    return math.fsum(values) / len(values) if values else None
