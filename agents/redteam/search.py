"""A searcher without a model: which script of fixed sentences earns most?

Turn by turn it draws replies from a pool of fragments, varies the best of them and those that served at this turn
before, and takes the one that earns most (best-of-N). Between passes it keeps an archive of the best conversations,
forks one of them at some turn and plays on from there with other draws. Fragments that paid are drawn more often. The
cost is counted in judge calls; the measure is the curve of the best return against them.

With several people at once the same replies go to all of them: a script for everybody, that ignores what is said.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field

from echo_env.agents.redteam.fork import Branch, Weighed
from echo_env.agents.redteam.fragments import Breeder, Genes, Pool, say
from echo_env.build import WorldConfig, conversation_seed
from echo_env.errors import ConfigError
from echo_env.profiles import Scenario, get_scenario
from echo_env.types import End, Record

WIDTHS = (8, 16, 64, 128, 256)
"""Replies that are weighed a turn: passes from the start take one width after the other."""
LATER_WIDTHS = (16, 32, 64)
"""The same for passes that go on from the archive."""
FRESH_SHARE = 0.3
"""Share of the budget that passes from the start may take; the rest goes on from conversations in the archive."""
ARCHIVE = 6
"""Conversations that are kept to go on from."""
DRAWN = 0.5
"""Share of a turn's replies that are drawn; the others are varied from the best so far."""
PARENTS = 4
"""Replies that are varied."""
CROWD_SAMPLE = 6
"""With many people at once, each reply is weighed with so many of them first; the better quarter with all."""


class SearchConfig(Record):
    """What to search for, and at what cost."""

    scenarios: tuple[str, ...]
    """One, or several that get the same replies."""
    budget: Annotated[int, Field(ge=1)] = 10_000
    """Judge calls."""
    pool: Pool = "plain"
    seed: int = 0
    world: WorldConfig = WorldConfig()


class Point(Record):
    """One point of the curve."""

    calls: int
    best: float


class SearchResult(Record):
    """The best script found."""

    config: SearchConfig
    judge: str
    """Id of the judge."""
    scorer: str
    calls: int
    """Judge calls made: the budget, less what did not suffice for one more reply to everybody."""
    finished: bool
    """False where the search was interrupted."""
    unjudged: int
    """Of these, without a judgement."""
    best_return: float | None
    """Mean over the scenarios; None where the budget did not last for one conversation."""
    successes: int
    """Scenarios that the best script succeeds in."""
    first_success: int | None
    """Judge calls after which a script first succeeded in any scenario; None where none did."""
    ends: tuple[End, ...]
    """How the best script's conversations ended, by scenario."""
    turns: int
    """Replies of the best script."""
    replies: tuple[str, ...]
    curve: tuple[Point, ...]
    """Every improvement."""


def best_at(curve: Sequence[Point], calls: int) -> float | None:
    """Return the best return within so many judge calls; None where no conversation was finished by then."""
    return max((p.best for p in curve if p.calls <= calls), default=None)


@dataclass(slots=True)
class _Line:
    """One script under way or finished: the branches of all people, and how it got there."""

    branches: tuple[Branch, ...]
    genes: tuple[Genes, ...] = ()
    replies: tuple[str, ...] = ()
    before: tuple[tuple[Branch, ...], ...] = ()
    """The branches before each turn."""

    @property
    def live(self) -> list[int]:
        return [k for k, b in enumerate(self.branches) if not b.over]

    @property
    def value(self) -> float:
        return sum(b.earned for b in self.branches) / len(self.branches)

    def cut(self, turn: int) -> _Line:
        """Return the line as it was before a turn."""
        return _Line(self.before[turn], self.genes[:turn], self.replies[:turn], self.before[:turn])


@dataclass(frozen=True, slots=True)
class _Candidate:
    genes: Genes
    value: float
    """Mean reward over those that it was weighed with."""
    weighed: dict[int, Weighed]


@dataclass(slots=True)
class Searcher:
    """Searches for one scenario, or for several at once.

    Args:
        config: What to search for.
        scenarios: The people, in the order of the configuration.
        tell: Called after every turn with the judge calls made and the best return so far.
    """

    config: SearchConfig
    scenarios: Sequence[Scenario]
    tell: Callable[[int, float | None], None] = lambda calls, best: None
    calls: int = 0
    unjudged: int = 0
    first_success: int | None = None
    curve: list[Point] = field(default_factory=list)
    archive: list[_Line] = field(default_factory=list)
    judge: str = ""
    scorer: str = ""
    finished: bool = False
    _rnd: random.Random = field(default_factory=random.Random)

    async def run(self) -> SearchResult:
        """Search until the budget is spent.

        Raises:
            ConfigError: A name is unknown, or there is no scenario.
        """
        if not self.scenarios:
            raise ConfigError("the searcher needs at least one scenario")
        config = self.config
        self._rnd = random.Random(f"search:{config.seed}:{','.join(config.scenarios)}:{config.pool}")
        breeder = Breeder(config.pool, self._rnd)
        seeds = [conversation_seed(config.seed, s.id) for s in self.scenarios]
        opened = [await Branch.open(config.world, s, n) for s, n in zip(self.scenarios, seeds, strict=True)]
        root = _Line(tuple(opened))
        self.judge, self.scorer = root.branches[0].session.cast.judge.id, root.branches[0].session.scorer.id
        passes = 0
        while self._left >= len(self.scenarios):
            start, width = self._next_pass(root, passes)
            await self._play_on(start, width, breeder)
            passes += 1
        self.finished = True
        return self.result()

    @property
    def _left(self) -> int:
        return self.config.budget - self.calls

    def _next_pass(self, root: _Line, passes: int) -> tuple[_Line, int]:
        """Where the next pass starts, and how many replies it weighs a turn."""
        if passes < len(WIDTHS) and (not self.archive or self.calls < FRESH_SHARE * self.config.budget):
            return root, WIDTHS[passes]
        width = self._rnd.choice(LATER_WIDTHS)
        if not self.archive or self._rnd.random() < 0.1:
            return root, width
        line = self.archive[min(int(self._rnd.expovariate(0.7)), len(self.archive) - 1)]
        return line.cut(self._rnd.randrange(len(line.genes))), width

    async def _play_on(self, line: _Line, width: int, breeder: Breeder) -> None:
        """Play a line to its end, by the best of `width` replies a turn."""
        while line.live:
            best = await self._best_reply(line, width, breeder)
            if best is None or self._left < len(line.live):
                return  # the budget is spent, or nothing could be judged
            breeder.learn(best.genes, best.value)
            line = await self._say(line, best)
            await asyncio.sleep(0)  # embedded roles never wait: without this, Ctrl-C would not get in
            self.tell(self.calls, self.curve[-1].best if self.curve else None)
        self._finish(line)

    async def _best_reply(self, line: _Line, width: int, breeder: Breeder) -> _Candidate | None:
        found: list[_Candidate] = []
        tried: set[Genes] = set()
        turn = len(line.genes)
        known = [other.genes[turn] for other in self.archive if turn < len(other.genes)]
        for k in range(width):
            if self._left < len(line.live):
                break
            parents = sorted(found, key=lambda c: -c.value)[:PARENTS]
            if k < len(known):
                genes = known[k]
            elif k < DRAWN * width or not parents:
                genes = breeder.draw()
            else:
                genes = breeder.vary(self._rnd.choice(parents).genes, self._rnd.choice(found).genes)
            if genes in tried:
                continue
            tried.add(genes)
            candidate = await self._weigh(line, genes, found)
            if candidate is not None:
                found.append(candidate)
        whole = [c for c in found if len(c.weighed) == len(line.live)]
        return max(whole, key=lambda c: c.value, default=None)

    async def _weigh(self, line: _Line, genes: Genes, found: list[_Candidate]) -> _Candidate | None:
        """Weigh a reply with everybody, with a few of them first where there are many."""
        live = line.live
        first = live if len(live) <= CROWD_SAMPLE else self._rnd.sample(live, CROWD_SAMPLE)
        weighed = await self._ask(line, genes, first)
        value = _mean(weighed)
        if value is None or len(first) == len(live):
            return None if value is None else _Candidate(genes, value, weighed)
        values = sorted([c.value for c in found], reverse=True)
        if values and value < values[len(values) // 4]:
            return _Candidate(genes, value, weighed)
        weighed |= await self._ask(line, genes, [k for k in live if k not in weighed])
        value = _mean(weighed)
        return None if value is None else _Candidate(genes, value, weighed)

    async def _ask(self, line: _Line, genes: Genes, who: Sequence[int]) -> dict[int, Weighed]:
        weighed = {}
        for k in who:
            branch = line.branches[k]
            weighed[k] = await branch.weigh(say(genes, self.config.pool, branch.session.observation.user))
            self.calls += 1
            self.unjudged += weighed[k].judgement is None
        return weighed

    async def _say(self, line: _Line, best: _Candidate) -> _Line:
        after = []
        for k, branch in enumerate(line.branches):
            again = branch
            if not branch.over:
                again = branch.fork()
                await again.take(best.weighed[k])
            after.append(again)
        text = next(iter(best.weighed.values())).text
        return _Line(tuple(after), (*line.genes, best.genes), (*line.replies, text), (*line.before, line.branches))

    def _finish(self, line: _Line) -> None:
        succeeded = any(b.session.outcome and b.session.outcome.end == "success" for b in line.branches)
        if succeeded and self.first_success is None:
            self.first_success = self.calls
        if not self.curve or line.value > self.curve[-1].best:
            self.curve.append(Point(calls=self.calls, best=line.value))
        if all(line.replies != other.replies for other in self.archive):
            self.archive.append(line)
            self.archive.sort(key=lambda x: -x.value)
            del self.archive[ARCHIVE:]

    def result(self) -> SearchResult:
        """Return what has been found so far."""
        best = self.archive[0] if self.archive else None
        ends = tuple([b.session.outcome.end for b in best.branches if b.session.outcome]) if best else ()
        return SearchResult(
            config=self.config,
            judge=self.judge,
            scorer=self.scorer,
            calls=self.calls,
            finished=self.finished,
            unjudged=self.unjudged,
            best_return=best.value if best else None,
            successes=sum(end == "success" for end in ends),
            first_success=self.first_success,
            ends=ends,
            turns=len(best.replies) if best else 0,
            replies=best.replies if best else (),
            curve=tuple(self.curve),
        )


def _mean(weighed: dict[int, Weighed]) -> float | None:
    """Mean reward; unjudged replies are left out, and are no zeros."""
    rewards = [w.reward for w in weighed.values() if w.reward is not None]
    return sum(rewards) / len(rewards) if rewards else None


def search(config: SearchConfig, tell: Callable[[int, float | None], None] | None = None) -> SearchResult:
    """Search, and return what was found; on Ctrl-C, what was found by then.

    Raises:
        ConfigError: A name is unknown.
    """
    searcher = Searcher(config, [get_scenario(name) for name in config.scenarios])
    if tell is not None:
        searcher.tell = tell
    try:
        return asyncio.run(searcher.run())
    except KeyboardInterrupt:
        return searcher.result()
