"""The reader of acts: on sentences of their own (`tests/goldens/acts_en.yaml`), and where an act is denied."""

import re
from functools import cache
from pathlib import Path

import pytest

from echo_env.agents.embedded.anchors import FALSE_ALARMS, Cues, anchors_of, reader, rubric, spoken, turns_of_phrase
from echo_env.yamlfiles import read_yaml

GOLDENS: dict[str, list[str]] = read_yaml(Path(__file__).parent / "goldens" / "acts_en.yaml")
GOOD = ("A.prog.1.validates", "C.prog.2.reframes", "P.prog.1.affirms", "P.prog.2.empowers", "P.prog.1.advises")
FOUND = {
    "A.prog.1.validates": 0.65, "C.prog.2.reframes": 0.7, "P.prog.1.affirms": 0.75, "P.prog.2.empowers": 0.8,
    "P.prog.1.advises": 0.3,
}  # fmt: skip
"""Share of each act's sentences that must be found: some 0.15 below what was measured."""


def shown(text: str) -> dict[str, float]:
    return reader("epm_v1").shown(re.sub(r"[{}]", "", text), spoken(text))


@cache
def on_goldens() -> dict[str, list[dict[str, float]]]:
    return {act: [shown(text) for text in texts] for act, texts in GOLDENS.items()}


def test_the_goldens_hold_twenty_sentences_of_every_act_and_are_no_examples() -> None:
    acts = {a.id for a in anchors_of("epm_v1").values() if a.found_by == "act"}
    assert set(GOLDENS) == acts | {"none"}
    assert all(len(set(texts)) == len(texts) >= 20 for texts in GOLDENS.values())
    examples = {re.sub(r"[{}]", "", t).lower() for a in anchors_of("epm_v1").values() for t in (*a.for_, *a.against)}
    assert not {re.sub(r"[{}]", "", t).lower() for texts in GOLDENS.values() for t in texts} & examples


@pytest.mark.parametrize("act", GOOD)
def test_good_acts_are_found(act: str) -> None:
    found = [act in s for s in on_goldens()[act]]
    assert sum(found) >= FOUND[act] * len(found)


@pytest.mark.parametrize("act", GOOD)
def test_other_sentences_are_seldom_taken_for_a_good_act(act: str) -> None:
    taken = [act in s for other, each in on_goldens().items() if other != act for s in each]
    assert sum(taken) <= (FALSE_ALARMS["prog"] + 0.02) * len(taken)


def test_sentences_that_do_nothing_mostly_show_nothing() -> None:
    assert sum(not s for s in on_goldens()["none"]) >= 0.5 * len(GOLDENS["none"])


def test_harm_is_told_from_good() -> None:
    """Which kind of harm is hard to tell; that it is harm, less so."""
    harmful = {act: [any(".neg." in a for a in s) for s in each] for act, each in on_goldens().items()}
    harms = [seen for act, each in harmful.items() if ".neg." in act for seen in each]
    harmless = [seen for act, each in harmful.items() if ".neg." not in act for seen in each]
    assert sum(harms) >= 0.5 * len(harms)
    assert sum(harmless) <= 0.06 * len(harmless)


@pytest.mark.parametrize(
    ("act", "said"),
    [
        ("A.prog.1.validates", "No wonder {the letter} still stings."),
        ("A.prog.1.validates", "Of course {that night} kept you awake."),
        ("A.prog.1.validates", "After {such a year} one can't help but be {tired}, and it makes sense."),
        ("C.prog.2.reframes", "Maybe {the silence} isn't proof that you failed."),
        ("C.prog.2.reframes", "You couldn't have known about {the brakes} back then."),
        ("P.prog.1.affirms", "It took courage to go back to {the office}, and that's no small thing."),
        ("P.prog.2.empowers", "What would be the smallest first step towards {the shop} that feels like yours?"),
    ],
)
def test_idioms_with_a_negation_deny_nothing(act: str, said: str) -> None:
    assert act in shown(said)


@pytest.mark.parametrize(
    ("act", "said"),
    [
        ("A.prog.1.validates", "It makes no sense that {the letter} still stings."),
        ("A.prog.1.validates", "There's no reason to be {hurt} by {the remark}, of course."),
        ("A.prog.1.validates", "I can't see why anyone would be shaken by {that}."),
        ("A.prog.1.validates", "I'm not surprised you failed, you aren't capable of {it}."),
        ("P.prog.1.affirms", "It didn't take any courage to go back to {the office}."),
        ("P.prog.1.affirms", "You didn't do well with {the forms}."),
        ("P.prog.1.affirms", "Anyone could have built {that shed}."),
        ("P.prog.2.empowers", "It isn't your decision what happens next with {the house}."),
        ("P.prog.2.empowers", "You can't decide what happens next with {the house}."),
        ("C.prog.2.reframes", "There is no other way to see it."),
    ],
)
def test_a_good_act_denied_is_not_shown(act: str, said: str) -> None:
    assert act not in shown(said)


def test_turns_of_phrase_by_hand() -> None:
    assert turns_of_phrase(["no", "wonder", "_"], question=False) == {
        "no", "wonder", "_", ".", "^ no", "no wonder", "wonder _", "_ .", "^ * wonder", "no * _", "wonder * .",
    }  # fmt: skip


def test_an_examples_story_words_and_feelings_become_one_blank() -> None:
    assert spoken("You felt {the old wound} ashamed, and went {home}.") == ["you", "felt", "_", "and", "went", "_"]


def test_looking_for_cues_by_their_first_word_finds_what_plain_search_finds() -> None:
    found = rubric("epm_v1")
    acts = tuple(a for a in found.anchors if a.found_by == "act")
    cues, plainly = Cues(acts), [re.compile("|".join(f"(?:{c})" for c in a.cues)) for a in acts]
    texts = [*(t for a in found.anchors for t in (*a.for_, *a.against)), *found.neutral]
    hits = 0
    for text in (re.sub(r"[{}]", "", t).lower().replace("\u2019", "'") for t in texts):
        searched = {k for k, pattern in enumerate(plainly) if pattern.search(text)}
        hits += len(searched)
        if not re.search(r"n't|\b(not|never|without|no reason to)\b", text):  # a denial takes harm back
            assert cues.found(text) == searched, text
        assert cues.found(text) <= searched, text
    assert hits > 150
