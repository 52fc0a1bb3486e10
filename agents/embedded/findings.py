"""What a sentence of a reply does for this person or against them, as evidence for the embedded judge.

Harm stands wherever it is found. Good is offered to things that the person has told; `settle` then turns offers into
evidence: each thing once on its axis, by the best that was done for it, and what the person came for first before all.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from echo_env.agents.embedded.anchors import Anchor, Reader
from echo_env.agents.embedded.encoders import encoder_of
from echo_env.agents.embedded.language import Reading, Sentence, Vec, lexicon
from echo_env.agents.embedded.ledger import Ledger, Skeleton
from echo_env.profiles import CLUSTER_OF
from echo_env.roles import JudgeProfile
from echo_env.types import AXES, Axis, Evidence

HEARD = {"low": 0, "high": 2}
"""Inferred trust from which a person of that empathy threshold takes the deeper act on the axis of their first need: a
new view, room for what they did not say, a step or advice."""
LATER, GUARDED = 3, 2
"""How much more trust it takes for each need that comes before, and for somebody defensive."""
SIDE = 3
"""Turns for which touching what the person came for first opens them to what else is done for them."""
PRECISE = 2
"""Words of content that a sentence shares with a thing to follow it precisely."""


@dataclass(frozen=True, slots=True)
class Spoken:
    """A sentence of the reply, beside what was told and what was said before."""

    sentence: Sentence
    skeleton: Skeleton
    vector: Vec
    """Of its telling words."""
    own: list[int]
    """Told things that it refers to itself, closest first."""
    again: int
    """In how many earlier turns it, or the template behind it, was used."""
    copied: bool
    """Whether it is the user's own words."""


@dataclass(frozen=True, slots=True)
class Whole:
    """What a sentence must know of the reply that it stands in."""

    grounded: bool
    """Whether the reply touches anything that was told."""
    echo: bool
    """Whether more than half of its words are the user's own: a few given back before an answer do no harm."""
    many_feelings: bool
    """Whether it names so many feelings that none of them was heard."""


@dataclass(frozen=True, slots=True)
class _Said:
    """A sentence of the reply, with what it does and what it is about."""

    sentence: Sentence
    acts: dict[str, float]
    """Anchors of the acts that it shows, with scores."""
    own: list[int]
    """Told things that it refers to itself, closest first."""
    near: list[int]
    """The same, or those of the sentence before or after where it refers to none itself."""


@dataclass(frozen=True, slots=True)
class _Offer:
    """Something good done for a thing."""

    anchor: str
    quote: str
    thing: int
    reason: str
    aligned: bool
    """Whether it does for this thing what the person came for first."""


@dataclass(slots=True)
class Bench:
    """Findings on one reply while they are gathered."""

    ledger: Ledger
    profile: JudgeProfile
    reader: Reader
    anchors: dict[str, Anchor]
    asked: bool
    """Whether the person's newest message asked for advice."""
    links: list[tuple[frozenset[int], int]] = field(default_factory=list)
    """What the reply ties together: (things spoken of, one from another chapter and turn, not tied before)."""
    offers: list[_Offer] = field(default_factory=list)
    settled: set[tuple[int, Axis]] = field(default_factory=set)
    found: list[Evidence] = field(default_factory=list)

    def add(self, anchor: str, quote: str, item: str = "", reason: str = "") -> None:
        """Add evidence for an anchor."""
        a = self.anchors[anchor]
        self.found.append(
            Evidence(
                axis=a.axis,
                direction=a.direction,
                level=a.level,
                anchor=anchor,
                quote=quote,
                item=item,
                reason=reason,
            )
        )

    def offer(self, anchor: str, said: _Said, thing: int, reason: str = "") -> None:
        """Note that a sentence serves a thing; `settle` decides what counts."""
        aligned = self.anchors[anchor].axis == self.first and thing in said.own and self._to_the_point(said, thing)
        self.offers.append(_Offer(anchor, said.sentence.text, thing, reason, aligned))

    def _to_the_point(self, said: _Said, thing: int) -> bool:
        """Whether a sentence gives what the first need asks for: for C, to be followed precisely; else its act."""
        if self.first == "C":
            shared = said.sentence.content & self.ledger.story.things[thing].content
            return (
                said.sentence.question
                or len(shared) >= lexicon(self.profile.language).size(PRECISE)
                or "C.prog.2.reframes" in said.acts
            )
        if self.first == "A" and said.sentence.feelings:
            return True
        return _main_act(said.acts) in _MEETS[self.first]

    @property
    def first(self) -> Axis:
        """The axis of what the person came for first."""
        return self.profile.needs[0].axis

    def heard(self, axis: Axis) -> bool:
        """Whether the person takes the deeper act on an axis: what they came for first, the rest with growing trust."""
        rank = [need.axis for need in self.profile.needs].index(axis)
        guarded = self.profile.persona.defensiveness == "high"
        return self.ledger.trust >= HEARD[self.profile.threshold] + LATER * rank + GUARDED * guarded


def compare(ledger: Ledger, reading: Reading, skeletons: list[Skeleton]) -> list[Spoken]:
    """Put each sentence of a reply beside what was told and what was said before."""
    vectors = encoder_of(ledger.story.encoder).encode_all([s.telling for s in reading.sentences])
    return [
        Spoken(s, skeleton, v, ledger.refers_to(s, v), ledger.repeats(s, skeleton), ledger.copied(s))
        for s, skeleton, v in zip(reading.sentences, skeletons, vectors, strict=True)
    ]


def find(bench: Bench, spoken: Spoken, near: list[int], reply: Whole) -> str | None:
    """Find what one sentence does.

    Args:
        bench: Where to put it.
        spoken: The sentence.
        near: The told things that it is about, its own or those of the sentence before or after.
        reply: What the sentence must know of the whole reply.

    Returns:
        The good act that it shows, "" for none; None where it can do no good, being said before, copied, or harmful.
    """
    sentence = spoken.sentence
    acts = bench.reader.shown(sentence.text, spoken.skeleton.words)
    _find_harm(bench, sentence, acts, reply.grounded)
    _find_hurt(bench, sentence, spoken.vector)
    if _worn_out(bench.ledger, spoken):
        bench.add("A.neg.2.repeats", sentence.text, reason=f"said in {spoken.again} earlier turns")
    elif spoken.copied:
        if reply.echo:
            bench.add("C.neg.1.parrots", sentence.text)
            bench.add("A.neg.1.performs", sentence.text, reason="an echo, not an answer")
    elif not spoken.again and not _harmful(bench, sentence):
        said = _Said(sentence, acts, spoken.own, near)
        _find_links(bench, said, spoken.skeleton.words)
        _find_progress(bench, said, reply.many_feelings)
        return "A.prog.1.names" if sentence.feelings else _main_act(acts)
    return None


def _worn_out(ledger: Ledger, spoken: Spoken) -> bool:
    """Whether a sentence was said too often: its template in two turns, or itself, unless it is a short word."""
    sentence = spoken.sentence
    long = len(sentence.words) >= lexicon(ledger.language).size(5)
    return spoken.again >= 2 or (spoken.again > 0 and long and sentence.words in ledger.said)


def _main_act(acts: dict[str, float]) -> str:
    """The good act with the highest score; "" where there is none."""
    good = [(score, act) for act, score in acts.items() if ".prog." in act]
    return max(good)[1] if good else ""


def _harmful(bench: Bench, sentence: Sentence) -> bool:
    return any(e.quote == sentence.text and e.level < 0 for e in bench.found)


def _find_harm(bench: Bench, sentence: Sentence, acts: dict[str, float], grounded: bool) -> None:
    """Add the negative evidence of one sentence."""
    for anchor in ("C.neg.2.gaslights", "A.neg.2.judges", "A.neg.1.minimises", "P.neg.2.denies"):
        if anchor in acts:
            bench.add(anchor, sentence.text)
    if "P.neg.1.preaches" in acts:
        bench.add("P.neg.1.preaches", sentence.text)
        if bench.first == "A" or bench.profile.persona.defensiveness == "high":
            bench.add("A.neg.1.rushes", sentence.text, reason="a lecture to someone who wants to be heard")
    if not grounded and ("C.neg.1.hollow" in acts or "A.neg.1.performs" in acts):
        bench.add("C.neg.1.hollow", sentence.text)
        bench.add("A.neg.1.performs", sentence.text)
    if "P.neg.1.flatters" in acts and not grounded:
        bench.add("P.neg.1.flatters", sentence.text)
    strangers = sentence.relations - bench.ledger.story.relations
    if strangers:
        bench.add("C.neg.2.misreads", sentence.text, reason=f"this person has spoken of no {sorted(strangers)[0]}")
    if sentence.denied and not sentence.question and sentence.denied & bench.ledger.feelings_voiced():
        bench.add("C.neg.2.misreads", sentence.text, reason="denies a feeling that was voiced")


def _find_hurt(bench: Bench, sentence: Sentence, vector: Vec) -> None:
    """Add it where a sentence says the very thing that hurts this person."""
    if len(sentence.telling) < lexicon(bench.ledger.language).size(3):
        return
    story = bench.ledger.story
    for axis, likeness in zip(AXES, (story.hurts @ vector).tolist(), strict=True):
        if likeness < story.scale.hurts:
            continue
        if likeness >= story.scale.surely_hurts or len(sentence.content & story.hurt_words[axis]) >= 2:
            anchor = {"C": "C.neg.2.misreads", "A": "A.neg.2.judges", "P": "P.neg.2.denies"}[axis]
            bench.add(anchor, sentence.text, reason="says what hurts this person")


def _find_progress(bench: Bench, said: _Said, lists_feelings: bool) -> None:
    """Note what good a sentence does."""
    if not lists_feelings:
        _find_feeling(bench, said)
    _find_empowerment(bench, said)
    _find_view(bench, said)
    _find_need(bench, said)
    _find_first(bench, said)


def _find_feeling(bench: Bench, said: _Said) -> None:
    things = bench.ledger.story.things
    if said.sentence.feelings:
        _find_named(bench, said)
    elif "A.prog.1.validates" in said.acts:
        for i in said.near:
            if things[i].shown and i in said.own and bench.heard("A"):
                bench.offer("A.prog.2.unspoken", said, i, "makes room for what was shown, not said")
            elif things[i].feeling:
                bench.offer("A.prog.1.validates", said, i)


def _find_named(bench: Bench, said: _Said) -> None:
    """A feeling put into words: right and voiced, right and unspoken, near, or not there.

    One that was just voiced may be named by itself; to guess at one that shows, a sentence must say where it shows.
    """
    ledger, things = bench.ledger, bench.ledger.story.things
    named = said.sentence.feelings
    clusters = {CLUSTER_OF[f] for f in named}
    felt = [i for i in said.near if things[i].feeling]
    just_voiced = [i for i in ledger.fresh if things[i].feeling in named and not things[i].shown]
    close = list(dict.fromkeys([*just_voiced, *(i for i in felt if CLUSTER_OF[str(things[i].feeling)] in clusters)]))
    for i in close:
        if things[i].feeling not in named:
            bench.offer("A.prog.1.names", said, i, "near, not exact")
        elif things[i].shown:
            bench.offer("A.prog.2.unspoken", said, i)
        else:
            bench.offer("A.prog.1.names", said, i)
    around = felt or [i for i in sorted(ledger.fresh) if things[i].feeling and not said.near]
    shows = {CLUSTER_OF[str(things[i].feeling)] for i in around}
    if around and not close and not shows & clusters and not said.sentence.question and not named & ledger.voiced:
        bench.add("A.neg.1.mismatch", said.sentence.text, reason=f"what shows is {things[around[0]].feeling}")


def _find_empowerment(bench: Bench, said: _Said) -> None:
    things = bench.ledger.story.things
    able = [i for i in said.near if things[i].kind in ("strength", "wish")]
    if "P.prog.1.advises" in said.acts and said.acts["P.prog.1.advises"] >= max(said.acts.values()):
        return _judge_advice(bench, said, able)
    for i in able:
        wish = things[i].kind == "wish"
        if wish and i in said.own and "P.prog.2.empowers" in said.acts:
            if bench.heard("P"):
                bench.offer("P.prog.2.empowers", said, i)
            else:
                bench.offer("P.prog.1.affirms", said, i, "a step before being heard")
        elif "P.prog.1.affirms" in said.acts or wish:
            bench.offer("P.prog.1.affirms", said, i)
    return None


def _judge_advice(bench: Bench, said: _Said, able: list[int]) -> None:
    """Judge advice: welcome where it was asked for, or to a P-first person who has been heard; else it may rush."""
    if bench.asked or (bench.first == "P" and bench.heard("P")):
        for i in able:
            bench.offer("P.prog.1.advises", said, i)
    elif bench.first == "A":
        bench.add("A.neg.1.rushes", said.sentence.text, reason="advice before being heard")


def _find_view(bench: Bench, said: _Said) -> None:
    things = bench.ledger.story.things
    if "C.prog.2.reframes" in said.acts:
        for i in said.own:
            if things[i].kind == "belief" and bench.heard("C"):
                bench.offer("C.prog.2.reframes", said, i)
            elif things[i].kind == "belief":
                bench.offer("C.prog.1.reflects", said, i, "a new view before being heard")
    for i in said.own:
        if things[i].kind in ("fact", "belief"):
            bench.offer("C.prog.1.reflects", said, i)


_MEETS: dict[Axis, tuple[str, ...]] = {
    "C": ("C.prog.2.reframes",),
    "A": ("A.prog.1.validates",),
    "P": ("P.prog.2.empowers", "P.prog.1.affirms"),
}
"""Acts that give a person what a need on this axis asks for."""


def _find_need(bench: Bench, said: _Said) -> None:
    """A need that the person has voiced is met by the act that it asks for; taking it up at all counts a little."""
    for i in said.near:
        thing = bench.ledger.story.things[i]
        if thing.kind == "need" and any(act in said.acts for act in _MEETS[thing.axis]):
            bench.offer(f"{thing.axis}.prog.2.meets", said, i)
        elif thing.kind == "need" and i in said.own:
            bench.offer(_TAKES_UP[thing.axis], said, i, "takes up what they need")


def _find_first(bench: Bench, said: _Said) -> None:
    """To somebody who came to be trusted with it, handing back the choice is welcome whatever it is said about."""
    if bench.first == "P" and _main_act(said.acts) in _MEETS["P"]:
        for i in said.own:
            bench.offer("P.prog.1.affirms", said, i, "what they came for")


_TAKES_UP: dict[Axis, str] = {"C": "C.prog.1.reflects", "A": "A.prog.1.validates", "P": "P.prog.1.affirms"}


def _find_links(bench: Bench, said: _Said, skeleton: list[str]) -> None:
    """Note where a sentence ties something told earlier, in another chapter, to what belongs with it.

    It must say something about the tie: five words of its own beside the story's.
    """
    ledger = bench.ledger
    if len(said.own) < 2 or sum(w != "_" for w in skeleton) < lexicon(ledger.language).size(5):
        return
    for i in said.own:
        for j in said.own:
            earlier = ledger.told[j] < ledger.told[i] and j in ledger.story.threads[i]
            if earlier and j not in ledger.linked:
                bench.links.append((frozenset(said.own) - {j}, j))
                return


_DEEPER = {
    "A.prog.1.names": "A.prog.2.deepens",
    "A.prog.1.validates": "A.prog.2.deepens",
    "C.prog.1.reflects": "C.prog.2.connects",
}
"""What an anchor becomes where the reply also ties its thing to an earlier one."""


def settle(bench: Bench) -> None:
    """Turn offers into evidence: each thing once on its axis, by the best that was done for it."""
    ledger = bench.ledger
    offers = sorted(bench.offers, key=lambda o: -bench.anchors[o.anchor].level)
    if ledger.served_at.get(bench.first, -SIDE - 1) < ledger.turn - SIDE:
        first = [o for o in offers if bench.anchors[o.anchor].axis == bench.first]
        offers = offers if first else []  # side issues do not help while what they came for lies untouched
    for offer in offers:
        anchor = bench.anchors[offer.anchor]
        key = (offer.thing, anchor.axis)
        if key in bench.settled:
            continue
        bench.settled.add(key)
        if ledger.open_on(*key):
            name, reason = offer.anchor, offer.reason
            if name in _DEEPER and _tied(bench, offer.thing):
                name = _DEEPER[name]
            elif offer.aligned and anchor.level == 1:
                name, reason = f"{anchor.axis}.prog.2.meets", reason or "what they came for"
            bench.add(name, offer.quote, ledger.story.things[offer.thing].id, reason)
        ledger.serve(*key)
    ledger.visits.update({thing for thing, _ in bench.settled})


def _tied(bench: Bench, i: int) -> bool:
    """Whether the reply ties thing `i` to an earlier one; each tie counts once."""
    for ends, j in bench.links:
        if i in ends and j not in bench.ledger.linked:
            bench.ledger.linked.add(j)
            return True
    return False
