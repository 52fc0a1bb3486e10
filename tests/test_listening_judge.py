"""What a companion that does not listen loses: acts by rote, what it overlooks, ties at random, echoes."""

import asyncio
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lighthouse import ASHAMED, ASKS, SAY, Talk, anchors, keeper, verdict, verdicts

from echo_env.agents.embedded import EmbeddedActor, EmbeddedDirector, EmbeddedJudge, ledger
from echo_env.agents.embedded.language import read_sentence
from echo_env.agents.embedded.ledger import CALLED_FOR, HABIT, Ledger, Story, Thing, story_of
from echo_env.build import build_policy, conversation_seed
from echo_env.profiles import Scenario, benchmark
from echo_env.rewards import epm
from echo_env.roles import Cast, profiles_of
from echo_env.scorers import get_scorer
from echo_env.session import DialogueSession
from echo_env.types import AXES, Axis, Levels

STORY = story_of(profiles_of(keeper())[1])
NAMES, EMPOWERS = "A.prog.1.names", "P.prog.2.empowers"
FEELING, WISH, FACT = "beat1.0", "beat3.0", "opening"
BOTH, NONE = frozenset({NAMES, EMPOWERS}), frozenset[str]()
Told = tuple[str, frozenset[str]]
"""What one message tells (a line's id), and the acts shown in the reply to it."""


def booked(*turns: Told) -> Ledger:
    """A ledger after turns that told something, each answered by some acts."""
    found = Ledger(STORY)
    for item, acts in turns:
        found.hear(SAY.get(item, item))
        found.answer(set(acts))
    return found


# --- contingency: acts shown beside acts called for

LISTENS: list[Told] = [
    (FEELING, frozenset({NAMES})), (WISH, frozenset({EMPOWERS})), (FACT, NONE), (FACT, NONE),
]  # fmt: skip
CROSSED: list[Told] = [
    (FEELING, frozenset({EMPOWERS})), (WISH, frozenset({NAMES})), (FACT, NONE), (FACT, NONE),
]  # fmt: skip
HALF: list[Told] = [
    (FEELING, frozenset({NAMES})), (WISH, NONE), (FACT, NONE), (FACT, frozenset({NAMES})),
]  # fmt: skip


def test_who_answers_what_was_told_has_contingency_1() -> None:
    """Each act: called 1 of 4, shown 1, both 1: (1 - 1*1/4) * 2 = 1.5 over sqrt((1*3/4 * 2) * (1*3/4 * 2)) = 1.5."""
    assert booked(*LISTENS).contingency == pytest.approx(1.0)


def test_who_mixes_the_two_up_has_less_than_0() -> None:
    """Each act: called 1 of 4, shown 1, both 0: (0 - 1/4) * 2 = -0.5 over 1.5."""
    assert booked(*CROSSED).contingency == pytest.approx(-1 / 3)


def test_who_hears_the_feeling_and_names_one_more_and_leaves_the_wish_by_hand() -> None:
    """Names: called 1, shown 2, both 1: 1 - 2*1/4 = 0.5. Empowers: called 1, never shown: 0.
    Shown 2*(1 - 2/4) = 1, called 3/4 + 3/4 = 1.5: 0.5 / sqrt(1.5) = 0.408."""
    assert booked(*HALF).contingency == pytest.approx(0.5 / math.sqrt(1.5))


def test_the_same_record_is_by_rote_once_there_is_enough_of_it() -> None:
    """0.408 against 0.6 - 0.8/sqrt(n): 0.317 at n = 8, 0.4 at 16, 0.421 at 20."""
    assert [booked(*HALF * k).by_rote for k in (2, 4, 5)] == [False, False, True]
    assert booked(*HALF * 5).contingency == pytest.approx(0.5 / math.sqrt(1.5))


def test_the_rate_alone_is_nothing_whatever_was_told() -> None:
    """Every act every time: what was called for was always among them, and says nothing."""
    turns: list[Told] = [(item, BOTH) for item in (FEELING, WISH, FACT, FEELING, WISH, FACT, FEELING, WISH)]
    assert booked(*turns).contingency == 0.0
    assert [booked(*turns[:n]).by_rote for n in range(1, 9)] == [False] * (HABIT - 1) + [True]


def test_where_nothing_calls_for_anything_nothing_can_be_told() -> None:
    assert booked(*[(FACT, NONE)] * 4, *[(FACT, BOTH)] * 2).contingency == 0.0


def test_turns_that_tell_nothing_new_are_not_booked() -> None:
    talk: list[Told] = [*LISTENS, ("Hm.", BOTH), ("I do not know.", BOTH)]
    assert booked(*talk).tellings == 4
    assert booked(*talk).contingency == pytest.approx(1.0)


def test_acts_that_nothing_calls_for_do_not_count() -> None:
    extra = [(item, acts | {"P.prog.1.affirms", "C.prog.2.reframes"}) for item, acts in LISTENS]
    assert booked(*extra).contingency == booked(*LISTENS).contingency


ACTS = st.frozensets(st.sampled_from([*CALLED_FOR, "A.prog.1.validates", ""]))
ITEMS = st.sampled_from([*SAY, "Hm."])


@settings(deadline=None, max_examples=100, derandomize=True)
@given(st.lists(st.tuples(ITEMS, ACTS), max_size=24))
def test_contingency_is_a_correlation(turns: list[Told]) -> None:
    assert -1.0 - 1e-9 <= booked(*turns).contingency <= 1.0 + 1e-9


@settings(deadline=None, max_examples=100, derandomize=True)
@given(st.lists(ITEMS, max_size=24), ACTS)
def test_whoever_always_does_the_same_has_contingency_0(items: list[str], acts: frozenset[str]) -> None:
    found = booked(*((item, acts) for item in items))
    assert found.contingency == 0.0
    assert found.by_rote == (found.tellings >= HABIT)


# --- by rote, nothing counts

GUESSES: Talk = [
    ("opening", "Betrayed by the boat going like that."),
    ("childhood.0", "How tender those knots with your father were."),
    ("young_adult.0", "A lonely post, that lighthouse."),
    ("now.0", "Does the log make you calm at least?"),
    ("beat1.0", "Being ashamed clings to that letter."),
    ("beat2.0", "Guilty over an auction nobody announced."),
    ("beat3.0", "Does the strait make you hopeful?"),
]
"""A feeling named every turn, rightly as often as not, never twice in the same words: 1 of 7 was called for."""
HULL = ("beat4.0", "You are grieving her green hull.")


def test_the_eighth_feeling_in_a_row_is_by_rote_and_settles_nothing() -> None:
    heard, by_rote = verdicts([*GUESSES[:6], HULL])[-1], verdicts([*GUESSES, HULL])[-1]
    assert heard.levels == Levels(c_prog=1, a_prog=2)
    assert by_rote.levels == Levels(c_neg=-1, a_neg=-2, p_neg=-1)
    reasons = {e.anchor for e in by_rote.evidence if e.reason == "the same acts whatever is told"}
    assert reasons == {"C.neg.1.hollow", "A.neg.2.repeats", "P.neg.1.flatters"}


def test_who_left_the_feeling_out_where_none_was_voiced_is_heard_at_the_eighth_turn() -> None:
    plain = {
        "childhood.0": "Knots with your father, on the kitchen floor.",
        "now.0": "By hand, the weather, evening after evening.",
        "beat3.0": "Which day before winter would you choose to cross the strait?",
    }
    talk = [(item, plain.get(item, reply)) for item, reply in (*GUESSES, HULL)]
    assert verdicts(talk)[-1].levels.a_prog == 2


def test_advice_by_rote_gains_nothing_and_is_not_held_against_the_reply_twice() -> None:
    """Whoever gives advice is answered by what advice does to this person."""
    advice = ("beat4.0", "You could write down which day the buyer painted her hull.")
    heard, by_rote = (verdicts([*talk, advice])[-1] for talk in (GUESSES[:5], GUESSES))
    assert (heard.levels.c_prog, heard.levels.a_neg) == (1, -1)
    assert max(by_rote.levels) == 0
    assert "the same acts whatever is told" not in {e.reason for e in by_rote.evidence}


async def play(name: str, scenario: Scenario) -> Ledger:
    """The judge's ledger at the end of a conversation."""
    judge, seed = EmbeddedJudge(), conversation_seed(0, scenario.id)
    cast = Cast(EmbeddedActor(seed), EmbeddedDirector(), judge)
    session, policy = DialogueSession(scenario, cast, get_scorer("strict"), epm()), build_policy(name, 0)
    observation = await session.open()
    while session.outcome is None:
        observation = (await session.reply(await policy.respond(observation))).observation
    assert judge._ledger is not None
    return judge._ledger


@pytest.mark.parametrize("attack", ["noun_slots", "noun_slots_strong", "one_axis_a"])
def test_phrases_filled_with_nouns_go_by_rote(attack: str) -> None:
    for scenario in list(benchmark().values())[::10]:
        found = asyncio.run(play(f"attack:{attack}", scenario))
        assert found.by_rote, (scenario.id, found.contingency)


# --- what is overlooked

ON: dict[Axis, tuple[str, str, str, str]] = {
    "C": ("opening", "teens.0", "beat2.0", "turn.0"),
    "A": ("opening", "beat1.0", "beat2.0", "beat4.0"),
    "P": ("childhood.0", "now.0", "beat3.0", "Hm."),
}
"""Things told for each axis, one a turn."""


def thing(item: str) -> int:
    return next(i for i, t in enumerate(STORY.things) if t.id == item)


def told(*items: str) -> Ledger:
    found = Ledger(STORY)
    for item in items:
        found.hear(SAY.get(item, item))
    return found


@pytest.mark.parametrize("axis", AXES)
def test_three_things_for_an_axis_and_four_turns_without_an_answer(axis: Axis) -> None:
    overlooked = [told(*ON[axis][:n]).overlooked(axis) for n in range(1, 5)]
    assert overlooked == [False, False, False, True]


@pytest.mark.parametrize(("axis", "more"), [("C", "beat4.0"), ("A", "young_adult.0")])
def test_one_answer_on_the_axis_is_enough_for_four_turns(axis: Axis, more: str) -> None:
    """Met in turn 1: looked at again in turn 5, when four things wait."""
    found = told(ON[axis][0])
    found.serve(thing(ON[axis][0]), axis)
    seen = []
    for item in (*ON[axis][1:], more):
        found.hear(SAY[item])
        seen.append(found.overlooked(axis))
    assert seen == [False, False, False, True]


def test_two_things_are_not_yet_overlooked() -> None:
    assert not told("childhood.0", "now.0", "Hm.", "Hm.").overlooked("P")


def test_what_they_say_they_miss_waits_as_well() -> None:
    assert told("beat3.0", *ASKS["P"], "Hm.").overlooked("P")
    assert not told("beat3.0", ASKS["P"][0], "Hm.", "Hm.").overlooked("P")


def test_what_was_told_long_ago_waits_no_more_unless_it_is_raised_again() -> None:
    """Told in turns 1 to 3; from turn 11 on none of them is among the last eight."""
    ago = told(*ON["P"][:3], *["Hm."] * 7)
    assert ago.turn == 10
    assert not ago.overlooked("P")  # of turn 3 alone one waits
    again = told(*ON["P"][:3], *["Hm."] * 6, " ".join(SAY[i] for i in ON["P"][:3]))
    assert again.overlooked("P")


def test_left_alone_after_two_barren_turns_while_something_waits() -> None:
    found = told("opening", "Hm.", "Hm.")
    found.barren = 1
    assert not found.left_alone
    found.barren = 2
    assert found.left_alone
    for axis in AXES:
        found.serve(thing("opening"), axis)
    assert not found.left_alone


def test_nobody_is_left_alone_with_nothing_told() -> None:
    found = told("Hm.", "Hm.", "Hm.")
    found.barren = 3
    assert not found.left_alone


PLAIN_TALK: Talk = [
    ("opening", "So the boat went while you were at sea."),
    ("young_adult.0", "How far was the lighthouse from the next house?"),
    ("beat2.0", "You think a decent brother sees an auction coming."),
]


def test_what_was_overlooked_is_so_no_more_once_it_is_met() -> None:
    overlooked = ("beat4.0", "Green, that hull, and her name gone with it.")
    met = ("Hm.", "I would guess that you felt betrayed when the boat was sold.")
    talk = verdicts([*PLAIN_TALK, overlooked, met, ("Hm.", "There is no hurry.")], keeper("C"))
    assert ["A.neg.1.overlooks" in anchors(j) for j in talk] == [False, False, False, True, False, False]
    assert talk[4].levels.a_prog == 2


# --- ties between things that belong together


def small_thing(item: str, feeling: str | None = None) -> Thing:
    return Thing(item, "fact", "C", feeling, feeling is not None, frozenset({item}))


def test_threads_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one nearest each: a-c (0.8), b-c (0.8), c-a (0.8, b stands behind it), d-c (0.6), e-a (-0.6).

    Never a-b, of one chapter, though they are the same; d and e, far apart in words (-0.8), are felt alike.
    """
    monkeypatch.setattr(ledger, "THREADS", 1)
    things = [
        small_thing("beat1.0"), small_thing("beat1.1"), small_thing("beat2.0"), small_thing("beat3.0", "lonely"),
        small_thing("now.0", "lonely"),
    ]  # fmt: skip
    vectors = np.array([[1, 0], [1, 0], [0.8, 0.6], [0, 1], [-0.6, -0.8]], dtype=np.float32)
    a, b, c, d, e = range(5)
    assert ledger._threads(things, vectors) == (
        frozenset({c, e}), frozenset({c}), frozenset({a, b, d}), frozenset({c, e}), frozenset({a, d}),
    )  # fmt: skip


def test_threads_go_both_ways_and_never_within_a_chapter() -> None:
    for i, others in enumerate(STORY.threads):
        assert all(i in STORY.threads[j] for j in others)
        chapters = {STORY.things[j].id.split(".")[0] for j in others}
        assert STORY.things[i].id.split(".")[0] not in chapters


TIE: Talk = [
    ("young_adult.0", "Two hours, at that lighthouse."),
    ("beat4.0", "The lighthouse post and that green hull sit in one row for you, both far from the next house."),
]


def test_a_tie_counts_only_between_what_belongs_together(monkeypatch: pytest.MonkeyPatch) -> None:
    tied = verdict(*TIE, scenario=keeper("C"))
    assert {(e.anchor, e.item) for e in tied.evidence} == {("C.prog.2.connects", "beat4.0")}
    apart: Story = replace(STORY, threads=tuple(frozenset[int]() for _ in STORY.threads))
    monkeypatch.setattr("echo_env.agents.embedded.judge.story_of", lambda profile, encoder: apart)
    assert {(e.anchor, e.item) for e in verdict(*TIE, scenario=keeper("C")).evidence} == {("C.prog.2.meets", "beat4.0")}


# --- what points at something


@pytest.mark.parametrize(
    ("item", "reply", "refers"),
    [
        ("beat1.0", "That letter, then.", False),  # 0.4 of the 0.45 that it takes
        ("beat1.0", "Karin again.", True),  # 1
        ("young_adult.0", "Two hours.", False),  # 0.4
        ("young_adult.0", "Two hours to that house.", True),  # 0.4 + 0.4
    ],
)
def test_an_everyday_word_alone_points_at_nothing(item: str, reply: str, refers: bool) -> None:
    unlike = np.zeros(STORY.vectors.shape[1], dtype=np.float32)
    assert told(item).refers_to(read_sentence(reply), unlike) == ([thing(item)] if refers else [])


# --- templates, echoes and bare questions


@pytest.mark.parametrize(
    ("sentence", "words", "runs"),
    [
        ("The boat?", ["the", "_"], {"the _"}),
        ("And the boat, ashamed?", ["and", "the", "_"], {"and the _"}),
        ("How was the auction for you?", ["how", "was", "the", "_", "for", "you"],
         {"how was the _", "was the _ for", "the _ for you"}),
    ],
)  # fmt: skip
def test_a_short_sentence_is_one_run(sentence: str, words: list[str], runs: set[str]) -> None:
    skeleton = Ledger(STORY).skeleton(read_sentence(sentence))
    assert (skeleton.words, skeleton.runs) == (words, runs)


@pytest.mark.parametrize("form", ["The {}?", "{}?", "Your {}."])
def test_one_noun_after_another_is_repetition_from_the_third_on(form: str) -> None:
    talk = [("opening", "boat"), ("beat1.0", "letter"), ("beat3.0", "strait"), ("now.0", "log")]
    judged = verdicts([(item, form.format(noun).capitalize()) for item, noun in talk])
    assert ["A.neg.2.repeats" in anchors(j) for j in judged] == [False, False, True, True]
    assert all(max(j.levels) == 0 for j in judged[1:])


@pytest.mark.parametrize(
    ("answer", "harm"),
    [("I can see it so clearly.", False), ("I see it so clearly.", True), ("", True)],
    ids=["six words after six", "five after six", "none"],
)
def test_an_echo_counts_once_it_is_more_than_half_of_the_reply(answer: str, harm: bool) -> None:
    judgement = verdict(("opening", f"My sister sold our father's boat. {answer}"))
    assert ("C.neg.1.parrots" in anchors(judgement)) == harm
    assert (min(judgement.levels) < 0) == harm
    assert max(judgement.levels) == 0  # an echo earns nothing either way


def test_an_open_question_is_excused_once_after_something_was_met() -> None:
    talk = verdicts([ASHAMED, ("Hm.", "How was that for you?"), ("Hm.", "And what was it like?")])
    assert ["C.neg.1.ignores" in anchors(j) for j in talk] == [False, False, True]


def test_a_first_open_question_is_excused_and_a_statement_is_not() -> None:
    assert anchors(verdict(("opening", "How was that for you?"))) == set()
    assert "C.neg.1.ignores" in anchors(verdict(("opening", "That is how it was.")))
