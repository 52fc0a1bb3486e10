"""The embedded director: seven functions by stated rules, lines and plain words for the actor, nothing else."""

import asyncio
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import median

import pytest

from echo_env.agents.embedded import EmbeddedActor, EmbeddedDirector, EmbeddedJudge
from echo_env.agents.embedded.director import HALFWAY, HINT_EVERY, LEAVES_AFTER, STRATEGY_OF
from echo_env.agents.embedded.ledger import HABIT, Ledger
from echo_env.build import WorldConfig, build_policy, build_session, conversation_seed
from echo_env.profiles import STAGES, Scenario, benchmark
from echo_env.rewards import epm
from echo_env.roles import Cast, Cue, Director, DirectorView, Exchange, Judge, JudgeView, chapter_of, cue_of
from echo_env.scorers import get_scorer
from echo_env.session import DialogueSession
from echo_env.types import AXES, Direction, EpmDelta, Evidence, Judgement, Levels, Turn

THIRTY = list(benchmark().values())
SEVEN = {
    "reveal_fragment", "observe_and_wait", "continue_naturally", "reveal_memory", "adjust_empathy_strategy",
    "introduce_turning_point", "end_conversation",
}  # fmt: skip


@dataclass
class Finds:
    """A judge who finds the same in every reply."""

    levels: Levels
    id: str = "finds"
    rubric: str = "none"

    async def judge(self, view: JudgeView) -> Judgement:
        return Judgement(levels=self.levels, judge=self.id)


@dataclass
class Watched:
    """A director, with every view and every call kept."""

    source: Director
    seen: list[tuple[DirectorView, Direction]] = field(default_factory=list)
    id: str = "watched"

    async def direct(self, view: DirectorView) -> Direction:
        direction = await self.source.direct(view)
        self.seen.append((view, direction))
        return direction


@dataclass
class Insists:
    """A director who wants to end it at once."""

    id: str = "insists"

    async def direct(self, view: DirectorView) -> Direction:
        return Direction(function="end_conversation", words="Leave.")


@dataclass
class Play:
    """A conversation under a watched director."""

    scenario: Scenario
    session: DialogueSession
    turns: list[Turn]
    seen: list[tuple[DirectorView, Direction]]

    @property
    def end(self) -> str:
        assert self.session.outcome is not None
        return self.session.outcome.end


async def play(scenario: Scenario, policy: str, director: Director | None = None, judge: Judge | None = None) -> Play:
    watched = Watched(director or EmbeddedDirector())
    seed = conversation_seed(0, scenario.id)
    cast = Cast(EmbeddedActor(seed), watched, judge or EmbeddedJudge())
    session, companion, turns = DialogueSession(scenario, cast, get_scorer("strict"), epm()), build_policy(policy), []
    observation = await session.open()
    while session.outcome is None:
        advance = await session.reply(await companion.respond(observation))
        turns.append(advance.turn)
        observation = advance.observation
    return Play(scenario, session, turns, watched.seen)


@pytest.fixture(scope="session")
def plays() -> dict[str, list[Play]]:
    async def run() -> dict[str, list[Play]]:
        return {name: [await play(s, name) for s in THIRTY] for name in ("skilled", "adviser", "silent")}

    return asyncio.run(run())


def calls(plays: dict[str, list[Play]]) -> Iterator[tuple[Play, DirectorView, Direction]]:
    return ((p, view, direction) for found in plays.values() for p in found for view, direction in p.seen)


# --- the seven functions


def test_six_functions_occur_with_one_good_companion(plays: dict[str, list[Play]]) -> None:
    called = Counter(direction.function for p in plays["skilled"] for _, direction in p.seen)
    assert set(called) == SEVEN - {"end_conversation"}
    assert min(called.values()) >= 15, called


def test_all_seven_functions_occur_with_the_reference_policies(plays: dict[str, list[Play]]) -> None:
    assert {direction.function for *_, direction in calls(plays)} == SEVEN


def test_they_leave_a_companion_who_brings_nothing() -> None:
    """Where the judge finds neither good nor harm, so that the scorer does not end it first."""
    for scenario in THIRTY[::5]:
        left = asyncio.run(play(scenario, "silent", judge=Finds(Levels())))
        assert left.end == "director"
        assert left.seen[-1][1].function == "end_conversation"
        assert len(left.turns) == max(LEAVES_AFTER, left.session.scorer.min_turns)
        assert left.session.outcome is not None
        assert left.session.outcome.closing, "they say that they leave"


def test_arguments_are_those_of_their_function(plays: dict[str, list[Play]]) -> None:
    allowed = {
        "reveal_memory": set(STAGES),
        "reveal_fragment": {"1", "2", "3", "4"},
        "adjust_empathy_strategy": {"cognitive", "affective", "motivational"},
    }
    used: dict[str, set[str]] = {}
    for *_, direction in calls(plays):
        used.setdefault(direction.function, set()).add(direction.argument)
        assert direction.argument in allowed.get(direction.function, {""})
    assert used["reveal_memory"] == allowed["reveal_memory"]
    assert used["adjust_empathy_strategy"] == allowed["adjust_empathy_strategy"]


BACK = "Come back to what nobody took up."


def test_what_is_offered_has_not_been_said_but_where_they_come_back(plays: dict[str, list[Play]]) -> None:
    for p, view, direction in calls(plays):
        said = "\n".join(e.user for e in view.history)
        lines = dict(p.scenario.items())
        for item in direction.lines:
            if not item.startswith("need"):
                assert (lines[item].say in said) == (direction.words == BACK), (p.scenario.id, item)


def test_they_come_back_only_to_what_no_reply_has_met_on_the_lacking_axis(plays: dict[str, list[Play]]) -> None:
    back = [(view, direction) for _, view, direction in calls(plays) if direction.words == BACK]
    assert len(back) >= 20
    for view, direction in back:
        axis = AXES[min(range(3), key=lambda k: position(view)[k])]
        assert direction.reason == f"unmet on {axis}"
        good = [e for j in view.judgements if j for e in j.evidence if e.axis == axis and e.level > 0]
        assert set(direction.lines).isdisjoint(e.item for e in good)


def test_they_come_back_to_what_waits_longest_by_hand() -> None:
    """All is told, A lacks most; of what has a feeling one line was met on A, one on C alone, the rest not at all."""
    scenario = THIRTY[0]
    lines = dict(scenario.items())
    felt = [item for item, line in lines.items() if line.feeling is not None]
    order = [*(item for item in lines if item not in felt), *felt[2:], felt[0], felt[1]]
    said = [*(lines[item].say for item in order), *["Hm."] * (1 - len(order) % 2)]  # they come back on odd turns
    met = (
        Evidence(axis="A", direction="prog", level=1, anchor="A.prog.1.validates", quote="Hm.", item=felt[0]),
        Evidence(axis="C", direction="prog", level=1, anchor="C.prog.1.reflects", quote="Hm.", item=felt[1]),
    )
    judgements = (
        *[Judgement(levels=Levels(), judge="hand")] * (len(said) - 1),
        Judgement(levels=Levels(c_prog=1, a_prog=1), evidence=met, judge="hand"),
    )
    state = EpmDelta(
        position=(-1.0, -9.0, -1.0), delta=(0.0, 0.0, 0.0), work=0.0, energy=0.0, distance=83**0.5, cos=0.0,
        healed=False,
    )  # fmt: skip
    history = tuple(Exchange(text, "Hm.") for text in said)
    direction = asyncio.run(
        EmbeddedDirector().direct(DirectorView(scenario, history, scenario.p0, judgements, (state,), 12))
    )
    assert (direction.words, direction.reason) == (BACK, "unmet on A")
    assert direction.lines == (*felt[2:], felt[1])


def position(view: DirectorView) -> tuple[float, float, float]:
    return next((d.position for d in reversed(view.epm) if d is not None), view.p0)


def test_a_chapter_is_revealed_with_its_own_lines(plays: dict[str, list[Play]]) -> None:
    for _, _, direction in calls(plays):
        chapters = {chapter_of(item) for item in direction.lines}
        if direction.function == "reveal_memory":
            assert chapters == {direction.argument}
        elif direction.function == "reveal_fragment":
            assert chapters == {f"beat{direction.argument}"}
        elif direction.function == "introduce_turning_point":
            assert chapters == {"turn"}


# --- the rules


def test_after_a_reply_that_does_net_harm_they_hold_back_once(plays: dict[str, list[Play]]) -> None:
    for found in plays.values():
        for p in found:
            for k, (view, direction) in enumerate(p.seen):
                last = view.judgements[-1]
                assert last is not None
                if direction.function == "end_conversation":
                    continue
                waited = k > 0 and p.seen[k - 1][1].function == "observe_and_wait"
                assert (direction.function == "observe_and_wait") == (sum(last.levels) < 0 and not waited)


def test_a_hint_shows_the_need_on_the_axis_that_lacks_most(plays: dict[str, list[Play]]) -> None:
    hints = 0
    for p, view, direction in calls(plays):
        if direction.function != "adjust_empathy_strategy":
            continue
        hints += 1
        last = view.epm[-1]
        assert last is not None
        axis = AXES[min(range(3), key=lambda k: last.position[k])]
        assert direction.argument == STRATEGY_OF[axis]
        rank = next(r for r, need in enumerate(p.scenario.needs) if need.axis == axis)
        assert direction.lines
        assert {chapter_of(item) for item in direction.lines} == {f"need{rank}"}
    assert hints >= 20


def test_a_need_is_hinted_at_where_an_axis_stands_still(plays: dict[str, list[Play]]) -> None:
    due = [
        (view, direction)
        for _, view, direction in calls(plays)
        if direction.function == "adjust_empathy_strategy" and "has not moved" in direction.reason
    ]
    assert due
    for view, direction in due:
        axis = next(a for a in AXES if STRATEGY_OF[a] == direction.argument)
        recent = view.judgements[-HINT_EVERY:]
        assert all(j is None or j.levels[2 * AXES.index(axis)] == 0 for j in recent)


def test_the_turning_point_waits_until_nearly_half_the_way_is_done(plays: dict[str, list[Play]]) -> None:
    for p in plays["skilled"]:
        first = next((v for v, d in p.seen if d.function == "introduce_turning_point"), None)
        if first is None:
            continue
        done = first.epm[-1]
        assert done is not None
        norm0 = sum(x * x for x in p.scenario.p0) ** 0.5
        said = "\n".join(e.user for e in first.history)
        all_told = all(line.say in said for i, line in p.scenario.items() if not i.startswith("turn"))
        assert len(first.history) >= 6
        assert done.distance < HALFWAY * norm0 or all_told


def test_a_judge_who_gives_no_judgement_does_not_stop_it() -> None:
    for scenario in THIRTY[:3]:
        director = EmbeddedDirector()
        view = DirectorView(scenario, (), scenario.p0, (None,), (None,), 12)
        assert asyncio.run(director.direct(view)).function in SEVEN - {"end_conversation"}


def test_skilled_is_heard_to_listen_with_nearly_everybody(plays: dict[str, list[Play]]) -> None:
    """What it does goes with what was told; that of the adviser, who names no feeling, does not."""
    listens, advises = ([ledger_of(p) for p in plays[name]] for name in ("skilled", "adviser"))
    assert min(found.tellings for found in listens) >= HABIT
    assert sum(found.by_rote for found in listens) <= 1
    assert median(found.contingency for found in listens) >= 0.6
    assert median(found.contingency for found in advises) <= 0.3


def ledger_of(p: Play) -> Ledger:
    judge = p.session.cast.judge
    assert isinstance(judge, EmbeddedJudge)
    assert judge._ledger is not None
    return judge._ledger


# --- the end is refused before the minimum turn


def test_end_conversation_is_refused_before_the_minimum_turn() -> None:
    insisted = asyncio.run(play(THIRTY[0], "adviser", Insists(), Finds(Levels(c_prog=1))))
    assert insisted.session.scorer.min_turns == 12
    for turn in insisted.turns[:-1]:
        assert turn.direction is not None
        assert turn.direction.function == "continue_naturally"
        assert turn.direction.reason == f"refused to end at turn {turn.index}, before turn 12"
    assert len(insisted.turns) == 12
    assert insisted.turns[-1].direction is not None
    assert insisted.turns[-1].direction.function == "end_conversation"
    assert insisted.end == "director"


def test_nobody_leaves_who_was_given_something_lately_or_is_nearly_well(plays: dict[str, list[Play]]) -> None:
    leaving = [(p, view) for p, view, direction in calls(plays) if direction.function == "end_conversation"]
    assert leaving
    for p, view in leaving:
        recent = view.judgements[-LEAVES_AFTER:]
        assert all(j is not None and max(j.levels) == 0 for j in recent)
        last = view.epm[-1]
        assert last is not None
        assert last.distance > HALFWAY * sum(x * x for x in p.scenario.p0) ** 0.5


def test_the_embedded_director_never_asks_to_end_before_the_minimum_turn(plays: dict[str, list[Play]]) -> None:
    for _, view, direction in calls(plays):
        if direction.function == "end_conversation":
            assert len(view.history) >= view.min_turns


# --- what the actor gets of it

MARKERS = re.compile(
    r"\b(axis|axes|empath\w*|epm|score\w*|rubric|level|deficit|cognitive|affective|motivational|proactive|judge\w*)\b|\d"
)


def test_a_cue_holds_no_axis_no_number_and_no_judgement(plays: dict[str, list[Play]]) -> None:
    for p, _, direction in calls(plays):
        cue = cue_of(direction)
        assert set(cue.__slots__) == {"act", "lines", "words"}
        words = cue.words
        events = [c.event for c in (*p.scenario.life.values(), *p.scenario.beats, p.scenario.turning_point)]
        for event in events:  # the story's own words; they may hold a year
            words = words.replace(event, "")
        assert MARKERS.search(words.lower()) is None, words
        assert not re.search(r"\b[CAP]\b", words), words
        assert direction.reason not in cue.words
        known = {item for item, _ in p.scenario.items()} | {f"need{r}.{k}" for r in range(3) for k in range(4)}
        assert set(cue.lines) <= known


def test_reason_and_argument_stay_behind() -> None:
    told = Direction(function="adjust_empathy_strategy", argument="affective", words="Hm.", reason="axis A lacks 12.5")
    assert cue_of(told) == Cue("hint", (), "Hm.")


@pytest.mark.parametrize("function", sorted(SEVEN))
def test_every_function_has_a_cue(function: str) -> None:
    cue = cue_of(Direction.model_validate({"function": function, "words": "w", "lines": ("beat1.0",)}))
    assert (cue.lines, cue.words) == (("beat1.0",), "w")
    assert cue.act in ("tell", "hold", "flow", "hint", "leave")


# --- determinism


def test_the_same_views_get_the_same_calls(plays: dict[str, list[Play]]) -> None:
    async def again(p: Play) -> list[Direction]:
        director = EmbeddedDirector()
        return [await director.direct(view) for view, _ in p.seen]

    for found in plays.values():
        for p in found[::4]:
            assert asyncio.run(again(p)) == [direction for _, direction in p.seen]


def test_two_conversations_at_once_do_not_touch_each_other(plays: dict[str, list[Play]]) -> None:
    one, other = plays["skilled"][2], plays["skilled"][21]

    async def interleaved() -> tuple[list[Direction], list[Direction]]:
        directors = EmbeddedDirector(), EmbeddedDirector()
        found: tuple[list[Direction], list[Direction]] = ([], [])
        for k in range(12):
            for director, p, calls in zip(directors, (one, other), found, strict=True):
                calls.append(await director.direct(p.seen[k][0]))
        return found

    assert asyncio.run(interleaved()) == tuple([d for _, d in p.seen[:12]] for p in (one, other))


def test_the_session_of_the_configuration_makes_the_same_calls(plays: dict[str, list[Play]]) -> None:
    p = plays["adviser"][4]
    session = build_session(WorldConfig(), p.scenario, conversation_seed(0, p.scenario.id))

    async def run() -> list[Direction | None]:
        policy, observation = build_policy("adviser"), await session.open()
        found = []
        while session.outcome is None:
            advance = await session.reply(await policy.respond(observation))
            observation = advance.observation
            found.append(advance.turn.direction)
        return found

    assert asyncio.run(run()) == [turn.direction for turn in p.turns]
