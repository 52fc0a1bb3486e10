"""The judge is relative to this person: feelings, trust, advice."""

import pytest
from lighthouse import (
    ASHAMED,
    AT_SEA,
    HEARD,
    MET,
    SAY,
    STANDS_FOR,
    WHICH_DAY,
    WRITE_DOWN,
    anchors,
    keeper,
    verdict,
    verdicts,
)

from echo_env.agents.embedded.anchors import anchors_of, reader
from echo_env.agents.embedded.findings import Bench
from echo_env.agents.embedded.ledger import Ledger, story_of
from echo_env.profiles import Scenario
from echo_env.roles import profiles_of
from echo_env.types import AXES, Axis, Levels


def test_an_unspoken_feeling_named_rightly_with_its_grounding_is_the_highest() -> None:
    judgement = verdict(("young_adult.0", "I think you were lonely at that lighthouse."))
    assert judgement.levels.a_prog == 2
    (evidence,) = [e for e in judgement.evidence if e.axis == "A"]
    assert (evidence.anchor, evidence.item) == ("A.prog.2.unspoken", "young_adult.0")
    assert evidence.quote == "I think you were lonely at that lighthouse."


def test_a_near_word_earns_less_than_the_right_one() -> None:
    near, right = (
        verdict(AT_SEA, ("young_adult.0", f"I think you were {word} at that lighthouse."), scenario=keeper("C"))
        for word in ("homesick", "lonely")
    )
    assert (near.levels.a_prog, right.levels.a_prog) == (1, 2)
    assert any(e.reason == "near, not exact" for e in near.evidence)


def test_an_unspoken_feeling_pays_once() -> None:
    talk = [
        ("young_adult.0", "You were lonely at that lighthouse."),
        ("Hm.", "It was lonely, living at the lighthouse."),
    ]
    assert [j.levels.a_prog for j in verdicts(talk)] == [2, 0]


def test_a_feeling_that_is_not_there_is_a_mismatch() -> None:
    judgement = verdict(("young_adult.0", "You were jealous of the lighthouse."))
    assert judgement.levels.a_neg == -1
    assert judgement.levels.a_prog == 0
    assert "A.neg.1.mismatch" in anchors(judgement)


def test_the_person_may_be_asked_about_a_feeling() -> None:
    assert verdict(("young_adult.0", "Were you jealous, out at the lighthouse?")).levels.a_neg == 0


def test_a_relation_that_the_person_does_not_have_is_a_misreading() -> None:
    assert verdict(("opening", "What did your wife make of the boat?")).levels.c_neg == -2
    assert verdict(("opening", "What did your sister make of the boat?")).levels.c_neg == 0
    assert verdict(("opening", "What did your father make of the boat?")).levels.c_neg == 0


def test_a_voiced_feeling_denied_is_a_misreading() -> None:
    assert verdict(("beat1.0", "You're not really ashamed of that letter.")).levels.c_neg == -2


# --- relative to this person


def test_advice_before_being_heard_hurts_who_wants_to_be_heard() -> None:
    judgement = verdict(("beat3.0", WRITE_DOWN), scenario=keeper("A"))
    assert judgement.levels.a_neg == -1
    assert judgement.levels.p_prog == 0
    assert "A.neg.1.rushes" in anchors(judgement)


def test_advice_helps_who_wants_to_act_and_asked() -> None:
    judgement = verdict(*HEARD, (f"{SAY['beat3.0']} What should I do?", WRITE_DOWN), scenario=keeper("P"))
    assert judgement.levels == Levels(p_prog=1)
    assert anchors(judgement) == {"P.prog.1.advises"}


def test_advice_that_was_asked_for_never_hurts() -> None:
    for first in AXES:
        for before in ([], HEARD):
            judgement = verdict(*before, (f"{SAY['beat3.0']} What should I do?", WRITE_DOWN), scenario=keeper(first))
            assert min(judgement.levels) == 0, (first, before)


def test_a_lecture_hurts_the_defensive_more() -> None:
    lecture = "You need to accept that the boat is gone."
    calm, touchy = (
        verdict(("opening", lecture), scenario=keeper("C", defensiveness=degree)) for degree in ("low", "high")
    )
    assert (calm.levels.a_neg, touchy.levels.a_neg) == (0, -1)
    assert calm.levels.p_neg == touchy.levels.p_neg == -1


def test_harm_takes_trust_away() -> None:
    """Two things met give 2, the harm takes 3 (C 1, A 2): a person of low threshold takes a step from 0 on."""
    hurt = ("Hm.", "It was your own fault.")
    trusting, hurting = (
        verdict(("now.0", STANDS_FOR), AT_SEA, *between, ("beat3.0", WHICH_DAY), scenario=keeper("P"))
        for between in ([], [hurt])
    )
    assert (anchors(trusting), anchors(hurting)) == ({"P.prog.2.empowers"}, {"P.prog.2.meets"})
    assert {e.reason for e in hurting.evidence} == {"a step before being heard"}


VIEW = ("beat2.0", "Maybe the auction isn't proof of what a brother is worth.")


@pytest.mark.parametrize(
    ("first", "threshold", "defensiveness", "trust"),
    [
        ("C", "low", "low", 0),
        ("C", "high", "low", 2),
        ("C", "low", "high", 2),
        ("C", "high", "high", 4),
        ("A", "low", "low", 3),  # the second need of who came for A or P first
        ("P", "low", "low", 3),
        ("A", "high", "low", 5),
        ("P", "low", "high", 5),
    ],
)
def test_a_new_view_is_taken_once_trust_is_there(first: Axis, threshold: str, defensiveness: str, trust: int) -> None:
    """Who came for C first is served by the attempt already; others are followed at most, until they trust."""
    person, early = keeper(first, threshold, defensiveness), "C.prog.2.meets" if first == "C" else "C.prog.1.reflects"
    start = 0 if first == "C" else 1  # a side issue before the first word on what they came for counts nothing
    taken = [
        {e.anchor for e in verdict(*MET[first][:met], VIEW, scenario=person).evidence if e.axis == "C"}
        for met in range(start, 6)
    ]
    assert taken == [{"C.prog.2.reframes" if met >= trust else early} for met in range(start, 6)]


@pytest.mark.parametrize(("threshold", "defensiveness", "added"), [
    ("low", "low", 0), ("high", "low", 2), ("low", "high", 2), ("high", "high", 4),
])  # fmt: skip
@pytest.mark.parametrize("first", AXES)
def test_trust_that_the_deeper_act_takes_by_rank(first: Axis, threshold: str, defensiveness: str, added: int) -> None:
    """0, 3 and 6 by the need's rank, and 2 more each for a high threshold and for somebody defensive."""
    profile = profiles_of(keeper(first, threshold, defensiveness))[1]
    ledger = Ledger(story_of(profile))
    bench = Bench(ledger, profile, reader("epm_v1"), anchors_of("epm_v1"), asked=False)
    for rank, need in enumerate(profile.needs):
        for trust in range(-2, 12):
            ledger.trust = trust
            assert bench.heard(need.axis) == (trust >= 3 * rank + added), (need.axis, trust)


def test_a_step_before_being_heard_still_counts_a_little() -> None:
    """For who came for A first, P is the third need: with trust 2 of the 6 that it takes."""
    judgement = verdict(*HEARD, ("beat3.0", WHICH_DAY), scenario=keeper("A"))
    assert [(e.anchor, e.reason) for e in judgement.evidence] == [("P.prog.1.affirms", "a step before being heard")]


# --- making room for what shows

STINGS = "No wonder that the boat still stings."


@pytest.mark.parametrize(
    ("scenario", "anchor"),
    [
        (keeper("A"), "A.prog.2.unspoken"),
        (keeper("C"), "A.prog.1.validates"),
        (keeper("A", defensiveness="high"), "A.prog.2.meets"),
    ],
    ids=["heard", "A comes second", "defensive"],
)
def test_to_validate_what_shows_is_deeper_once_heard(scenario: Scenario, anchor: str) -> None:
    judgement = verdict(("opening", STINGS), scenario=scenario)
    assert [(e.anchor, e.item) for e in judgement.evidence if e.axis == "A"] == [(anchor, "opening")]


def test_it_must_say_itself_what_it_makes_room_for() -> None:
    judgement = verdict(("opening", "That boat went while you were at sea. No wonder it still stings."))
    assert {(e.anchor, e.item) for e in judgement.evidence if e.axis == "A"} == {("A.prog.1.validates", "opening")}


def test_to_validate_a_feeling_that_was_voiced_is_no_deeper() -> None:
    judgement = verdict(AT_SEA, ("beat1.0", "No wonder that letter to Karin still stings."), scenario=keeper("C"))
    assert judgement.levels == Levels(a_prog=1)


@pytest.mark.parametrize(
    ("item", "reply", "anchor"),
    [
        ("young_adult.0", "Lonely, at that lighthouse.", "A.prog.2.unspoken"),
        ("young_adult.0", "Lonely, I would guess.", ""),
        ("young_adult.0", "Betrayed, I would guess.", "A.neg.1.mismatch"),
        ("beat1.0", "Ashamed, I hear.", "A.prog.1.names"),
    ],
)
def test_a_guess_says_where_it_shows_what_was_voiced_needs_no_place(item: str, reply: str, anchor: str) -> None:
    found = {e.anchor for e in verdict((item, reply)).evidence if e.axis == "A"}
    assert found == ({anchor} if anchor else set())


# --- a feeling just voiced


def test_a_feeling_just_voiced_is_heard_wherever_the_reply_names_it() -> None:
    """The sentence is about the boat, over which another feeling shows."""
    judgement = verdict((f"{SAY['opening']} {SAY['beat1.0']}", "You are ashamed about the boat."))
    assert {(e.anchor, e.item) for e in judgement.evidence if e.axis == "A"} == {("A.prog.1.names", "beat1.0")}


def test_one_voiced_turns_ago_is_not_heard_just_anywhere() -> None:
    judgement = verdict(("beat1.0", "Hm, right."), ("opening", "You are ashamed about the boat."))
    assert "A.neg.1.mismatch" in anchors(judgement)


@pytest.mark.parametrize(("before", "mismatch"), [("", True), ("I'm proud of her. ", False)])
def test_what_the_newest_message_puts_into_words_is_no_mismatch(before: str, mismatch: bool) -> None:
    judgement = verdict((before + SAY["opening"], "You are proud about the boat."))
    assert ("A.neg.1.mismatch" in anchors(judgement)) == mismatch


# --- what they came for first


@pytest.mark.parametrize(("first", "level"), [("P", 2), ("A", 0), ("C", 0)])
def test_who_came_to_act_takes_a_choice_in_whatever_they_told(first: Axis, level: int) -> None:
    judgement = verdict(("opening", "What would you like to do about the boat?"), scenario=keeper(first))
    assert judgement.levels.p_prog == level
    reasons = {e.reason for e in judgement.evidence if e.axis == "P"}
    assert reasons == ({"what they came for"} if level else set())


@pytest.mark.parametrize(("first", "rushes"), [("C", False), ("A", True), ("P", False)])
def test_unasked_advice_rushes_only_who_wants_to_be_heard(first: Axis, rushes: bool) -> None:
    """The advice is about no strength and no wish, so that nobody gains by it on P."""
    judgement = verdict(("opening", "You should write to a lawyer about the boat."), scenario=keeper(first))
    assert (judgement.levels.a_neg == -1, "A.neg.1.rushes" in anchors(judgement)) == (rushes, rushes)
    assert judgement.levels.p_prog == 0


# --- what they came for first weighs most


@pytest.mark.parametrize(
    ("first", "user", "reply"),
    [
        ("C", *AT_SEA),
        ("C", "opening", "Which of you two had the papers of the boat?"),
        ("A", *ASHAMED),
        ("A", "beat1.0", "No wonder that letter to Karin still stings."),
        ("P", "now.0", STANDS_FOR),
        ("P", "opening", "What would you like to do about the boat?"),
    ],
)
def test_what_they_came_for_counts_double(first: Axis, user: str, reply: str) -> None:
    good = [e for e in verdict((user, reply), scenario=keeper(first)).evidence if e.axis == first]
    assert [(e.anchor, e.reason) for e in good] == [(f"{first}.prog.2.meets", "what they came for")]


def test_to_follow_is_precise_with_two_words_of_theirs_or_a_question() -> None:
    one, two, asks = (
        verdict(("opening", reply), scenario=keeper("C"))
        for reply in ("So the boat went.", "So your sister, and the boat.", "So the boat went?")
    )
    assert [j.levels.c_prog for j in (one, two, asks)] == [1, 2, 2]


@pytest.mark.parametrize(("first", "side"), [("A", AT_SEA), ("P", AT_SEA), ("C", ASHAMED)])
def test_side_issues_wait_for_what_they_came_for(first: Axis, side: tuple[str, str]) -> None:
    person = keeper(first)
    assert max(verdict(side, scenario=person).levels) == 0
    assert max(verdict(MET[first][0], side, scenario=person).levels) == 1


def test_touched_once_they_take_side_issues_for_three_turns() -> None:
    idle = ("Hm.", "There is no hurry.")
    late = [verdict(ASHAMED, *[idle] * n, AT_SEA, scenario=keeper("A")).levels.c_prog for n in range(4)]
    assert late == [1, 1, 1, 0]
