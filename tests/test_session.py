"""One conversation, turn by turn, played by stubs: how it ends, what is hidden from whom, what a fault becomes."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from echo_env.driving import run_now
from echo_env.epm import EpmState, Scorer, norm
from echo_env.errors import EchoError, EpisodeOver, RoleFailure
from echo_env.profiles import Scenario, get_scenario
from echo_env.rewards import EpmRecipe, Step, epm, group_rewards, potential, terminal
from echo_env.roles import ActorView, Cast, DirectorView, JudgeView
from echo_env.scorers import get_scorer
from echo_env.session import Advance, DialogueSession, visible
from echo_env.types import TRUNCATIONS, Direction, End, Episode, EpisodeHeader, Judgement, Levels, Outcome, Turn

SCENARIO = get_scenario("career-01")
BEST = Levels(2, 0, 2, 0, 2, 0)
WORST = Levels(0, -2, 0, -2, 0, -2)
NOTHING = Levels()
ENDS: tuple[End, ...] = (
    "success", "collapse", "stagnation", "oscillation", "patience", "director", "budget", "unjudged", "unreachable",
)  # fmt: skip

Verdict = Levels | Judgement | BaseException | None


@dataclass
class StubJudge:
    """Gives one verdict a turn: levels, nothing, or an exception; the last one for ever."""

    verdicts: Sequence[Verdict] | Callable[[int], Verdict] = (NOTHING,)
    id: str = "stub-1"
    rubric: str = "none"
    views: list[JudgeView] = field(default_factory=list)

    async def judge(self, view: JudgeView) -> Judgement | None:
        self.views.append(view)
        turn = len(view.history)
        v = self.verdicts(turn + 1) if callable(self.verdicts) else self.verdicts[min(turn, len(self.verdicts) - 1)]
        if isinstance(v, BaseException):
            raise v
        return Judgement(levels=v, judge=self.id) if isinstance(v, Levels) else v


@dataclass
class StubActor:
    """Counts its messages; an exception, or anything else, in place of one."""

    at: dict[int, Any] = field(default_factory=dict)
    """Messages, or exceptions, by the number of replies so far."""
    id: str = "stub-1"
    views: list[ActorView] = field(default_factory=list)

    async def speak(self, view: ActorView) -> str:
        self.views.append(view)
        message = self.at.get(len(view.history), f"message {len(view.history)}, {view.cue.act}")
        if isinstance(message, BaseException):
            raise message
        return str(message) if isinstance(message, str) else message


@dataclass
class StubDirector:
    """Goes on naturally; a direction, or an exception, in place of that by turn."""

    at: dict[int, Any] = field(default_factory=dict)
    id: str = "stub-1"
    views: list[DirectorView] = field(default_factory=list)

    async def direct(self, view: DirectorView) -> Direction:
        self.views.append(view)
        direction = self.at.get(len(view.history), Direction(function="continue_naturally"))
        if isinstance(direction, BaseException):
            raise direction
        return direction


def session_of(
    verdicts: Any = (NOTHING,),
    *,
    actor: StubActor | None = None,
    director: StubDirector | None = None,
    scorer: str = "strict",
    budget: int | None = None,
    scenario: Scenario = SCENARIO,
) -> DialogueSession:
    """A conversation of stubs, opened."""
    cast = Cast(actor or StubActor(), director or StubDirector(), StubJudge(verdicts))
    session = DialogueSession(scenario, cast, get_scorer(scorer), epm(), budget=budget)
    run_now(session.open())
    return session


def play(session: DialogueSession, most: int = 60, say: Callable[[int], str] = lambda k: f"reply {k}") -> list[Advance]:
    """Talk to the end, or for `most` turns."""
    advances: list[Advance] = []
    while session.outcome is None and len(advances) < most:
        advances.append(run_now(session.reply(say(len(advances) + 1))))
    return advances


def recorded(session: DialogueSession, advances: Sequence[Advance]) -> Episode:
    """The episode as it would be read back from its file."""
    header = EpisodeHeader(
        episode_id="x.0", scenario=session.scenario.id, scenario_hash=session.scenario.digest, split="benchmark",
        language="en", domain="career", p0=session.scenario.p0, policy="stub", judge="stub-1", rubric="none",
        scorer=session.scorer.id, recipe="epm-1", actor="stub-1", director="stub-1", seed=0, max_turns=45, echo_env="0",
    )  # fmt: skip
    episode = Episode(header=header, turns=tuple(a.turn for a in advances), outcome=session.outcome)
    return Episode.model_validate_json(episode.model_dump_json())


# ---- how it ends ---------------------------------------------------------------------------------------------------


def test_success() -> None:
    session = session_of((BEST,))
    advances = play(session)
    assert [a.terminated for a in advances] == [False] * 11 + [True], "success is told at turn 12, not before"
    assert session.outcome == Outcome(end="success", turns=12, closing="message 12, close")
    assert session.state.position == (0, 0, 0)
    last = advances[-1]
    assert last.turn.reward_parts["terminal"] == 1
    assert last.turn.direction is None
    assert last.observation.user == "message 12, close"
    assert not last.truncated


def test_collapse() -> None:
    session = session_of((BEST,) * 7 + (WORST,) * 5)
    advances = play(session)
    assert session.outcome == Outcome(end="collapse", turns=12, closing="message 12, leave")
    assert advances[-1].terminated
    assert advances[-1].turn.reward_parts["terminal"] == -1


def test_stagnation() -> None:
    """Six of the last eight turns lose ground, and |P| hardly moves any more: 33.85, 34.26, 34.26, 34.84, 34.84."""
    down, drift = Levels(a_neg=-1), Levels(c_prog=1, a_neg=-1, p_prog=1)
    session = session_of((NOTHING,) * 4 + (down,) * 4 + (drift, NOTHING, drift, NOTHING))
    play(session)
    assert session.outcome is not None
    assert (session.outcome.end, session.outcome.turns) == ("stagnation", 12)


def test_oscillation_is_a_rule_of_the_official_scorer_only() -> None:
    official = session_of((Levels(a_prog=1, c_prog=1, c_neg=-1), NOTHING), scorer="official")
    play(official)
    assert official.outcome is not None
    assert (official.outcome.end, official.outcome.turns) == ("oscillation", 12)
    strict = session_of((Levels(a_prog=1, c_prog=1, c_neg=-1), NOTHING))
    play(strict)
    assert strict.outcome is not None
    assert strict.outcome.end == "patience"


@pytest.mark.parametrize(
    "verdicts",
    [(NOTHING,), lambda k: Levels(a_prog=1) if k % 9 == 0 else NOTHING, lambda k: None if k % 2 else NOTHING],
    ids=["zeros", "zeros and ones", "zeros and nothing"],
)
def test_patience_ends_at_turn_45(verdicts: Any) -> None:
    session = session_of(verdicts)
    advances = play(session)
    assert session.outcome == Outcome(end="patience", turns=45, closing="message 45, leave")
    assert [a.terminated for a in advances] == [False] * 44 + [True]
    if advances[-1].turn.judgement:
        assert advances[-1].turn.reward_parts["terminal"] == -1


def test_the_director_ends_it_and_not_before_the_minimum_turn() -> None:
    leave = Direction(function="end_conversation", words="Leave.", reason="enough")
    director = StubDirector(at=dict.fromkeys(range(1, 99), leave))
    actor = StubActor()
    session = session_of((Levels(a_prog=1),), director=director, actor=actor)
    advances = play(session)
    assert session.outcome == Outcome(end="director", turns=12, closing="message 12, leave")
    for turn, advance in enumerate(advances[:-1], start=1):
        assert advance.turn.direction == Direction(
            function="continue_naturally", reason=f"refused to end at turn {turn}, before turn 12"
        )
    assert advances[-1].turn.direction == leave
    assert advances[-1].terminated
    assert advances[-1].turn.reward_parts["terminal"] == -1
    assert [v.cue.act for v in actor.views] == ["flow"] * 12 + ["leave"]


def test_the_rules_come_before_the_director_and_the_budget() -> None:
    leave = Direction(function="end_conversation")
    session = session_of((BEST,), director=StubDirector(at={12: leave}), budget=12)
    play(session)
    assert session.outcome is not None
    assert session.outcome.end == "success"
    patience = session_of(budget=45)
    play(patience)
    assert patience.outcome is not None
    assert patience.outcome.end == "patience"


def test_a_budget_truncates() -> None:
    session = session_of((BEST,), budget=3)
    advances = play(session)
    assert session.outcome == Outcome(end="budget", turns=3, closing="message 3, leave")
    assert [(a.terminated, a.truncated) for a in advances][-1] == (False, True)
    assert advances[-1].turn.reward_parts["terminal"] == 0


def test_three_unjudged_turns_in_a_row_truncate() -> None:
    session = session_of((NOTHING, None, NOTHING, None, None, NOTHING, RoleFailure("down"), None, RuntimeError("x")))
    advances = play(session)
    assert session.outcome is not None
    assert (session.outcome.end, session.outcome.turns) == ("unjudged", 9)
    assert advances[-1].truncated
    assert not advances[-1].terminated


def test_alternating_failures_go_on_to_the_end() -> None:
    session = session_of(lambda k: TimeoutError("slow") if k % 3 else BEST)
    advances = play(session)
    assert session.outcome is not None
    assert session.outcome.end == "success"
    assert [a.turn.judgement is None for a in advances] == [bool(k % 3) for k in range(1, len(advances) + 1)]


@pytest.mark.parametrize("fault", [RoleFailure("no answer"), ConnectionError("refused"), KeyError("content")])
def test_an_actor_that_cannot_be_reached_truncates(fault: Exception) -> None:
    session = session_of((BEST,), actor=StubActor(at={2: fault}))
    advances = play(session)
    assert session.outcome == Outcome(end="unreachable", turns=2, closing="")
    last = advances[-1]
    assert last.truncated
    assert last.turn.failure.startswith(f"actor: {type(fault).__name__}: ")
    assert last.turn.judgement is not None, "the reply was judged all the same"
    assert last.turn.reward_parts["terminal"] == 0
    assert last.observation.messages[-1].role == "companion"


@pytest.mark.parametrize("message", ["", "  \n", None, 7], ids=repr)
def test_an_actor_that_says_nothing_is_not_reached(message: Any) -> None:
    """Else the companion's own words would stand as the user's message of the next turn."""
    session = session_of((BEST,), actor=StubActor(at={2: message}))
    advances = play(session, most=4)
    assert session.outcome is not None, [a.turn.user for a in advances]
    assert (session.outcome.end, session.outcome.turns) == ("unreachable", 2)
    assert "actor" in advances[-1].turn.failure


def test_a_failed_opening_is_told() -> None:
    cast = Cast(StubActor(at={0: RoleFailure("down")}), StubDirector(), StubJudge())
    session = DialogueSession(SCENARIO, cast, get_scorer("strict"), epm())
    with pytest.raises(RoleFailure, match="down"):
        run_now(session.open())
    with pytest.raises(EpisodeOver, match="not been opened"):
        run_now(session.reply("hello"))


def test_reply_before_the_opening_and_after_the_end_and_a_second_opening_are_refused() -> None:
    cast = Cast(StubActor(), StubDirector(), StubJudge())
    session = DialogueSession(SCENARIO, cast, get_scorer("strict"), epm(), budget=1)
    with pytest.raises(EpisodeOver, match="not been opened"):
        run_now(session.reply("hello"))
    run_now(session.open())
    with pytest.raises(EpisodeOver, match="opened already"):
        run_now(session.open())
    run_now(session.reply("hello"))
    with pytest.raises(EpisodeOver, match=r"ended after turn 1 \(budget\)"):
        run_now(session.reply("hello again"))
    assert session.turns == 1


@pytest.mark.parametrize("text", [None, 3, b"hello"], ids=repr)
def test_a_reply_must_be_a_string(text: Any) -> None:
    """A policy that is plugged in may return anything; the session stays as it was."""
    session = session_of()
    with pytest.raises((TypeError, EchoError), match="string"):
        run_now(session.reply(text))
    assert session.turns == 0
    assert run_now(session.reply("hello")).turn.index == 1


# ---- thoughts are hidden -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("plain", "plain"),
        ("  spaced \n", "spaced"),
        ("<think>secret</think>hello", "hello"),
        ("<THINK>secret</THINK>\n\nhello", "hello"),
        ("<Think>\nsecret\n</tHiNk> hello <think>secret</think>there", "hello there"),
        ("<think>secret without an end", ""),
        ("hello <think>secret without an end", "hello"),
        ("<think></think>", ""),
        ("I think < you", "I think < you"),
        pytest.param("secret</think>hello", "hello", id="opened by the chat template"),
        pytest.param("<think>secret<think>secret</think>secret</think>hello", "hello", id="nested"),
        pytest.param("<think >secret</think>hello", "hello", id="space in the tag"),
    ],
)
def test_visible(text: str, seen: str) -> None:
    assert visible(text) == seen


@pytest.mark.parametrize("said", ["<think>secret</think>hello", "<THINK>secret</THINK>hello", "hello<think>secret"])
def test_thoughts_reach_nobody_and_stay_in_the_record(said: str) -> None:
    actor, director = StubActor(), StubDirector()
    session = session_of((NOTHING,), actor=actor, director=director)
    advances = play(session, most=2, say=lambda _: said)
    judge = session.cast.judge
    assert isinstance(judge, StubJudge)
    for view in (*actor.views, *director.views, *judge.views, *(a.observation for a in advances)):
        exchanges = [*getattr(view, "history", ()), getattr(view, "exchange", None)]
        assert "secret" not in repr([e for e in exchanges if e]) + repr(getattr(view, "messages", ""))
    assert [(a.turn.reply, a.turn.raw_reply) for a in advances] == [("hello", said)] * 2


def test_the_raw_reply_is_kept_only_where_it_differs() -> None:
    advances = play(session_of(), most=1, say=lambda _: "hello")
    assert advances[0].turn.raw_reply is None
    advances = play(session_of(), most=1, say=lambda _: "hello\n")
    assert (advances[0].turn.reply, advances[0].turn.raw_reply) == ("hello", "hello\n")


def test_each_role_sees_the_conversation_so_far() -> None:
    actor, director = StubActor(), StubDirector()
    session = session_of((NOTHING, None, NOTHING), actor=actor, director=director)
    play(session, most=3)
    judge = session.cast.judge
    assert isinstance(judge, StubJudge)
    assert [len(v.history) for v in judge.views] == [0, 1, 2]
    assert [v.exchange.reply for v in judge.views] == ["reply 1", "reply 2", "reply 3"]
    assert [v.exchange.user for v in judge.views] == ["message 0, flow", "message 1, flow", "message 2, flow"]
    assert [len(v.history) for v in director.views] == [1, 2, 3]
    assert [j is None for j in director.views[-1].judgements] == [False, True, False]
    assert [e is None for e in director.views[-1].epm] == [False, True, False]
    assert [len(v.history) for v in actor.views] == [0, 1, 2, 3]
    assert not any(hasattr(v, name) for v in actor.views for name in ("epm", "judgements", "scenario", "p0"))


# ---- faults are recorded, and are never zeros ----------------------------------------------------------------------


@pytest.mark.parametrize("fault", [None, RoleFailure("asleep"), ValueError("bad json"), ZeroDivisionError()], ids=repr)
def test_a_judge_that_fails_gives_no_zero(fault: Verdict) -> None:
    session = session_of((Levels(a_prog=1), fault, Levels(a_prog=1)))
    one, two, three = play(session, most=3)
    turn = two.turn
    assert (turn.judgement, turn.epm, turn.reward, turn.reward_parts) == (None, None, None, {})
    assert turn.failure.startswith("judge: ")
    if isinstance(fault, BaseException):
        assert turn.failure.startswith(f"judge: {type(fault).__name__}: {fault}"[:40])
    assert turn.direction == Direction(function="continue_naturally"), "the conversation goes on"
    assert session.state.unjudged == 1
    assert one.turn.epm is not None
    assert three.turn.epm is not None
    assert three.turn.epm.position[1] == one.turn.epm.position[1] + 1, "the state stood still in between"
    assert not three.turn.failure
    episode = recorded(session, (one, two, three))
    assert group_rewards(epm(), [episode], session.scorer)[0][1] is None


@pytest.mark.parametrize("levels", [Levels(3, 0, 0, 0, 0, 0), Levels(0, 1, 0, 0, 0, 0), Levels(0, 0, -1, 0, 0, 0)])
def test_a_judge_that_answers_rubbish_gives_no_zero_and_no_crash(levels: Levels) -> None:
    session = session_of((Levels(a_prog=1), levels, Levels(a_prog=1)))
    advances = play(session, most=3)
    assert [a.turn.reward is None for a in advances] == [False, True, False]
    assert "judge: " in advances[1].turn.failure


def test_a_judge_that_returns_another_type_gives_no_crash() -> None:
    class Odd(StubJudge):
        async def judge(self, view: JudgeView) -> Any:
            return {"levels": [0, 0, 0, 0, 0, 0]}

    session = DialogueSession(SCENARIO, Cast(StubActor(), StubDirector(), Odd()), get_scorer("strict"), epm())
    run_now(session.open())
    turn = run_now(session.reply("hello")).turn
    assert turn.judgement is None
    assert "judge: " in turn.failure


@pytest.mark.parametrize("fault", [RoleFailure("asleep"), KeyError("function")])
def test_without_a_director_the_person_goes_on(fault: Exception) -> None:
    session = session_of((NOTHING,), director=StubDirector(at={1: fault}))
    first, second = play(session, most=2)
    assert first.outcome is None
    assert first.turn.direction == Direction(function="continue_naturally")
    assert first.turn.failure == f"director: {type(fault).__name__}: {fault}"
    assert first.turn.judgement is not None
    assert first.turn.reward is not None
    assert second.turn.failure == ""


@pytest.mark.parametrize("direction", [None, "continue_naturally", {"function": "observe_and_wait"}], ids=repr)
def test_a_director_that_answers_rubbish_is_recorded(direction: Any) -> None:
    session = session_of((NOTHING,), director=StubDirector(at={1: direction}))
    first, second = play(session, most=2)
    assert first.turn.failure.startswith("director: ")
    assert second.turn.failure == ""


def test_every_fault_of_a_turn_is_recorded() -> None:
    session = session_of((ValueError("one"),), director=StubDirector(at={1: ValueError("two")}))
    failure = play(session, most=1)[0].turn.failure
    assert "judge: ValueError: one" in failure
    assert "director: ValueError: two" in failure


@pytest.mark.parametrize("role", ["policy", "actor", "judge", "director", "fault"])
def test_half_a_surrogate_pair_from_any_role_can_be_recorded(role: str) -> None:
    """As JSON escapes of a language model's answer may hold it; no file can, and the run must not die of it."""
    half = "so \ud83d"
    judged: Verdict = Judgement(levels=NOTHING, judge="stub-1", note=half) if role == "judge" else NOTHING
    if role == "fault":
        judged = ValueError(half)
    session = session_of(
        (judged,),
        actor=StubActor(at={1: half}) if role == "actor" else None,
        director=StubDirector(at={1: Direction(function="observe_and_wait", words=half)} if role == "director" else {}),
    )
    advances = play(session, most=2, say=lambda _: half if role == "policy" else "hello")
    assert recorded(session, advances).turns == tuple(a.turn for a in advances)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_recipe_that_gives_no_number_is_an_error(value: float) -> None:
    """JSON has no such numbers: the episode's file could not be read again."""

    class Odd(EpmRecipe):
        def turn(self, step: Step) -> dict[str, float]:
            return {"odd": value}

    session = session_of((NOTHING,))
    session.recipe = Odd()
    with pytest.raises((EchoError, ValueError), match="odd"):
        play(session, most=1)


def test_an_actor_that_fails_on_its_last_words_is_recorded_and_the_end_stays() -> None:
    session = session_of((BEST,), actor=StubActor(at={12: RoleFailure("gone")}))
    advances = play(session)
    assert session.outcome == Outcome(end="success", turns=12, closing="")
    assert advances[-1].turn.reward_parts["terminal"] == 1
    assert "actor: RoleFailure: gone" in advances[-1].turn.failure


def test_a_role_that_waits_needs_a_loop() -> None:
    class Slow(StubJudge):
        async def judge(self, view: JudgeView) -> Judgement | None:
            await asyncio.sleep(0)
            return await super().judge(view)

    def fresh() -> DialogueSession:
        session = DialogueSession(SCENARIO, Cast(StubActor(), StubDirector(), Slow()), get_scorer("strict"), epm())
        run_now(session.open())
        return session

    with pytest.raises(RuntimeError, match=r"await session\.reply"):
        run_now(fresh().reply("hello"))
    assert asyncio.run(fresh().reply("hello")).turn.judgement is not None


def test_cancelling_is_no_failure_of_a_role() -> None:
    session = session_of((KeyboardInterrupt(),))
    with pytest.raises(KeyboardInterrupt):
        play(session, most=1)


# ---- rewards -------------------------------------------------------------------------------------------------------

levels = st.builds(
    Levels,
    st.integers(0, 2), st.integers(-2, 0), st.integers(0, 2), st.integers(-2, 0), st.integers(0, 2), st.integers(-2, 0),
)  # fmt: skip
turns = st.lists(st.none() | levels, min_size=1, max_size=45)
scorers = st.sampled_from(["strict", "official", "paper"]).map(get_scorer)


def walk(scorer: Scorer, moves: list[Levels | None]) -> list[tuple[EpmState, EpmState, Levels | None]]:
    states = [scorer.start(SCENARIO.p0)]
    for move in moves:
        states.append(scorer.advance(states[-1], move))
    return list(zip(states, states[1:], moves, strict=False))


@given(scorers, turns)
@settings(deadline=None, max_examples=150)
def test_shaping_telescopes(scorer: Scorer, moves: list[Levels | None]) -> None:
    """With discount 1: sum of shaping = F(P_T) - F(P_0), whatever was unjudged on the way."""
    path = walk(scorer, moves)
    total = sum(epm().turn(Step(scorer, a, b, None))["shaping"] for a, b, move in path if move is not None)
    assert total == pytest.approx(potential(path[-1][1].position, SCENARIO.p0) - -1.0, abs=1e-9)


@given(scorers, st.lists(levels, min_size=1, max_size=30), st.floats(0.5, 1.0))
@settings(deadline=None, max_examples=80)
def test_discounted_shaping_telescopes(scorer: Scorer, moves: list[Levels], discount: float) -> None:
    """sum of g^(t-1) r_t = g^T F(P_T) - F(P_0): Ng, Harada and Russell's condition, so the best policy is unchanged."""
    path = walk(scorer, list(moves))
    recipe = epm(discount)
    total = sum(discount**t * recipe.turn(Step(scorer, a, b, None))["shaping"] for t, (a, b, _) in enumerate(path))
    expected = discount ** len(path) * potential(path[-1][1].position, SCENARIO.p0) - -1.0
    assert total == pytest.approx(expected, abs=1e-9)


def test_the_potential() -> None:
    p0 = (-10.0, -24.0, -10.0)
    assert potential(p0, p0) == -1
    assert potential((0.0, 0.0, 0.0), p0) == 0
    assert potential((-5.0, -12.0, -5.0), p0) == pytest.approx(-0.5)


@pytest.mark.parametrize("end", [*ENDS, None])
def test_terminal_rewards(end: End | None) -> None:
    expected = 1.0 if end == "success" else 0.0 if end is None or end in TRUNCATIONS else -1.0
    assert terminal(end) == expected
    state = get_scorer().start(SCENARIO.p0)
    parts = epm().turn(Step(get_scorer(), state, get_scorer().advance(state, BEST), end))
    assert set(parts) == {"shaping", "terminal"}
    assert parts["terminal"] == expected


def test_truncations_are_what_the_design_says() -> None:
    assert {"budget", "unjudged", "unreachable"} == TRUNCATIONS
    assert set(ENDS) == set(Outcome.model_fields["end"].annotation.__args__)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("verdicts", "options"),
    [
        ((BEST,), {}),
        ((BEST,) * 7 + (WORST,) * 5, {}),
        ((NOTHING,), {}),
        ((BEST, None, Levels(1, 0, 0, -1, 1, 0)), {}),
        ((None, BEST, None, None, BEST, None, None, None), {}),
        (lambda k: None if k % 2 else NOTHING, {}),
        ((BEST,), {"budget": 4}),
        ((BEST,), {"actor": StubActor(at={5: RoleFailure("gone")})}),
        ((Levels(a_prog=1),), {"director": StubDirector(at={14: Direction(function="end_conversation")})}),
    ],
)
@pytest.mark.parametrize("scorer", ["strict", "official", "paper"])
def test_group_rewards_equal_the_live_rewards(verdicts: Any, options: dict[str, Any], scorer: str) -> None:
    session = session_of(verdicts, scorer=scorer, **options)
    advances = play(session)
    assert session.outcome is not None
    live = [a.turn.reward for a in advances]
    episode = recorded(session, advances)
    for recorded_rewards in group_rewards(epm(), [episode, episode], session.scorer):
        assert [r is None for r in recorded_rewards] == [r is None for r in live]
        assert [r or 0.0 for r in recorded_rewards] == pytest.approx([r or 0.0 for r in live], abs=1e-12)
    for advance in advances:
        if advance.turn.reward is not None:
            assert advance.turn.reward == sum(advance.turn.reward_parts.values())


def test_an_unfinished_episode_has_no_terminal_reward() -> None:
    session = session_of((WORST,))
    advances = play(session, most=5)
    rewards = group_rewards(epm(), [recorded(session, advances)], session.scorer)[0]
    assert rewards == pytest.approx([a.turn.reward for a in advances])
    assert group_rewards(epm(), [], session.scorer) == []


def test_silence_is_no_safe_haven() -> None:
    """The return of zeros to the end of patience is below that of any success."""
    total = sum(a.turn.reward or 0.0 for a in play(session_of((NOTHING,))))
    assert total == pytest.approx(-1)
    best = sum(a.turn.reward or 0.0 for a in play(session_of((BEST,))))
    assert best == pytest.approx(2)


def test_the_turn_holds_what_the_scorer_says() -> None:
    session = session_of((BEST, None, WORST))
    advances = play(session, most=3)
    scorer = session.scorer
    state = scorer.start(SCENARIO.p0)
    for advance, verdict in zip(advances, (BEST, None, WORST), strict=True):
        state = scorer.advance(state, verdict)
        assert advance.turn.epm == scorer.delta(state)
        if advance.turn.epm:
            assert advance.turn.epm.distance == norm(state.position)
    assert isinstance(advances[0].turn, Turn)
