"""Run any judge over what people wrote and rated, and measure how far it agrees with them.

A judge comes by its registry name and sees what every judge sees, a `JudgeView`; people's talk has no scenario, so the
profile is made of the seeker's own words up to that moment (`embedded.opentalk`).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, cast

from echo_env import agreement as ag
from echo_env import agreement_sets as sets
from echo_env import humandata as files
from echo_env import humanrecords as data
from echo_env import registry
from echo_env.agents.embedded.opentalk import open_profile
from echo_env.agreement import Measure
from echo_env.errors import RecordError, redact
from echo_env.humanrecords import Part, Talk
from echo_env.roles import Exchange, Judge, JudgeView
from echo_env.types import Judgement, Record

CONCURRENT = 16
"""Conversations that are judged at once: a remote judge is waited for, an embedded one never waits."""
MOST_UNJUDGED = 0.10
"""Share of replies without a judgement above which the figures are not to be trusted."""

Tell = Callable[[int, int], None]
"""Called with (done, total) conversations."""
T = TypeVar("T")


class Validation(Record):
    """A judge's agreement with one data set."""

    dataset: str
    part: str
    split_seed: int
    judge: str
    """Id of the judge that judged."""
    licence: str
    where: str
    n: int
    """Replies that were judged or tried."""
    unjudged: int
    failures: tuple[str, ...] = ()
    """First reasons why replies went unjudged."""
    measures: dict[str, Measure]

    @property
    def trusted(self) -> bool:
        """Whether enough replies were judged."""
        return self.unjudged <= MOST_UNJUDGED * self.n


@dataclass(slots=True)
class _Bench:
    """A judge at work: makes a fresh one for each conversation, counts what fails."""

    make: Callable[[], Judge]
    tell: Tell
    judge: str
    n: int = 0
    unjudged: int = 0
    failures: tuple[str, ...] = ()

    def talks(self, talks: Sequence[Talk]) -> list[list[Judgement | None]]:
        """Judge every reply of every conversation."""
        return asyncio.run(self._all([(t.exchanges, 0, t.language) for t in talks]))

    def replies(self, cases: Sequence[tuple[tuple[Exchange, ...], Exchange]]) -> list[Judgement | None]:
        """Judge one reply each, after its history."""
        jobs = [((*history, exchange), len(history), "en") for history, exchange in cases]
        return [found[0] for found in asyncio.run(self._all(jobs))]

    async def _all(self, jobs: Sequence[tuple[tuple[Exchange, ...], int, str]]) -> list[list[Judgement | None]]:
        gate, done = asyncio.Semaphore(CONCURRENT), 0

        async def one(exchanges: tuple[Exchange, ...], start: int, language: str) -> list[Judgement | None]:
            nonlocal done
            async with gate:
                judge = self.make()
                found = [await self._judge(judge, exchanges, k, language) for k in range(start, len(exchanges))]
            done += 1
            self.tell(done, len(jobs))
            return found

        return await asyncio.gather(*(one(*job) for job in jobs))

    async def _judge(self, judge: Judge, exchanges: tuple[Exchange, ...], k: int, language: str) -> Judgement | None:
        history, exchange = exchanges[:k], exchanges[k]
        view = JudgeView(open_profile(history, exchange.user, language), history, exchange)
        self.n += 1
        try:
            found = await judge.judge(view)
            why = "the judge gave no judgement"
        except Exception as e:  # recorded as a missing judgement, like in a live turn
            found, why = None, redact(f"{type(e).__name__}: {e}")[:300]
        if found is None:
            self.unjudged += 1
            self.failures = (*self.failures, why)[:5]
        return found


def _judge_maker(name: str, as_is: bool = False) -> tuple[Callable[[], Judge], str]:
    """Return a maker of judges and the judge's id. A judge may name the form of itself that is meant for open talk."""
    make = cast("Callable[[], Judge]", registry.resolve("judge", name))
    form = None if as_is else getattr(make(), "open_talk", None)
    if isinstance(form, str):
        make = cast("Callable[[], Judge]", registry.resolve("judge", form))
    return make, make().id


def validate(
    dataset: str,
    path: Path,
    *,
    judge: str = "embedded",
    as_is: bool = False,
    part: Part = "working",
    limit: int | None = None,
    seed: int = 0,
    supervised: bool = False,
    tell: Tell = lambda done, total: None,
) -> Validation:
    """Judge a data set and measure the judge's agreement with the people behind it.

    Args:
        dataset: A name in `humandata.SOURCES`.
        path: Its file or folder.
        judge: Registered name or module:attribute.
        as_is: Take the judge itself, even where it names another form of itself for open talk.
        part: "working" to build with, "test" to read once, "all".
        limit: So many conversations, posts or pairs, drawn by the seed.
        seed: Seed of the draw and of the bootstrap.
        supervised: Fit a TF-IDF model to the labels too, cross-validated, as a yardstick (needs scikit-learn).
        tell: Told of progress.

    Raises:
        ConfigError: The data set or the judge is unknown.
        RecordError: The files do not hold what they must.
        MissingExtra: `supervised` without scikit-learn.
    """
    found = data.source(dataset)
    make, name = _judge_maker(judge, as_is)
    bench = _Bench(make, tell, name)
    measures = _MEASURES[dataset](_Job(path, part, limit, seed, supervised), bench)
    return Validation(
        dataset=dataset, part=part, split_seed=data.SPLIT_SEED, judge=name, licence=found.licence, where=found.where,
        n=bench.n, unjudged=bench.unjudged, failures=bench.failures, measures=measures,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Job:
    """What to read and how much of it."""

    path: Path
    part: Part
    limit: int | None
    seed: int
    supervised: bool

    def some(self, items: Sequence[T], key: Callable[[T], str]) -> list[T]:
        """Return the part's items, or so many of them."""
        chosen = data.in_part(items, key, self.part)
        if self.limit is not None and self.limit < len(chosen):
            chosen = random.Random(self.seed).sample(chosen, self.limit)
        if not chosen:
            raise RecordError(f"{self.path}: the part '{self.part}' of it is empty", "take --part all")
        return chosen


def _levels(job: _Job, bench: _Bench) -> dict[str, Measure]:
    judged: dict[str, tuple[Sequence[data.Labelled], sets.Judgements]] = {}
    measures: dict[str, Measure] = {}
    for mechanism, rows in files.load_levels(job.path).items():
        chosen = job.some(rows, lambda row: row.post)
        found = bench.replies([((), Exchange(row.post, row.reply)) for row in chosen])
        judged[mechanism] = (chosen, found)
        mine = sets.levels_agreement(mechanism, chosen, found, job.seed)
        if job.supervised:
            for kind, value in sets.tfidf_levels(chosen, job.seed).items():
                key = f"{mechanism}.{kind}"
                mine[key] = _beside(mine[key], value)
        measures |= mine
    return measures | sets.pooled_evidence(judged, job.seed)


def _ratings(job: _Job, bench: _Bench) -> dict[str, Measure]:
    talks = job.some(files.load_esconv(job.path), data.talk_key)
    return sets.rating_agreement(talks, bench.talks(talks), job.seed)


def _failed(job: _Job, bench: _Bench) -> dict[str, Measure]:
    talks = [_begun(t) for t in job.some(files.load_failed(job.path), data.talk_key)]
    return sets.failure_agreement(talks, bench.talks(talks), job.seed, job.supervised)


def _beside(measure: Measure, supervised: float | None) -> Measure:
    """Return a measure with a supervised model's figure among its baselines."""
    return measure.model_copy(update={"baselines": {**measure.baselines, "supervised TF-IDF": supervised}})


def _begun(talk: Talk) -> Talk:
    """Return the beginning of a conversation: the supporter's first normalised tokens, and what they answer."""
    replies = ag.first_tokens([e.reply for e in talk.exchanges], sets.FIRST_TOKENS)
    users = [" ".join(ag.normalised(e.user)) for e in talk.exchanges]
    return Talk(talk.id, tuple(map(Exchange, users, replies)), failed=talk.failed, language=talk.language)


def _pairs(job: _Job, bench: _Bench) -> dict[str, Measure]:
    return _preferences(files.load_pairs(job.path), job, bench)


def _muffin(job: _Job, bench: _Bench) -> dict[str, Measure]:
    return _preferences(files.load_muffin(job.path), job, bench)


def _preferences(pairs: list[data.Pair], job: _Job, bench: _Bench) -> dict[str, Measure]:
    chosen = job.some(pairs, lambda p: f"{p.history} {p.user}")  # changing the key would draw the parts anew
    cases = [(p.history, Exchange(p.user, reply)) for p in chosen for reply in p.replies]
    found = bench.replies(cases)
    return sets.pair_agreement(chosen, list(zip(found[::2], found[1::2], strict=True)), job.seed)


def _sage(job: _Job, bench: _Bench) -> dict[str, Measure]:
    talks = job.some(files.load_sage(job.path), data.talk_key)
    return sets.sage_agreement(talks, bench.talks(talks), job.seed)


_MEASURES: dict[str, Callable[[_Job, _Bench], dict[str, Measure]]] = {
    "epitome": _levels,
    "esconv": _ratings,
    "failed": _failed,
    "muffin": _muffin,
    "pairs": _pairs,
    "sage": _sage,
}
