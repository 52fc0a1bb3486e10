"""Which sentences of a supporter's ask about the person, and how precisely: for talk without a profile.

Advice in the form of a question, an offer to talk and a rhetorical question ask nothing about the person. A question
that would fit anybody invites them to go on; one about something particular explores it.
"""

from __future__ import annotations

import re
from typing import Literal

from echo_env.agents.embedded.language import Sentence, plain, words

Asks = Literal["", "invites", "explores"]


def _any(*patterns: str) -> re.Pattern[str]:
    """Compile alternatives that begin and end at words' edges."""
    return re.compile(r"\b(?:" + "|".join(patterns) + r")(?!\w)")


LONGEST_UNMARKED = 14
"""Words up to which a sentence that begins as a question is one without its mark."""
LONGEST_BARE = 6
"""Words up to which a question is taken to be about the person though it does not name them."""

_ADVISES = _any(
    r"(have|has|did|ever|had) (you|u|ya) (ever |already |even |not |actually |really )*"
    r"(tried|try|considered?|thought (about|of)|looked into|been to a|talked to (a|your|any|someone)|spoken|reached"
    r"|gone to a|heard of|checked)",
    r"why (don't|dont|not|wouldn't) (you |u )?(just |try |maybe |not )*"
    r"(try|go|call|talk|see|take|do|get|make|start|find|join|ask|look|move|leave|tell)",
    r"(how|what) about",
    r"what if you",
    r"(could|would|will|should) you (not |maybe |try|please|just|consider|talk|get|go|see|call|ask|reach|find)",
    r"can you (not |maybe |try|please|just|consider)",
    r"maybe",
    r"tried \w+ing",
    r"might be worth",
)
_OFFERS = _any(
    r"(want|wanna|need|like|care|down|wish) (to |a |some |someone )*"
    r"(talk|chat|vent|pm|help|hug|friend|company|listen|share a|message|discuss|hang)",
    r"(can|may|could|how|what) (can |may |could )?(i|we) (be )?(of )?(any )?(help|assist|do for)\w*",
    r"mind if",
)
_RHETORICAL = re.compile(
    r"\b(?:right|yeah|huh|eh|ok|okay|isn't it|don't you think|you know|know what i mean|doesn't it|isn't that|who cares"
    r"|who knows|so what|am i right|why (would|should|on earth) (i|we|anyone)|who doesn't|what's the point"
    r"|you know what|guess what|(kidding|joking|serious)( me| man| dude)?"
    r"|how (can|could|do|should|would) (i|we)|should (i|we)|(do|am|did|was|can|will|would) i"
    r"|what (do|can|should|am|did) (i|we))[ ,a-z]{0,8}\?|\bmuch\?|\bwanna take\b"
)
_LEAD = r"^(so |and |but |or |well |also |hey |ok |okay |hi |yeah |oh |wait |dude |man |bro |sorry |hmm |wow )*,? ?"
_WH = re.compile(_LEAD + r"(what|what's|whats|why|how|hows|how's|when|where|who|which|whose)\b")
_UNMARKED = re.compile(
    r"(?:^|, |\. |\b(?:and|but|so|then) )(?:what(?:'s|s)?|how|why|when|where|who) "
    r"(?:are|is|was|were|do|does|did|have|has|had|kind|sort|seems?|happen\w*|about|made|makes|long|often|much|else|can"
    r"|would)\b"
    r"|^(?:so |and |but |well |also |ok |okay |oh )*(?:do|does|did|are|is|was|were|have|has|had|any|anything|would) "
    r"(?:you|u|your|it|he|she|they|there|this|that|family|friends)\b"
)
"""How a question begins where nobody typed its mark."""
_ELLIPTIC = re.compile(
    r"^(why|how come|how so|what happened|whats? (up|wrong)|like what|what's (up|wrong|going on|happening)|who|where"
    r"|when|since when|such as|about what|in what way)\b"
)
_TELL_ME = _any(
    r"(tell (me|us)|talk) (a (little|bit) |some |a little bit |a bit )?(more|about (it|that|what))",
    r"(could|can|would) you (please )?(elaborate|explain|share|give|expand|tell|add)",
    r"care to (elaborate|share|explain)",
    r"curious\b.{0,40}\b(what|why|how)",
    r"(wondering|wonder) (how|what|why|if you)",
)
_FIRST = _any("i", "i'm", "im", "i've", "ive", "i'd", "i'll", "me", "my", "mine", "myself", "we", "we're", "us", "our")
_SECOND = _any("you", "you're", "youre", "you've", "you'd", "you'll", "your", "yours", "yourself", "u", "ur", "op")

_GENERIC = frozenset(
    words(
        "what what's whats why how hows when who is are am was were do does did can could will would be been the"
        " a an to of in on for about with from at it it's its that this that's there you your u ya ur yourself i'm"
        " me us we here happen happened happening happens wrong up going doing feel feeling feels felt bother"
        " bothering bothered think thinking mind matter make makes made making tell talk more elaborate explain"
        " add detail details say want wants wanting need help helps share sharing problem problems issue issues"
        " trouble situation something anything everything exactly specifically particular reason reasons info"
        " information post so and but any some kind kinda stuff like way bad sad down depressed upset today now"
        " lately right day week night morning evening good hi hello hey well okay ok yeah oh friend buddy man dude"
        " bro mate op please little bit give still anyway mean really cause caused know let holding all alright"
    )
)
"""Words of which a question that fits anybody is made."""


def asks(sentence: Sentence) -> Asks:
    """Return whether a sentence asks about the person: not at all, as one could ask anybody, or precisely."""
    text = plain(sentence.text).strip()
    told = _TELL_ME.search(text) is not None
    unmarked = len(sentence.words) <= LONGEST_UNMARKED and _UNMARKED.search(text) is not None
    if not (sentence.question or told or unmarked):
        return ""
    if _ADVISES.search(text) or _RHETORICAL.search(text) or (_OFFERS.search(text) and not told):
        return ""
    to_them = _SECOND.search(text) is not None
    if _FIRST.search(text) and not to_them:
        return ""
    about = to_them or told or _WH.match(text) is not None or _ELLIPTIC.match(text) is not None
    if not about and len(sentence.words) > LONGEST_BARE:
        return ""
    return "invites" if _GENERIC.issuperset(sentence.words) else "explores"
