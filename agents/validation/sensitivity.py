"""Does a judge hear whose needs it judges for? The same replies, judged with only the person's needs switched.

Each reply (`sim_profiles/sensitivity/replies.yaml`) was written by hand to suit one person's own needs. It is judged
for that person, and for the same person in the same story with another order of needs and the opposite defensiveness.
What is compared is the work under `strict`. A person's deficit goes with their needs (whoever ranks P first lacks most
on P), so work depends on the needs twice: by the levels, which are the judge's, and by the deficit, which is EPM's.
Both are shown apart as well.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import zip_longest
from typing import Literal, cast

import numpy as np
from pydantic import ValidationError

from echo_env import registry
from echo_env.agents.embedded.skilled import Skilled
from echo_env.driving import run_now
from echo_env.epm import EpmState, Scorer
from echo_env.errors import ScenarioError, redact
from echo_env.profiles import Need, Scenario, benchmark, data_root, get_scenario
from echo_env.roles import Exchange, Judge, JudgeProfile, JudgeView, Observation, profiles_of
from echo_env.scorers import get_scorer
from echo_env.significance import Interval, bootstrap_means
from echo_env.types import AXES, Axis, Levels, Message, Record
from echo_env.yamlfiles import read_yaml

Part = Literal["working", "test", "all"]
SEED = 3
"""Seed of the split into halves, of the donors, and of the bootstrap."""
EARLY = 3
"""Last turn that counts as early."""
HEALED = -1.0
"""Points from which an axis counts as healed: there is hardly any work left on it."""
SAME = 1e-9
"""Works this close to each other are a tie."""


class _Story(Record):
    """One scenario in the file of replies."""

    story: tuple[tuple[str, ...], ...]
    replies: dict[int, str]


class _File(Record):
    """The file of replies."""

    scenarios: dict[str, _Story]


class Reply(Record):
    """One reply, and where it stands."""

    scenario: str
    turn: int
    """The turn that it answers, 1 for the first."""
    text: str


class Case(Record):
    """One reply, judged for its own person and for the switched ones."""

    scenario: str
    turn: int
    first: Axis
    """The person's own first need."""
    healed: bool
    """Whether that axis had hardly any work left before the reply."""
    own: float
    """Work for the own profile, in points."""
    switched: dict[str, float]
    """Work for each switched profile, by name: "rotate-1" or "borrow-C". Its deficit goes with its needs."""
    alone: dict[str, float]
    """The same from the own deficit: what the judge's levels alone make of it."""
    deaf: dict[str, float]
    """The same with the own levels: what the deficit alone makes of it, under a judge that hears no needs."""
    levels: dict[str, Levels]
    """Judged levels by profile, the own one under "own"."""

    @property
    def difference(self) -> float:
        """Own work minus the mean of the switched, in points."""
        return self.own - sum(self.switched.values()) / len(self.switched)


class Share(Record):
    """Over some cases: how often the work falls with the needs switched, and by how much."""

    name: str
    n: int
    falls: float | None
    """Shares of the cases, 0..1; None where there are none."""
    ties: float | None
    rises: float | None
    difference: float | None
    """Mean of own minus switched work, in points."""
    falls_interval: Interval | None
    difference_interval: Interval | None
    """95 % intervals, scenarios drawn whole."""


class Sensitivity(Record):
    """What a judge made of the replies."""

    judge: str
    part: Part
    seed: int
    shares: tuple[Share, ...]
    """All cases first; then by kind of switch, by position, by first need, and those not healed yet."""
    cases: tuple[Case, ...]
    unjudged: tuple[str, ...]
    """Cases without a judgement, with the reason; they are in no share."""


def replies(part: Part = "all") -> tuple[Reply, ...]:
    """Return the replies of a part: one of each scenario first, then a second of each, and so on."""
    rows = [
        [Reply(scenario=name, turn=turn, text=text) for turn, text in sorted(found.replies.items())]
        for name, found in _stories().items()
        if name in halves()[part]
    ]
    return tuple(reply for rank in zip_longest(*rows) for reply in rank if reply is not None)


@lru_cache(maxsize=1)
def halves() -> Mapping[Part, tuple[str, ...]]:
    """Return the scenarios of each part: a seeded half of those with each first need to work with, the rest to test."""
    working: set[str] = set()
    for axis in AXES:
        mine = [s.id for s in benchmark().values() if s.dominant == axis]
        working |= set(random.Random(f"{SEED}:{axis}").sample(mine, len(mine) // 2))
    every = tuple(benchmark())
    return {
        "working": tuple(name for name in every if name in working),
        "test": tuple(name for name in every if name not in working),
        "all": every,
    }


@lru_cache(maxsize=1)
def _stories() -> dict[str, _Story]:
    path = data_root() / "sensitivity" / "replies.yaml"
    try:
        return _File.model_validate(read_yaml(path)).scenarios
    except ValidationError as e:
        first = e.errors()[0]
        raise ScenarioError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None


@lru_cache(maxsize=64)
def prefix(scenario: str) -> tuple[Exchange, ...]:
    """Return the conversation that a scenario's replies stand in: its story, answered by `skilled` with seed 0."""
    person = get_scenario(scenario)
    companion = Skilled(0)
    messages: tuple[Message, ...] = ()
    turns: list[Exchange] = []
    for said in user_messages(person, _stories()[scenario].story):
        messages = (*messages, Message(role="user", text=said))
        reply = run_now(companion.respond(Observation(messages, person.language)))
        messages = (*messages, Message(role="companion", text=reply))
        turns.append(Exchange(said, reply))
    return tuple(turns)


def user_messages(person: Scenario, story: Sequence[Sequence[str]]) -> list[str]:
    """Return what the person says turn by turn.

    Raises:
        ScenarioError: The story names a line that the scenario does not have.
    """
    known = {item: line.say for item, line in person.items()}
    known |= {f"need{rank}.{k}": ask for rank, need in enumerate(person.needs) for k, ask in enumerate(need.asks)}
    for ids in story:
        for item in ids:
            if item not in known:
                raise ScenarioError(f"sensitivity/replies.yaml: {person.id}: there is no line '{item}'")
    return [" ".join(known[item] for item in ids) for ids in story]


def switched(person: Scenario) -> dict[str, JudgeProfile]:
    """Return the person's profile with other needs and the opposite defensiveness, everything else unchanged.

    "rotate": the person's own needs in another order of rank, the two in which each moves by the same number of places.
    "borrow": the needs of somebody else, one donor for each axis that is not the person's own first.
    """
    own = profiles_of(person)[1]
    found = {f"rotate-{k}": _with_needs(own, f"rotate-{k}", (*person.needs[k:], *person.needs[:k])) for k in (1, 2)}
    for axis in AXES:
        if axis != person.dominant:
            donors = [s for s in benchmark().values() if s.dominant == axis]
            donor = random.Random(f"{SEED}:{person.id}:{axis}").choice(donors)
            found[f"borrow-{axis}"] = _with_needs(own, f"borrow-{axis}", donor.needs)
    return found


def _with_needs(own: JudgeProfile, name: str, needs: tuple[Need, ...]) -> JudgeProfile:
    defensiveness = "low" if own.persona.defensiveness == "high" else "high"
    persona = own.persona.model_copy(update={"defensiveness": defensiveness})
    first, second, third = needs
    return replace(own, key=f"{own.key}:{name}", persona=persona, needs=(first, second, third))


def measure(
    judge: str = "embedded",
    part: Part = "working",
    limit: int | None = None,
    tell: Callable[[int, int], None] = lambda done, total: None,
) -> Sensitivity:
    """Judge the replies of a part.

    Args:
        judge: Registered name or "module:attribute".
        part: The half to work with, the half that is read once, or all.
        limit: Only the first so many replies.
        tell: Called with the number of finished cases and of all.

    Raises:
        ConfigError: The judge is unknown.
    """
    make = cast("Callable[[], Judge]", registry.resolve("judge", judge))
    chosen = replies(part)[:limit]
    return asyncio.run(_measure(make, part, chosen, tell))


async def _measure(
    make: Callable[[], Judge], part: Part, chosen: Sequence[Reply], tell: Callable[[int, int], None]
) -> Sensitivity:
    states: dict[str, list[EpmState]] = {}
    cases: list[Case] = []
    unjudged: list[str] = []
    for done, reply in enumerate(chosen):
        tell(done, len(chosen))
        prefix(reply.scenario)  # a fault here is the file's, not the judge's
        try:
            if reply.scenario not in states:
                states[reply.scenario] = await _states(make(), get_scenario(reply.scenario))
            cases.append(await _case(make, reply, states[reply.scenario][reply.turn - 1]))
        except Exception as e:  # a judge's fault is a missing case: recorded, counted, and in no share
            unjudged.append(redact(f"{reply.scenario}, turn {reply.turn}: {type(e).__name__}: {e}")[:300])
    tell(len(chosen), len(chosen))
    return Sensitivity(
        judge=make().id, part=part, seed=SEED, shares=shares(cases), cases=tuple(cases), unjudged=tuple(unjudged)
    )


async def _states(judge: Judge, person: Scenario) -> list[EpmState]:
    """Return the state before each turn of a scenario's conversation, judged for the own profile."""
    rules = get_scorer("strict")
    profile, turns = profiles_of(person)[1], prefix(person.id)
    found = [rules.start(person.p0)]
    for k, exchange in enumerate(turns[:-1]):
        judgement = await judge.judge(JudgeView(profile, turns[:k], exchange))
        found.append(rules.advance(found[-1], judgement.levels if judgement else None))
    return found


async def _case(make: Callable[[], Judge], reply: Reply, before: EpmState) -> Case:
    person, turns = get_scenario(reply.scenario), prefix(reply.scenario)
    history, exchange = turns[: reply.turn - 1], Exchange(turns[reply.turn - 1].user, reply.text)
    levels: dict[str, Levels] = {}
    for name, profile in {"own": profiles_of(person)[1], **switched(person)}.items():
        judgement = await make().judge(JudgeView(profile, history, exchange))
        if judgement is None:
            raise ValueError(f"no judgement for '{name}'")
        levels[name] = judgement.levels
    rules, others = get_scorer("strict"), switched(person)
    alone = {name: _work(rules, before, found) for name, found in levels.items()}
    states = {name: _shifted(person, before, profile) for name, profile in others.items()}
    return Case(
        scenario=reply.scenario,
        turn=reply.turn,
        first=person.dominant,
        healed=before.position[AXES.index(person.dominant)] >= HEALED,
        own=alone.pop("own"),
        switched={name: _work(rules, state, levels[name]) for name, state in states.items()},
        alone=alone,
        deaf={name: _work(rules, state, levels["own"]) for name, state in states.items()},
        levels=levels,
    )


def _shifted(person: Scenario, before: EpmState, other: JudgeProfile) -> EpmState:
    """Return the state of the person with switched needs: the same way gone, of a deficit that goes with the needs.

    Priority is part of the IEDR rating (items C.3, A.3, P.3), and a scenario whose first need is not its largest
    deficit is refused at load: whoever ranks P first has the largest deficit on P.
    """
    p0, position = [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]
    for own, switched_ in zip(person.needs, other.needs, strict=True):
        i, j = AXES.index(own.axis), AXES.index(switched_.axis)
        p0[j] = person.p0[i]
        left = before.position[j] / person.p0[j] if person.p0[j] else 0.0
        position[j] = p0[j] * left
    start, here = (p0[0], p0[1], p0[2]), (position[0], position[1], position[2])
    return EpmState(p0=start, position=here, path=(here,))


def _work(rules: Scorer, before: EpmState, levels: Levels) -> float:
    return rules.advance(before, levels).works[-1]


@dataclass(frozen=True, slots=True)
class _Cut:
    """A way to look at the cases."""

    name: str
    takes: Callable[[Case], bool] = lambda case: True
    kind: str = ""
    """Only switches whose name begins so."""
    works: Literal["switched", "alone", "deaf"] = "switched"
    """Which works to compare with."""


_CUTS = (
    _Cut("all"),
    _Cut("levels alone, same deficit", works="alone"),
    _Cut("deficit alone, own levels", works="deaf"),
    _Cut("rotated needs", kind="rotate"),
    _Cut("borrowed needs", kind="borrow"),
    _Cut("turns 1-3", lambda case: case.turn <= EARLY),
    _Cut("later turns", lambda case: case.turn > EARLY),
    *(_Cut(f"{axis} first", lambda case, axis=axis: case.first == axis) for axis in AXES),  # type: ignore[misc]
    _Cut("work left on the first axis", lambda case: not case.healed),
    _Cut("work found for the own needs", lambda case: case.own > SAME),
)


def shares(cases: Sequence[Case]) -> tuple[Share, ...]:
    """Return the shares of all cases, and of some of them."""
    return tuple(_share(cut.name, [_only(c, cut) for c in cases if cut.takes(c)]) for cut in _CUTS)


def _only(case: Case, cut: _Cut) -> Case:
    works: dict[str, float] = getattr(case, cut.works)
    return case.model_copy(update={"switched": {k: v for k, v in works.items() if k.startswith(cut.kind)}})


def _share(name: str, cases: Sequence[Case]) -> Share:
    if not cases:
        return Share(name=name, n=0, falls=None, ties=None, rises=None, difference=None, falls_interval=None,
                     difference_interval=None)  # fmt: skip
    differences = np.array([case.difference for case in cases])
    falls = differences > SAME
    groups = sorted({case.scenario for case in cases})
    rows = [[i for i, case in enumerate(cases) if case.scenario == group] for group in groups]
    sums = np.array([[falls[row].sum(), differences[row].sum()] for row in rows], dtype=np.float64)
    counts = np.array([len(row) for row in rows], dtype=np.float64)
    falls_interval, difference_interval = bootstrap_means(sums, counts, draws=2000, level=0.95, seed=SEED)
    return Share(
        name=name,
        n=len(cases),
        falls=float(falls.mean()),
        ties=float((np.abs(differences) <= SAME).mean()),
        rises=float((differences < -SAME).mean()),
        difference=float(differences.mean()),
        falls_interval=falls_interval,
        difference_interval=difference_interval,
    )
