"""What a supporter's sentence does, told from the sentence alone: for talk without a profile.

Anchors, cues and examples are those of `sim_profiles/rubrics/open_v1.yaml`. Cues decide; a sentence without one goes by
its likeness to the examples. Structure adds what no word list can: who the sentence is about, and whether it asks.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from echo_env.agents.embedded.anchors import anchors_of, reader
from echo_env.agents.embedded.language import Sentence, lexicon, plain, read_sentence

RUBRIC = "open_v1"

_STANCE = re.compile(
    r"\b(i|we)(('d| would| would have|'ll| will)? (just |really |also |personally |strongly |highly |honestly |truly |do |can |only |still |would )*"
    r"(think|guess|suggest|recommend|advise|believe|hope|wish|bet|mean|promise|say|assume|suppose|imagine|doubt|agree|disagree|wonder|trust|swear|encourage"
    r"|love you|care|know (you|that you|it's|its|it is|this|a |some|people|lots)|don't (know|think|want you|understand|see why|believe|mean)|dont (know|think)|see|read|saw|heard|want you|need you|would( not)? (be|go|try|say|do|start|look)"
    r"|can (tell|see|say|assure|promise|offer|help|try|give)|am (here|sorry|sure|glad|happy for|proud|not sure|a bot|no expert|not a|always here)|'m (here|sorry|sure|glad|happy for|proud|not sure|a bot|no expert|not a|always here|just saying)|'d|'ll)\b)"
)
"""How a speaker takes a stand, offers or advises in the first person: not a word about their own life."""
_FIRST = re.compile(r"\b(i|i'm|im|i've|ive|i'd|i'll|me|my|mine|myself|we|we're|us|our)\b")
_SECOND = re.compile(r"\b(you|you're|youre|you've|you'd|you'll|your|yours|yourself|u|ur|op)\b")
_ADVICE_Q = re.compile(
    r"\b(have|has|did|ever|had) (you|u|ya) (ever |already |even |not |actually |really )*(tried|try|considered|consider|thought (about|of)|looked into|seen a|been to a|talked to (a|your|any|someone)|spoken|reached|gone to a|heard of|checked)\b"
    r"|\bwhy (don't|dont|not|wouldn't|can't) (you |u )?(just |try |maybe |not )*(try|go|call|talk|see|take|do|get|make|start|find|join|ask|look|move|leave|tell)\b|\b(how|what) about\b|\bwhat if you\b|\b(could|can|would|will|should) you (not |maybe |try|please|just|consider|talk|get|go|see|call|ask|reach|find)|\bmaybe\b|\btried \w+ing\b"
)
_OFFER_Q = re.compile(
    r"\b(want|wanna|need|like|care|down|wish) (to |a |some |someone )*(talk|chat|vent|pm|help|hug|friend|company|listen|share a|message|discuss|hang)|\b(can|may|could|how|what) (can |may |could )?(i|we) (be )?(of )?(any )?(help|assist|do for)\w*|\bmind if\b"
)
_RHETORIC_Q = re.compile(
    r"\b(right|yeah|huh|eh|ok|okay|isn't it|don't you think|you know|know what i mean|doesn't it|isn't that|who cares|who knows|so what|am i right|why (would|should) (i|we|anyone)|who doesn't|what's the point|you know what|guess what|how (can|could|do|should|would) (i|we)|should (i|we)|(do|am|did|was|can|will|would) i\b|what (do|can|should|am|did) (i|we))[ ,a-z]{0,8}\?|\bmuch\?"
)
_WH = re.compile(
    r"^(so |and |but |or |well |also |hey |ok |okay |hi |yeah |oh |wait |dude |man |bro |sorry |hmm |wow )*(,? ?)(what|what's|whats|why|how|hows|how's|when|where|who|which|whose)\b"
)
_AUX = re.compile(
    r"\b(do|does|did|are|is|was|were|have|has|had|can|could|would|will|any|ever)(n't|nt)? (you|u|ya|your|ur|it|that|this|there|he|she|they|anyone|someone|family|friends|the)\b"
)
_BEGINS = re.compile(
    r"(^|, |\. |(and|but|so|then) )(what('s|s)?|whats|how|why|when|where|who) (are|is|was|were|do|does|did|have|has|kind|sort|seems?|happen\w*|about|made|makes|long|often|much|else|can|would)( \w+)? ?(you|u|your|it|that|this|to|happen\w*|wrong|going|the|on|of)?\b"
    r"|^(so |and |but |well |also |ok |okay |oh )*(do|does|did|are|is|was|were|have|has|had|any|anything|would) (you|u|your|it|he|she|they|there|this|that|family|friends)\b"
)
"""How a question begins where nobody typed its mark."""
_ELLIPTIC = re.compile(
    r"^(why|how come|how so|what happened|whats? (up|wrong)|like what|what's (up|wrong|going on|happening)|who|where|when|since when|such as|about what|in what way)\b"
)
_GENERIC = frozenset(
    "what what's whats why how when happen happened happening happens wrong up going on feel feeling feels bother bothering bothered"
    " think thinking mind matter make makes made you're tell talk more elaborate explain details detail say want wants help need"
    " share sharing about problem problems going something anything everything exactly specifically bad way today now lately"
    " so and but hey well okay ok hi friend buddy man dude bro mate op please little bit us me it it's its that this that's"
    " is are am was do does did you your u can could would will be been feel like sad down depressed give on info information know"
    " hello hi hey there doing good morning evening day week night holding days going i'm please ya u ur more ok sorry hear to"
    " the a an to of in i'm here still anyway mean there happening really cause caused".split()
)
_TELL_ME = re.compile(
    r"\b(tell (me|us)|talk) (a (little|bit) |some |a little bit |a bit )?(more|about (it|that|what))\b|\b(could|can|would) you (please )?(elaborate|explain|share|give|expand|tell)\b|\bcare to (elaborate|share|explain)\b|\bcurious\b.{0,40}\b(what|why|how)\b|\b(wondering|wonder) (how|what|why|if you)\b"
)


@dataclass(frozen=True, slots=True)
class Act:
    """One thing that a sentence does."""

    anchor: str
    quote: str


def acts_of(sentence: Sentence) -> list[Act]:
    """Return what a sentence does, at most one act an axis."""
    text = plain(sentence.text)
    found = []
    question = question_act(sentence)
    if question:
        found.append(Act(question, sentence.text))
    cued = _cued(text)
    scores = reader(RUBRIC).shown(sentence.text, [w for w in sentence.words if w not in lexicon().feeling_of])
    warm = _warmth(text, cued, scores)
    if warm:
        found.append(Act(warm, sentence.text))
    if "A.neg.1.dismisses" in cued:
        found.append(Act("A.neg.1.dismisses", sentence.text))
    if not question:
        known = _understanding(text, cued, scores)
        if known:
            found.append(Act(known, sentence.text))
    return found


def _cued(text: str) -> set[str]:
    r = reader(RUBRIC)
    return {r.acts[k].id for k in r.cues.found(text)}


def _warmth(text: str, cued: set[str], scores: dict[str, float]) -> str:
    for anchor in ("A.prog.2.cares", "A.prog.1.wishes"):
        if anchor in cued or scores.get(anchor, 0.0) >= LIKE:
            return anchor
    return ""


LIKE = 0.5
"""Score from which likeness to the examples alone is enough."""


def _understanding(text: str, cued: set[str], scores: dict[str, float]) -> str:
    own = _FIRST.search(text) is not None and not _STANCE.search(text)
    if "C.prog.2.relates" in cued and not _STANCE.search(text):
        return "C.prog.2.relates"
    if own and len(text.split()) >= 4 and not _SECOND.search(text):
        return "C.prog.2.relates"
    if scores.get("C.prog.2.relates", 0.0) >= LIKE:
        return "C.prog.2.relates"
    if "C.prog.1.understands" in cued or scores.get("C.prog.1.understands", 0.0) >= LIKE:
        return "C.prog.1.understands"
    return ""


def question_act(sentence: Sentence) -> str:
    """Return which kind of question about the person a sentence is; "" for none.

    Advice in the form of a question, an offer to talk, and a rhetorical question ask nothing about the person.
    """
    text = plain(sentence.text).strip()
    told = _TELL_ME.search(text) is not None
    begins = _BEGINS.search(text) is not None and len(sentence.words) <= 14
    if not sentence.question and not told and not begins:
        return ""
    if _ADVICE_Q.search(text) or _RHETORIC_Q.search(text) or (_OFFER_Q.search(text) and not told):
        return ""
    about = _SECOND.search(text) is not None or _WH.match(text) is not None or _ELLIPTIC.match(text) is not None
    if not about and not told and len(sentence.words) > 6:
        return ""
    if _FIRST.search(text) and not _SECOND.search(text):
        return ""
    specific = [w for w in sentence.words if w not in _GENERIC]
    return "P.prog.2.explores" if specific else "P.prog.1.invites"


def sentence_acts(text: str) -> list[Act]:
    """Return what one sentence of plain text does."""
    return acts_of(read_sentence(text))


def anchor_level(anchor: str) -> int:
    """Return the level of an anchor of the open rubric."""
    return anchors_of(RUBRIC)[anchor].level
