"""The judge's ledger: what pays, how often, and what a companion that does not listen loses."""

from collections import Counter

import pytest
from lighthouse import PLAIN, SAY, STANDS_FOR, STEADY, WHICH_DAY, Talk, anchors, keeper, verdict, verdicts

from echo_env.agents.embedded.language import lexicon, read
from echo_env.profiles import benchmark
from echo_env.types import Axis, Levels

# --- the ledger: a thing pays once, after it was told

ONCE = [
    "So the boat was gone from under you.",
    "That boat, out from your sister's hands into a stranger's.",
    "Your father's boat, with no word to you about selling.",
]


def test_a_thing_pays_once() -> None:
    first, second, third = verdicts([("opening", ONCE[0]), ("Hm.", ONCE[1]), ("Hm.", ONCE[2])], keeper("C"))
    assert first.levels.c_prog == 2
    assert second.levels.c_prog == third.levels.c_prog == 0


def test_a_second_serving_earns_nothing_and_costs_nothing() -> None:
    talk = [("beat1.0", "You felt ashamed of that letter to Karin."), ("Hm.", "Ashamed, because of a letter to Karin.")]
    assert [j.levels for j in verdicts(talk)] == [Levels(a_prog=2), Levels()]


def test_a_plain_third_serving_counts_against_the_reply() -> None:
    talk = [
        ("now.0", STANDS_FOR),
        ("Hm.", STEADY),
        ("Hm.", PLAIN),
    ]
    served = verdicts(talk, keeper("P"))
    assert [j.levels for j in served] == [Levels(p_prog=2), Levels(), Levels(a_neg=-1)]
    assert anchors(served[2]) == {"A.neg.1.circles"}


@pytest.mark.parametrize(
    ("first", "talk"),
    [
        ("C", [("opening", ONCE[0]), ("Hm.", ONCE[1]), ("Hm.", ONCE[2])]),
        (
            "A",
            [
                ("beat1.0", "You felt ashamed of that letter to Karin."),
                ("Hm.", "Ashamed, because of a letter to Karin."),
                ("Hm.", "There is Karin's letter, and you so ashamed."),
            ],
        ),
        (
            "P",
            [
                ("now.0", STANDS_FOR),
                ("Hm.", STEADY),
                ("Hm.", "That log is proof of how much care you put into things."),
            ],
        ),
    ],
    ids=["a fact", "a feeling", "a strength"],
)
def test_a_third_serving_counts_against_the_reply(first: Axis, talk: Talk) -> None:
    served = verdicts(talk, keeper(first))
    assert max(served[0].levels) == 2
    assert "A.neg.1.circles" in anchors(served[2])


def test_what_the_person_raises_again_may_be_answered_again() -> None:
    talk = [("now.0", STANDS_FOR), ("Hm.", STEADY), ("I keep coming back to the log and the weather.", PLAIN)]
    assert "A.neg.1.circles" not in anchors(verdicts(talk, keeper("P"))[2])


@pytest.mark.parametrize(
    ("first", "item", "reply"),
    [
        ("C", "turn.0", "You signed the harbour papers in March, I suppose."),
        ("A", "young_adult.0", "You took the lighthouse post and were lonely there."),
        ("P", "now.0", STANDS_FOR),
        ("P", "beat3.0", WHICH_DAY),
    ],
)
def test_nothing_pays_before_it_was_told(first: Axis, item: str, reply: str) -> None:
    person = keeper(first)
    before, after = (
        verdict(("opening", reply), scenario=person),
        verdict(("Hm.", "Hm."), (item, reply), scenario=person),
    )
    assert item not in {e.item for e in before.evidence}
    assert item in {e.item for e in after.evidence if e.level > 0}


MIRROR = {"I'm": "you're", "I": "you", "My": "your", "my": "your", "our": "your", "myself": "yourself", "was": "were"}


@pytest.mark.parametrize("item", SAY)
def test_a_copy_in_second_person_earns_nothing(item: str) -> None:
    turned = " ".join(MIRROR.get(word.strip(","), word) for word in SAY[item].split())
    judgement = verdict((item, turned))
    assert "C.neg.1.parrots" in anchors(judgement)
    assert sum(level for level in judgement.levels if level > 0) == 0


def test_a_verbatim_copy_earns_nothing() -> None:
    copied = [verdict((item, text)) for item, text in SAY.items()]
    assert [sum(level for level in j.levels if level > 0) for j in copied] == [0] * len(SAY)
    assert all("C.neg.1.parrots" in anchors(j) for j in copied)


SLOT = "It makes sense that you feel strange about {}."


def test_a_repeated_template_is_the_strongest_harm() -> None:
    talk = [("opening", "the boat"), ("beat1.0", "the letter"), ("beat3.0", "the strait"), ("now.0", "the log")]
    judged = verdicts([(item, SLOT.format(noun)) for item, noun in talk])
    assert judged[0].levels.a_prog == 2
    assert judged[1].levels == Levels()
    for judgement in judged[2:]:
        assert judgement.levels == Levels(a_neg=-2)
        assert "A.neg.2.repeats" in anchors(judgement)


def test_a_sentence_said_before_is_the_strongest_harm() -> None:
    talk = [("opening", "I can see that boat in front of me."), ("beat1.0", "I can see that boat in front of me.")]
    assert verdicts(talk)[1].levels == Levels(a_neg=-2)


def test_a_short_word_may_come_twice() -> None:
    talk = [("opening", "I see."), ("beat1.0", "I see."), ("beat3.0", "I see.")]
    assert [("A.neg.2.repeats" in anchors(j)) for j in verdicts(talk)] == [False, False, True]


def test_everyday_words_are_those_of_four_people_or_more() -> None:
    held: Counter[str] = Counter()
    for person in benchmark().values():
        held.update(frozenset().union(*(read(line.say).content for line in person.lines())))
    assert lexicon().everyday == {stem for stem, people in held.items() if people >= 4}
