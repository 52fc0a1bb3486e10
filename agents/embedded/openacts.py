"""What a supporter's sentence does, told from the sentence alone: for talk without a profile.

Anchors, cues and examples are those of `sim_profiles/rubrics/open_v1.yaml`. Cues decide; a sentence without one goes by
its likeness to the examples. Structure adds what no list of phrases can: whose life the sentence is about, and whether
it takes a stand rather than tells.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from echo_env.agents.embedded.anchors import reader
from echo_env.agents.embedded.language import Sentence, lexicon, plain
from echo_env.agents.embedded.openquestions import asks

RUBRIC = "open_v1"
LIKE = 0.5
"""Score of the reader from which likeness to the examples is enough by itself."""
LEAST_TOLD = 4
"""Words from which a sentence in the first person tells something of the speaker's life."""

_MANNER = r"(just |really |also |personally |strongly |highly |honestly |truly |do |can |only |still |would )*"
_STANCE = re.compile(
    r"\b(i|we)(('d| would| would have|'ll| will)? "
    + _MANNER
    + r"(think|guess|suggest|recommend|advise|believe|hope|bet|mean|promise|say|assume|suppose|imagine|doubt|agree"
    r"|disagree|wonder|trust|swear|encourage|love you|care|know (you|that you|it's|its|it is|this|a |some|people|lots)"
    r"|don't (think|want you|understand|see why|believe|mean)|dont think|see|read|saw|heard|want you|need you"
    r"|would( not)? (be|go|try|say|do|start|look)|can (tell|see|say|assure|promise|offer|help|try|give)"
    r"|am (here|sorry|sure|glad|happy for|proud|not sure|no expert|not a|always here)"
    r"|'m (here|sorry|sure|glad|happy for|proud|not sure|no expert|not a|always here|just saying)"
    r"|wish (you|u|i could (help|hug|do|be))|'d|'ll)\b)"
)
"""How a speaker takes a stand, offers or advises in the first person: not a word about their own life."""
_ADDRESSED = re.compile(
    r"\b(tell|trust|believe|message|pm|dm|text|let|excuse|forgive|pardon|ask|give|send|inbox|call|to|for) (me|us)\b"
    r"|\bmy (friend|dear|man|dude|guy|bad|english|opinion|advice|point|suggestion|prayers|thoughts|heart|love|best)\b"
)
"""Where the first person is only who is spoken to."""
_FIRST = re.compile(r"\b(i|i'm|im|i've|ive|i'd|i'll|me|my|mine|myself)\b")
_SECOND = re.compile(r"\b(you|you're|youre|you've|you'd|you'll|your|yours|yourself|u|ur|op)\b")
_JUDGES = re.compile(
    r"\b(that's|that is|thats|this is|it's|its|it is|sounds|how|pretty|so|very|really|absolutely|such|a|an|that|this|it"
    r"|must be|just|truly|fucking)( must be| sounds| really| does| just| is| so| a)* "
    r"(great|awesome|amazing|wonderful|fantastic|beautiful|lovely|incredible|impressive|sweet|adorable|brilliant|cool"
    r"|good news|brave of you|huge|progress|sucks?|sad|awful|terrible|horrible|heart ?breaking|rough|unfair"
    r"|shitty|bullshit|tough|tragic|painful)\b"
    r"|^(great|awesome|amazing|wonderful|fantastic|beautiful|lovely|yay|nice|cool|brilliant|woo|woohoo|hell yeah)"
    r"(?= ?[.!,:]|$)"
    r"|\bfuck (that|them|him|her|those)\b|\b(poor (you|girl|guy)|ouch|aww+|oh no|oh man|oh dear|damn|oof|yikes)\b"
)
"""Sympathy with what happened to them. In a sentence about the speaker's own life it is a complaint of theirs."""


@dataclass(frozen=True, slots=True)
class Act:
    """One thing that a sentence does."""

    anchor: str
    quote: str


def acts_of(sentence: Sentence) -> list[Act]:
    """Return what a sentence does, at most one good act an axis."""
    text = plain(sentence.text)
    question = asks(sentence)
    found = {
        f"P.prog.{1 if question == 'invites' else 2}.{question}" if question else "",
        *_felt(sentence, text, question != ""),
    }
    return [Act(anchor, sentence.text) for anchor in sorted(found) if anchor]


def _felt(sentence: Sentence, text: str, question: bool) -> set[str]:
    """Return what a sentence shows on axes A and C."""
    fitted = reader(RUBRIC)
    cued = {fitted.acts[k].id for k in fitted.cues.found(text)}
    kept = [w for w in sentence.words if w not in lexicon().feeling_of]
    sure = {anchor for anchor, score in fitted.shown(sentence.text, kept).items() if score >= LIKE}
    own = _own_life(text)
    found = {_warmth(text, cued | sure, own), "A.neg.1.dismisses" if "A.neg.1.dismisses" in cued else ""}
    return found if question else found | {_understanding(text, cued | sure, own)}


def _own_life(text: str) -> bool:
    """Whether a sentence tells of its speaker's own life."""
    return _FIRST.search(text) is not None and not _STANCE.search(text) and not _ADDRESSED.search(text)


def _warmth(text: str, shown: set[str], own: bool) -> str:
    if "A.prog.2.cares" in shown:
        return "A.prog.2.cares"
    return "A.prog.1.wishes" if "A.prog.1.wishes" in shown or (_JUDGES.search(text) and not own) else ""


def _understanding(text: str, shown: set[str], own: bool) -> str:
    told = own and len(text.split()) >= LEAST_TOLD and not _SECOND.search(text)
    if told or ("C.prog.2.relates" in shown and not _STANCE.search(text)):
        return "C.prog.2.relates"
    return "C.prog.1.understands" if "C.prog.1.understands" in shown else ""
