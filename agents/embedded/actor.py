"""The embedded actor: a person with a hidden state, a story that opens as they come to trust, and a voice.

The state moves by the person's own appraisal of a reply (`appraisal.appraise`), never by the judge's output: the two
can disagree. A message is one to three sentences: a reaction, then what they tell, hint at or dwell on. No message is
said twice in a conversation.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field
from functools import lru_cache

from echo_env.agents.embedded import chinese
from echo_env.agents.embedded.answers import (
    best_line,
    family_asked,
    index_of,
    is_open,
    lines_with,
    name_asked,
    personal_fact,
    place_of,
)
from echo_env.agents.embedded.appraisal import Appraisal, Moment, appraise
from echo_env.agents.embedded.cues import Fact
from echo_env.agents.embedded.language import Reading, called, joined, lexicon, plain, read, words
from echo_env.profiles import Line, data_root
from echo_env.roles import ActorProfile, ActorView, JudgeProfile, chapter_of
from echo_env.yamlfiles import read_yaml

NEEDS_TRUST = {
    "opening": 0.0, "now": 0.1, "beat1": 0.0, "beat2": 0.15, "beat3": 0.25, "beat4": 0.35,
    "young_adult": 0.2, "teens": 0.3, "childhood": 0.3, "turn": 0.5,
}  # fmt: skip
"""Trust from which a chapter is told."""
MAX_SENTENCES = 3
LEADS = 0.2
"""How often a person says that there is more before they tell it."""
PLAIN = 0.5
"""How often somebody who chats goes on without a word about the reply."""
_ODD = frozenset({"silence", "noise", "repeated", "parroted", "lectured"})
"""What one remarks on even in a chat."""

_ASKS = re.compile(
    r"\b(what (should|can|do|would) (i|you) do\b|any (advice|ideas)|how (do|can|should) i\b|help me)", re.IGNORECASE
)


def asks_for_help(message: str) -> bool:
    """Return whether somebody asks what to do."""
    return _ASKS.search(message) is not None


@lru_cache(maxsize=32)
def voice(language: str, register: str) -> dict[str, tuple[str, ...]]:
    """Return a register's reactions by kind, those of every register included."""
    data = read_yaml(data_root() / "voices" / f"{language}.yaml")
    own, shared = data.get(register, {}), data["any"]
    return {kind: (*own.get(kind, ()), *shared.get(kind, ())) for kind in {*own, *shared}}


@dataclass(frozen=True, slots=True)
class _Answer:
    """What a person says to a direct question."""

    parts: list[str]
    whole: bool = False
    """Whether it is all that they say: a fact needs no word about the question."""
    declines: bool = False
    repeats: bool = False
    """Whether it only points to what was told."""


@dataclass(slots=True)
class _Heart:
    """The hidden state. Nobody else reads it."""

    tension: float
    trust: float
    told: dict[str, Line] = field(default_factory=dict)
    hinted: set[str] = field(default_factory=set)
    content: set[str] = field(default_factory=set)
    """Content stems of everything told."""
    feelings: set[str] = field(default_factory=set)
    """Feelings about the things told."""
    unheard: dict[str, None] = field(default_factory=dict)
    """Ids of told lines that no reply has taken up warmly, oldest first: what a person comes back to."""


class EmbeddedActor:
    """Plays one conversation.

    Args:
        seed: Seed of the conversation; the same seed, profile and replies give the same messages.
    """

    id = "embedded-2"

    def __init__(self, seed: int) -> None:
        self._random = random.Random(f"actor:{seed}")
        self._heart: _Heart | None = None
        self._said: set[str] = set()
        self._companion: set[str] = set()
        self._used: dict[str, list[str]] = {}
        self._last = ""
        self._dwelt = 0
        self._answered: set[Fact] = set()
        self._language = "en"

    async def speak(self, view: ActorView) -> str:
        """Return the next message."""
        profile = view.profile
        if self._heart is None:
            self._language = profile.language
            self._heart = _first_heart(profile)
        if not view.history:
            opening = dict(profile.lines)["opening"]
            return self._say([self._tell(self._heart, "opening", opening)])
        reply = view.history[-1].reply
        appraisal = self._take_in(profile, reply)
        return self._say(self._compose(view, self._heart, appraisal))

    def _take_in(self, profile: ActorProfile, reply: str) -> Appraisal:
        heart = self._heart
        assert heart is not None
        moment = Moment(
            last=self._last,
            told=frozenset(heart.content),
            feelings=frozenset(heart.feelings),
            relations=relations_of(profile),
            earlier=frozenset(self._companion),
            story=_story(profile),
            wants_advice=profile.wants_help or bool(_ASKS.search(self._last) or chinese.ASKS_ADVICE.search(self._last)),
            language=profile.language,
        )
        appraisal = appraise(reply, moment)
        if profile.hopes:
            _move(heart, profile, appraisal)
        if appraisal.warmth > 0:
            taken_up = read(reply[:4000], profile.language).content
            contents = index_of(profile).contents
            for item in [i for i in heart.unheard if len(taken_up & contents[i]) >= 2]:
                del heart.unheard[item]
        self._companion.update([s.text.lower() for s in read(reply[:4000], profile.language).sentences])
        return appraisal

    def _compose(self, view: ActorView, heart: _Heart, a: Appraisal) -> list[str]:
        profile, cue = view.profile, view.cue
        if cue.act in ("close", "leave"):
            return [self._closing(profile) if cue.act == "close" else self._pick(profile, "leave")]
        if not profile.hopes:
            return self._chat(view, heart, a)
        answer = self._answer(view, heart, a.question) if a.question is not None and _may_answer(a) else None
        if answer is not None and answer.whole:
            return answer.parts
        if answer is not None and answer.declines and a.kind == "asked":
            return [self._pick(profile, "fair"), *answer.parts]
        parts = [self._reaction(profile, heart, a)]
        if answer is not None and not (answer.repeats and a.kind in ("heard", "understood")):
            return [*parts, *self._fitting(view, heart, a, parts, answer)]
        if cue.act == "hint" and a.kind not in ("silence", "noise"):
            asks = [(i, s) for i, s in _hopes(profile) if i in cue.lines and i not in heart.hinted]
            if asks:
                heart.hinted.add(asks[0][0])
                return [*parts, asks[0][1]]
        back = tuple(i for i in cue.lines if i in heart.told)
        if back and len(back) == len(cue.lines) and a.warmth > -0.3:
            return [*parts, self._dwell(profile, heart, back)]
        holds_back = cue.act == "hold" or a.warmth <= -0.3
        trusting = heart.trust > 0.3 and a.warmth > 0.3 and self._size(parts) <= 1
        lines = [] if holds_back else self._next_lines(view, heart, 2 if trusting else 1)
        if not lines:
            return [*parts, self._dwell(profile, heart)]
        told = [self._tell(heart, item, line) for item, line in lines]
        leads = cue.act == "tell" and len(lines) == 1 and self._size(parts) == 1 and self._random.random() < LEADS
        return [*parts, *([self._pick(profile, "lead")] if leads else []), *told]

    def _chat(self, view: ActorView, heart: _Heart, a: Appraisal) -> list[str]:
        """Chat on: answer a question, or say a word in passing, about an odd reply above all, and then what is next."""
        profile = view.profile
        odd = a.kind in _ODD
        answer = self._answer(view, heart, a.question) if a.question is not None and _may_answer(a) else None
        if answer is not None and (answer.whole or answer.declines or not answer.repeats):
            return answer.parts
        parts = [self._reaction(profile, heart, a) if odd else self._pick(profile, "chat")]
        if not odd and self._random.random() < PLAIN:
            parts = []
        lines = self._next_lines(view, heart, 1)
        told = [self._tell(heart, item, line) for item, line in lines]
        return [*parts, *(told or [self._pick(profile, "chatted_out")])]

    def _fitting(self, view: ActorView, heart: _Heart, a: Appraisal, parts: list[str], answer: _Answer) -> list[str]:
        """What of an answer goes with a reaction, and the next line where somebody who is trusted has asked."""
        said = answer.parts
        if self._size([*parts, said[0]]) + len(said) - 1 > MAX_SENTENCES:
            said = said[1:] or said
        if answer.declines or heart.trust <= 0.3 or a.warmth <= 0 or view.cue.act == "hold":
            return said
        more = self._next_lines(view, heart, 1) if self._size([*parts, *said]) < MAX_SENTENCES else []
        return [*said, *(self._tell(heart, item, line) for item, line in more)]

    def _tell(self, heart: _Heart, item: str, line: Line) -> str:
        heart.told[item] = line
        heart.unheard[item] = None
        heart.content |= read(line.say, self._language).content
        heart.feelings |= {line.feeling} if line.feeling else set()
        return line.say

    def _reaction(self, profile: ActorProfile, heart: _Heart, a: Appraisal) -> str:
        kind = "advised_welcome" if a.kind == "advised" and a.warmth > 0.2 else a.kind
        detail = called(a.detail, self._language)
        return self._pick(profile, kind, feeling=detail, relation=detail)

    def _next_lines(self, view: ActorView, heart: _Heart, most: int) -> list[tuple[str, Line]]:
        """The lines on offer that trust allows; where it allows none of them, the next one that it does."""
        lines = dict(view.profile.lines)
        offered = [i for i in view.cue.lines if i in lines and i not in heart.told]
        allowed = [i for i in offered if heart.trust >= NEEDS_TRUST[chapter_of(i)]]
        if not allowed:
            rest = (i for i in lines if i not in heart.told and heart.trust >= NEEDS_TRUST[chapter_of(i)])
            allowed = [i for i in [next(rest, "")] if i]
        chosen = [(i, lines[i]) for i in allowed[:most]]
        while len(chosen) > 1 and self._size([line.say for _, line in chosen]) > MAX_SENTENCES:
            chosen.pop()
        return chosen

    def _answer(self, view: ActorView, heart: _Heart, question: Reading) -> _Answer | None:
        """Answer a direct question: a fact about the person, a line of the story, an open dodge; None: just go on."""
        profile = view.profile
        asked = plain(question.text)
        fact = personal_fact(asked, self._language)
        if fact is not None:
            return _Answer(self._fact(view, heart, fact, asked), whole=True)
        name = name_asked(question)
        found = lines_with(profile, name) if name else []
        if found:
            item, line = next((il for il in found if il[0] not in heart.told), found[0])
            return self._told_or_tell(profile, heart, item, line, name)
        if not question.content:
            return None
        best = best_line(profile, question, heart.told)
        if best.sure:
            return self._told_or_tell(profile, heart, best.item, best.line, "", best.other)
        if is_open(asked, self._language):
            return None
        guess = best.item not in heart.told and heart.trust >= NEEDS_TRUST[chapter_of(best.item)]
        lines = [(best.item, best.line)] if guess else self._next_lines(view, heart, 1)
        return _Answer(
            [self._pick(profile, "unknown"), *(self._tell(heart, i, line) for i, line in lines)], declines=True
        )

    def _told_or_tell(
        self,
        profile: ActorProfile,
        heart: _Heart,
        item: str,
        line: Line,
        name: str,
        other: tuple[str, Line] | None = None,
    ) -> _Answer:
        """Point to a line that was told, tell it, or decline where trust does not reach so far."""
        if item in heart.told:
            about = _own(line.about)
            if other is not None and other[0] in heart.told:
                about = f"{about}{chinese.AND if self._language == 'zh' else ', and '}{_own(other[1].about)}"
            kind = "told_of" if name else "told_before"
            return _Answer([self._pick(profile, kind, about=about, name=name)], repeats=True)
        if heart.trust < NEEDS_TRUST[chapter_of(item)] - 0.15:
            return _Answer([self._pick(profile, "dodge")], declines=True)
        return _Answer([self._tell(heart, item, line)])

    def _fact(self, view: ActorView, heart: _Heart, fact: Fact, asked: str) -> list[str]:
        """Say a fact about the person; the second time, that they have said it, and then what is on their mind."""
        p = view.profile.persona
        value = {
            "age": str(p.age),
            "job": p.job if self._language == "zh" else _with_article(p.job),
            "name": p.name.split()[0],
            "place": place_of(p.job),
            "family": family_asked(view.profile, asked) if fact == "family" else "",
        }[fact]
        again = fact in self._answered
        self._answered.add(fact)
        said = self._pick(view.profile, ("again" if again else fact) if value else "dodge", fact=value)
        return [said, self._dwell(view.profile, heart)] if again else [said]

    def _dwell(self, profile: ActorProfile, heart: _Heart, back: tuple[str, ...] = ()) -> str:
        """Come back to the given lines, else to what nobody took up; where all was, to anything that was told."""
        again = back or (tuple(heart.unheard) if heart.trust > 0.3 else ())
        open_ones = [heart.told[i].about for i in again]
        about = (
            open_ones[self._dwelt % len(open_ones)]
            if open_ones
            else self._random.choice(list(heart.told.values())).about
        )
        self._dwelt += 1
        calm = heart.tension < 0.3 and not open_ones
        return self._pick(profile, "settled" if calm else "dwell", about=_own(about))

    def _closing(self, profile: ActorProfile) -> str:
        return self._random.choice(profile.closing)

    def _pick(self, profile: ActorProfile, kind: str, **slots: str) -> str:
        """Take a phrase of a kind, each once before any comes again."""
        bank = voice(profile.language, profile.persona.register_)[kind]
        left = self._used.get(kind)
        if not left:
            left = list(bank)
            self._random.shuffle(left)
            self._used[kind] = left
        phrase = left.pop().format(**slots) if slots else left.pop()
        return phrase[:1].upper() + phrase[1:]

    def _say(self, parts: list[str]) -> str:
        """Join the parts to a message that was not said before."""
        kept = [p for p in parts if p]
        message = joined(kept, self._language)
        while message in self._said:
            message = self._reword(message)
        self._said.add(message)
        self._last = message
        return message

    def _size(self, parts: list[str]) -> int:
        return sum([max(1, len(read(p, self._language).sentences)) for p in parts if p])

    def _reword(self, message: str) -> str:
        if self._language == "zh":
            return self._random.choice(chinese.OPENERS) + message
        first = message.split()[0].lower().rstrip(".,!?:;")
        plain_word = first in lexicon(self._language).stopwords and not re.match(r"i\b", first)
        return f"{self._random.choice(_OPENERS)} {message[:1].lower() + message[1:] if plain_word else message}"


_OPENERS = ("Well,", "Anyway,", "So,", "As I said,", "Still,", "Honestly,", "Again,", "Look,", "I don't know,", "But")


def _first_heart(profile: ActorProfile) -> _Heart:
    if not profile.hopes:  # a chat takes no trust
        return _Heart(tension=0.0, trust=1.0)
    guarded = profile.persona.defensiveness == "high"
    return _Heart(tension=0.8 if guarded else 0.65, trust=0.05 if guarded else 0.12)


def _move(heart: _Heart, profile: ActorProfile, a: Appraisal) -> None:
    """Move tension and trust by what the person made of the reply; both stay within 0..1."""
    opens = 0.09 if profile.patience == "high" else 0.07
    if a.warmth > 0:
        heart.trust = min(1.0, heart.trust + opens * a.warmth)
        heart.tension = max(0.0, heart.tension - 0.06 * a.warmth)
    else:
        bristle = 1.4 if profile.persona.defensiveness == "high" else 1.0
        heart.trust = max(0.0, heart.trust + 0.12 * bristle * a.warmth)
        heart.tension = min(1.0, heart.tension - 0.1 * bristle * a.warmth)


def _hopes(profile: ActorProfile) -> list[tuple[str, str]]:
    return [(f"need{r}.{k}", ask) for r, asks in enumerate(profile.hopes) for k, ask in enumerate(asks)]


@lru_cache(maxsize=1024)
def relations_of(profile: ActorProfile | JudgeProfile) -> frozenset[str]:
    """Return the people in somebody's life, by the words of their story."""
    of = lexicon(profile.language).relation_of
    text = " ".join([*(line.say for _, line in profile.lines), profile.situation.summary, profile.situation.trigger])
    plain = [w.removesuffix("'s") for w in words(text, profile.language)]
    return frozenset(of[v] for w in plain for v in (w, w.removesuffix("s")) if v in of)


@lru_cache(maxsize=1024)
def _story(profile: ActorProfile) -> frozenset[str]:
    return frozenset().union(*index_of(profile).contents.values())


def _may_answer(a: Appraisal) -> bool:
    """A person who is hurt answers nothing."""
    return a.warmth > -0.5 and a.kind not in ("silence", "noise", "misread", "advised", "parroted")


def _own(about: str) -> str:
    return about[:-1] if about.endswith((".", "\u3002")) else about


def _with_article(job: str) -> str:
    if job.split()[0].lower() in ("a", "an", "the"):
        return job
    return f"an {job}" if job[:1].lower() in "aeiou" else f"a {job}"
