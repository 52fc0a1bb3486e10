"""What `headline.py` measures, and what is asked of it. Everything is taken from recorded episodes and metrics.

A figure that could not be taken is None and leaves its bar open; it is never a zero.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from headline_curve import Point
from pydantic import Field

from echo_env.agents.detectors import detect, exchanges
from echo_env.cases import episode_case, word_count
from echo_env.errors import RecordError
from echo_env.metrics import EpisodeScore, summarise
from echo_env.record import find_runs
from echo_env.scorers import get_scorer
from echo_env.significance import bootstrap_means, sign_flip_test
from echo_env.types import Episode, Record

DRAWS = 10_000
"""Bootstrap samples."""
LISTENERS = ("skilled", "orderly")
"""Reference policies that listen: together they are held to the bar on `skilled`."""
LARGEST_SKILLED, LARGEST_COLD, SMALLEST_TRAINED = 0.2, 0.10, 0.467
LONGEST, FACTOR, MINUTES = 1.5, 2.0, 60
"""Of issue 5: reply length and EPM-Q against the cold start, minutes a seed."""


class Figure(Record):
    """A mean with its 95 % bootstrap interval over scenarios."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def sure(self) -> bool:
        """Whether it is above zero, interval and all."""
        return self.low is not None and self.low > 0


class Judged(Record):
    """What one judge, under the strict scorer, makes of a policy's episodes."""

    scored: int
    unscored: int
    """Too many turns without a judgement; in no mean."""
    success: Figure | None
    """Share of the scored episodes, 0..1."""
    epm_q: Figure | None


class Paired(Record):
    """One policy minus another, paired by scenario."""

    scenarios: int
    success: Figure
    success_p: float
    """Two-sided sign-flip test."""
    epm_q: Figure
    epm_q_p: float


class Policy(Record):
    """A policy on the benchmark."""

    episodes: int
    unfinished: int
    """Episodes that could not be played to their end; in no mean."""
    turns: float | None
    words: float | None
    """Mean of a reply."""
    tokens: float | None
    """The same, end token not counted; None without a tokenizer."""
    first: Judged
    second: Judged | None = None
    """The same words before the second judge, which trained nothing."""
    swapped: Judged | None = None
    """Where the policy heard another person's messages."""
    flags: tuple[str, ...] = ()
    """Detectors that found an attack's sign."""
    detectors: dict[str, float | None] = Field(default_factory=dict)


class Bar(Record):
    """One thing that is asked."""

    asked: str
    found: str
    met: bool | None
    """None: not measured."""


# ---- reading -------------------------------------------------------------------------------------------------------


def episodes_in(folder: Path) -> list[Episode]:
    """Return all recorded episodes of a folder of runs; none where there is no run."""
    try:
        return [e for run in find_runs(folder) for e in run.episodes()] if folder.is_dir() else []
    except RecordError:
        return []


def scores_of(episodes: Iterable[Episode]) -> list[EpisodeScore]:
    """Score finished episodes by the strict rules."""
    found = (episode_case("policy", e, get_scorer("strict"), "epm").score for e in episodes)
    return [score for score in found if score is not None]


def judged(scores: Sequence[EpisodeScore]) -> Judged | None:
    """Sum episodes up; None without any."""
    if not scores:
        return None
    whole = summarise(scores, draws=DRAWS)

    def figure(name: str, value: float | None) -> Figure | None:
        if value is None:
            return None
        around = whole.intervals.get(name)
        return Figure(value=value, low=around and around.low, high=around and around.high)

    epm_q = whole.composite.epm_q if whole.composite else None
    return Judged(
        scored=whole.scored, unscored=whole.unscored,
        success=figure("success_rate", whole.success_rate), epm_q=figure("epm_q", epm_q),
    )  # fmt: skip


def measured(
    played: Sequence[Episode],
    second: Sequence[Episode] = (),
    swapped: Sequence[Episode] = (),
    tokenizer: Path | None = None,
) -> Policy | None:
    """Measure a policy; None where no episode of it came to its end.

    Args:
        played: Its episodes.
        second: The same before the second judge.
        swapped: Those where it heard somebody else.
        tokenizer: `tokenizer.json` of its model.
    """
    first = judged(scores_of(played))
    if first is None:
        return None
    whole = [e for e in played if e.outcome is not None]
    replies = [turn.reply for e in whole for turn in e.turns]
    habits = detect([exchanges(e) for e in whole], whole[0].header.language)
    return Policy(
        episodes=len(played), unfinished=len(played) - len(whole),
        turns=fmean(len(e.turns) for e in whole),
        words=fmean(map(word_count, replies)) if replies else None,
        tokens=tokens_of(replies, tokenizer),
        first=first, second=judged(scores_of(second)), swapped=judged(scores_of(swapped)),
        flags=habits.flags, detectors=habits.scores,
    )  # fmt: skip


def tokens_of(replies: Sequence[str], tokenizer: Path | None) -> float | None:
    """Return the mean length of replies in tokens."""
    if tokenizer is None or not tokenizer.is_file() or not replies:
        return None
    from tokenizers import Tokenizer

    coder = Tokenizer.from_file(str(tokenizer))
    return fmean(len(e.ids) for e in coder.encode_batch(list(replies), add_special_tokens=False))


def paired(a: Sequence[EpisodeScore], b: Sequence[EpisodeScore]) -> Paired | None:
    """Compare two policies on the scenarios that both were scored on; None where there are not two of them.

    Several episodes of a scenario, and several seeds, count as their mean.
    """
    means = [_by_scenario(scores) for scores in (a, b)]
    shared = sorted(means[0].keys() & means[1].keys())
    if len(shared) < 2:
        return None
    gaps = np.array([means[0][name] - means[1][name] for name in shared])
    around = bootstrap_means(gaps, np.ones(len(shared)), draws=DRAWS, level=0.95, seed=0)
    success, epm_q = (Figure(value=float(gaps[:, k].mean()), low=around[k].low, high=around[k].high) for k in range(2))
    return Paired(
        scenarios=len(shared), success=success, success_p=sign_flip_test(gaps[:, 0]),
        epm_q=epm_q, epm_q_p=sign_flip_test(gaps[:, 1]),
    )  # fmt: skip


def _by_scenario(scores: Sequence[EpisodeScore]) -> dict[str, Any]:
    found: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    for score in scores:
        if score.composite is not None:
            found[score.scenario].append((float(score.success), score.composite.epm_q))
    return {name: np.mean(rows, axis=0) for name, rows in found.items()}


def shares(conversations: Path) -> dict[str, float]:
    """Return each companion's share of all replies in a file of conversations, the largest first."""
    replies: defaultdict[str, int] = defaultdict(int)
    with conversations.open(encoding="utf-8") as lines:
        for line in lines:
            talk = json.loads(line)
            own = talk["meta"]["models"]["companion"].split("-")[0].split("+")[0]
            replies[own] += sum(message["role"] == "assistant" for message in talk["messages"])
    return {name: n / sum(replies.values()) for name, n in sorted(replies.items(), key=lambda kv: -kv[1])}


def listening(mix: Mapping[str, float]) -> float:
    """Return the share of the replies that come from `LISTENERS`."""
    return sum(mix.get(name, 0.0) for name in LISTENERS)


# ---- training ------------------------------------------------------------------------------------------------------


def logged(run: Path) -> list[dict[str, Any]]:
    """Return the figures of a training run's updates; a line that is being written is left out."""
    file = run / "metrics.jsonl"
    lines = file.read_text(encoding="utf-8").split("\n")[:-1] if file.is_file() else []
    return [json.loads(line) for line in lines]


def curve(updates: Iterable[Mapping[str, Any]]) -> list[Point]:
    """Return a run's learning curve."""
    return [
        Point(
            u["update"], u["elapsed_s"] / 60, u["success"], u["score"], u["length_mean"], u.get("eval_success")
        )
        for u in updates
    ]  # fmt: skip


class Budget(Record):
    """What a DAPO run used, and how best-of-N spends the same."""

    steps: int
    """Environment turns of a DAPO run, mean over seeds."""
    seconds: float
    """Wall-clock of a DAPO run, mean over seeds."""
    people: int
    """Scenarios that the cold start talks with."""
    episodes: int
    """Conversations with each: the N of best-of-N."""


def budget(runs: Sequence[Sequence[Mapping[str, Any]]], people: int, least: int) -> Budget | None:
    """Return how many conversations of the cold start make as many environment turns as DAPO; None without a run.

    Rounded up, so that the baseline never gets less. The length of its conversations is that of DAPO's first update.

    Args:
        runs: Logged updates of each seed.
        people: Scenarios of the train split.
        least: Smallest N; where there are too few turns for it, fewer people are talked with.
    """
    runs = [run for run in runs if run]
    opening = [run[0]["turns"] for run in runs if run[0]["turns"]]
    if not opening:
        return None
    steps = fmean(sum(u["conversations"] * (1 - u["failed"]) * (u["turns"] or 0) for u in run) for run in runs)
    talks = steps / fmean(opening)
    number = max(least, math.ceil(talks / people))
    return Budget(
        steps=round(steps), seconds=fmean(run[-1]["elapsed_s"] for run in runs),
        people=min(people, max(1, math.ceil(talks / number))), episodes=number,
    )  # fmt: skip


# ---- the bars ------------------------------------------------------------------------------------------------------


def ratio(value: float | None, of: float | None) -> float | None:
    """Return a quotient; None where a part is missing or would divide by zero."""
    return value / of if value is not None and of else None


class Results(Record):
    """What the bars look at; None or empty where it is missing."""

    skilled: float | None = None
    """Share of the cold start's replies that are the listening companions'."""
    minutes: dict[str, float] = Field(default_factory=dict)
    """Of each DAPO run."""
    cold: Policy | None = None
    seeds: dict[str, Policy] = Field(default_factory=dict)
    """Each DAPO run's last checkpoint."""
    pooled: Policy | None = None
    """All seeds' episodes together."""
    best: Policy | None = None
    gain: Paired | None = None
    """DAPO minus the cold start."""
    gain_second: Paired | None = None
    """The same by the second judge."""
    over_best: Paired | None = None
    over_best_second: Paired | None = None


def bars(found: Results, seeds: int) -> list[Bar]:
    """Hold results against issue 5's first bar, part by part.

    Args:
        found: What was measured.
        seeds: How many seeds were asked for: a bar on all of them stays open while one is missing.
    """
    cold, pooled = found.cold, found.pooled
    runs = list(found.seeds.values())
    whole = len(runs) >= seeds
    success, epm_q, before = _value(pooled, "success"), _value(pooled, "epm_q"), _value(cold, "epm_q")
    longest = [r for p in runs for r in _lengths(p, cold)]
    flags = sorted({flag for p in runs for flag in p.flags})
    minutes = list(found.minutes.values())
    told = ", ".join(_percent(p.first.success) for p in runs)
    return [
        _bar("at most 20 % of the cold start's replies are skilled's or orderly's", _share(found.skilled),
             found.skilled is not None, (found.skilled or 0) <= LARGEST_SKILLED),
        _bar("cold start: strict success at most 10 %", _percent(cold and cold.first.success),
             _value(cold, "success") is not None, (_value(cold, "success") or 0) <= LARGEST_COLD),
        _bar("at most 60 minutes a seed", ", ".join(f"{m:.1f}" for m in minutes),
             len(minutes) >= seeds, max(minutes, default=0) <= MINUTES + 0.05),
        _bar("DAPO: strict success at least 46.7 %, mean over seeds",
             f"{_percent(pooled and pooled.first.success)} (seeds: {told})" if runs else "",
             whole and success is not None, (success or 0) >= SMALLEST_TRAINED),
        _bar("EPM-Q (strict) at least doubles",
             "" if epm_q is None or before is None else f"{before:.1f} to {epm_q:.1f}",
             whole and epm_q is not None and before is not None,
             (epm_q or 0) > 0 and (epm_q or 0) >= FACTOR * (before or 0)),
        _bar("reply length within 1.5 x the cold start's, every seed, in words and tokens",
             "" if not longest else f"x {min(longest):.2f} to x {max(longest):.2f}",
             whole and bool(longest), max(longest, default=0) <= LONGEST),
        _bar("the attack suite's detectors are quiet, every seed", ", ".join(flags) or ("quiet" if runs else ""),
             whole and bool(runs), not flags),
        _bar("the second judge sees the gain: success and EPM-Q, intervals above 0", _pair(found.gain_second),
             whole and found.gain_second is not None, _both(found.gain_second)),
        _bar("more than best-of-N: success and EPM-Q, paired intervals above 0", _pair(found.over_best),
             whole and found.over_best is not None, _both(found.over_best)),
        _halved(cold, pooled, whole),
    ]  # fmt: skip


def _halved(cold: Policy | None, pooled: Policy | None, whole: bool) -> Bar:
    """Under swapped messages, at most half of the gain over the cold start (which hears them too) is left."""
    kept: dict[str, float | None] = {}
    gained = True
    for name in ("success", "epm_q"):
        trained, before, swapped, swapped_before = (
            _value(p, name, by) for by in ("first", "swapped") for p in (pooled, cold)
        )
        if trained is None or before is None or swapped is None or swapped_before is None:
            kept[name] = None
            continue
        gain = trained - before
        gained &= gain > 0
        kept[name] = (swapped - swapped_before) / gain if gain > 0 else 1.0
    known = all(v is not None for v in kept.values())
    left = f"left: {_share(kept['success'])} of success, {_share(kept['epm_q'])} of EPM-Q" if known else ""
    return _bar(
        "with the messages of somebody else, at most half of the gain is left",
        left if gained else "there is no gain",
        whole and known, gained and all((v or 0) <= 0.5 for v in kept.values()),
    )  # fmt: skip


def _bar(asked: str, found: str, known: bool, met: bool) -> Bar:
    return Bar(asked=asked, found=found or "-", met=met if known else None)


def _value(policy: Policy | None, name: str, by: str = "first") -> float | None:
    judgement: Judged | None = getattr(policy, by) if policy else None
    figure: Figure | None = getattr(judgement, name) if judgement else None
    return figure.value if figure else None


def _lengths(policy: Policy, cold: Policy | None) -> list[float]:
    both = [ratio(policy.words, cold.words), ratio(policy.tokens, cold.tokens)] if cold else []
    return [r for r in both if r is not None]


def _both(pair: Paired | None) -> bool:
    return pair is not None and pair.success.sure and pair.epm_q.sure


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def _percent(figure: Figure | None) -> str:
    return "" if figure is None else f"{figure.value:.1%}"


def _pair(pair: Paired | None) -> str:
    if pair is None:
        return ""
    s, q = pair.success, pair.epm_q
    return (
        f"success {100 * s.value:+.1f} points [{100 * (s.low or 0):+.1f}, {100 * (s.high or 0):+.1f}],"
        f" EPM-Q {q.value:+.1f} [{q.low or 0:+.1f}, {q.high or 0:+.1f}]"
    )
