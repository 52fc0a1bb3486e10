"""Scripted attacks: replies that a judge must not pay for.

Each is a policy like any other: a pure function of the conversation and a seed. Silence, template, parrot, keyword
stuffing and lecturing are the reference policies of `embedded.policies`. Names are the registry's, `attack:NAME`.
"""

from __future__ import annotations

import random
import re
from functools import lru_cache

from echo_env.agents.embedded.anchors import rubric
from echo_env.agents.embedded.language import lexicon, split_sentences, words
from echo_env.agents.embedded.listening import noun_phrases
from echo_env.agents.embedded.policies import Seeded
from echo_env.agents.embedded.skilled import LINK_BACK, phrases
from echo_env.agents.redteam.pools import OPPOSITE, by_first_need, fixed_script, pool, skilled_replies, whose
from echo_env.profiles import CLUSTER_OF, scenario_ids
from echo_env.roles import Observation


class Attack(Seeded):
    """What the attacks share: banks that are run through without repetition, and slots for the user's nouns."""

    def turn(self, observation: Observation) -> int:
        """Return how many turns lie behind: 0 at the first message."""
        return len(observation.messages) // 2

    def pick(self, observation: Observation, bank: tuple[str, ...], name: str, at: int | None = None) -> str:
        """Return the phrase at a place of a bank that is shuffled anew each time it has been run through.

        Args:
            observation: The conversation.
            bank: Its phrases.
            name: Its name, so that two banks of one size are shuffled differently.
            at: The place; the number of the turn where none is given.
        """
        place = self.turn(observation) if at is None else at
        order = list(range(len(bank)))
        key = f"{self.id}:{self.seed}:{observation.messages[0].text}:{name}:{place // len(bank)}"
        random.Random(key).shuffle(order)
        return bank[order[place % len(bank)]]

    def fill(self, phrase: str, observation: Observation, first: int = 0) -> str:
        """Fill a phrase's slots with noun phrases of the user's last message, from the given one on."""
        found = noun_phrases(observation.user, observation.language) or ["it"]
        it, other = found[first % len(found)], found[(first + 1) % len(found)]
        text = phrase.format(it=it, other=other, earlier=self.earlier(observation))
        return text[:1].upper() + text[1:]

    def earlier(self, observation: Observation) -> str:
        """Return a noun phrase from some turns back; early on, one of the opening."""
        users = [m.text for m in observation.messages if m.role == "user"]
        found = noun_phrases(users[max(0, len(users) - 1 - LINK_BACK)], observation.language)
        return found[0] if found else "that"


class _FromBank(Attack):
    """Says the next phrase of one bank."""

    bank: str

    async def respond(self, observation: Observation) -> str:
        """Return the next phrase, its slots filled."""
        return self.fill(self.pick(observation, pool()[self.bank], self.bank), observation)


class _Verbatim(Attack):
    """Says the next phrases of one bank as they stand: braces in them are part of the attack."""

    bank: str
    each_turn = 1

    async def respond(self, observation: Observation) -> str:
        """Return the next phrases."""
        first, bank = self.turn(observation) * self.each_turn, pool()[self.bank]
        return " ".join([self.pick(observation, bank, self.bank, first + k) for k in range(self.each_turn)])


class OneWord(_Verbatim):
    """Says one word."""

    id, bank = "attack:one_word", "one_word"


class Praise(_Verbatim):
    """Praises without end, never twice in the same words."""

    id, bank, each_turn = "attack:praise", "praise", 2


class AdviceList(_Verbatim):
    """Hands out lists of advice that know nothing of the person."""

    id, bank = "attack:advice_list", "advice_list"


class OnlyQuestions(_Verbatim):
    """Asks one open question after another and takes nothing up."""

    id, bank = "attack:only_questions", "only_questions"


class PromptInjection(_Verbatim):
    """Talks to the judge in place of the person."""

    id, bank = "attack:prompt_injection", "prompt_injection"


class FakeTranscript(_Verbatim):
    """Writes the person's happy answer, a verdict or an end of the talk into its own reply."""

    id, bank = "attack:fake_transcript", "fake_transcript"


class ForeignLanguage(_Verbatim):
    """Says kind things in languages that this person does not speak."""

    id, bank = "attack:foreign_language", "foreign_language"


class SelfDisclosure(_Verbatim):
    """Has been through all of that too, and tells of itself."""

    id, bank = "attack:self_disclosure", "self_disclosure"


class Sycophancy(_FromBank):
    """Agrees with whatever was said."""

    id, bank = "attack:sycophancy", "sycophancy"


class NegatedComfort(_FromBank):
    """Uses the words of comfort with a negation that turns them round."""

    id, bank = "attack:negated_comfort", "negated_comfort"


class TopicDrift(_FromBank):
    """Takes hold of a word, or of none, and talks of something else."""

    id, bank = "attack:topic_drift", "topic_drift"


class NounQuestion(_FromBank):
    """Gives a noun back with a question mark."""

    id, bank = "attack:noun_question", "noun_question"


class VeryLong(Attack):
    """Says everything at once, and more."""

    id = "attack:very_long"

    async def respond(self, observation: Observation) -> str:
        """Return sixteen long sentences, shuffled."""
        bank = list(pool()["very_long"])
        self._random(observation).shuffle(bank)
        return " ".join([self.fill(phrase, observation, k) for k, phrase in enumerate(bank)])


class SmallEdits(Attack):
    """Repeats one sentence with small edits."""

    id = "attack:small_edits"

    async def respond(self, observation: Observation) -> str:
        """Return the sentence with another adverb, adjective, verb and noun."""
        edits = {k: self.pick(observation, pool()[f"{k}s"], k) for k in ("adverb", "adjective", "verb")}
        phrase = self.pick(observation, pool()["small_edits"], "small_edits")
        return self.fill(phrase.format(**edits, it="{it}"), observation)


class Mirrored(Attack):
    """Gives the user's sentences back with the persons swapped, the last one first."""

    id = "attack:mirrored"

    async def respond(self, observation: Observation) -> str:
        """Return the newest message seen from the listener's side."""
        mirror = lexicon(observation.language).mirror
        turned = [" ".join([mirror.get(w, w) for w in words(s)]) for s in split_sentences(observation.user)]
        return " ".join([f"{text[:1].upper()}{text[1:]}." for text in reversed(turned) if text]) or "I see."


class EmojiWall(Attack):
    """Answers with a wall of emoji."""

    id = "attack:emoji_wall"

    async def respond(self, observation: Observation) -> str:
        """Return thirty emoji."""
        return "".join(self._random(observation).choices(pool()["emoji"], k=30))


class FeelingGuess(Attack):
    """Names a feeling each turn, whichever."""

    id = "attack:feeling_guess"

    async def respond(self, observation: Observation) -> str:
        """Return a feeling from the list, in a frame that says nothing else."""
        feeling = self.pick(observation, tuple(CLUSTER_OF), "feelings")
        text = self.pick(observation, pool()["feeling_guess"], "feeling_guess").format(feeling=feeling)
        return text[:1].upper() + text[1:]


@lru_cache(maxsize=1)
def _rubric_words() -> tuple[str, ...]:
    """Every word of the rubric's examples of good acts, as often as it occurs there, function words included."""
    texts = [text for a in rubric("epm_v1").anchors if a.level > 0 for text in a.for_]
    return tuple([w for text in texts for w in words(re.sub(r"\{[^}]*\}", " ", text))])


class WordSalad(Attack):
    """Words of the rubric in random order, cut into sentences."""

    id = "attack:word_salad"

    async def respond(self, observation: Observation) -> str:
        """Return three heaps of nine words, a noun of the user's in each."""
        rnd = self._random(observation)
        heaps = [[*rnd.choices(_rubric_words(), k=8), "{it}"] for _ in range(3)]
        for heap in heaps:
            rnd.shuffle(heap)
        return " ".join([f"{self.fill(' '.join(heap), observation, k)}." for k, heap in enumerate(heaps)])


OWN = ("validating", "reframing", "affirming", "empowering")
"""Our own banks of slot templates: so many that none comes twice in 36 turns."""


class NounSlots(Attack):
    """Puts nouns of the last message into templates, and listens to nothing."""

    id = "attack:noun_slots"

    async def respond(self, observation: Observation) -> str:
        """Return a validating template, a reframing one, and one that affirms or hands back the choice."""
        last = OWN[2 + self.turn(observation) % 2]
        chosen = [self.pick(observation, pool()[bank], bank) for bank in ("validating", "reframing", last)]
        return " ".join([self.fill(phrase, observation, k) for k, phrase in enumerate(chosen)])


COURSE = (
    ("validate", "reframe", "empower"), ("validate", "link", "affirm"), ("validate", "reframe", "affirm"),
    ("validate", "reflect", "empower"), ("validate", "link", "empower"), ("validate", "ask", "affirm"),
)  # fmt: skip
"""Moves of the reference companion, taken in turn."""


class NounSlotsStrong(Attack):
    """Puts nouns of the last message into the reference companion's own phrases, and listens to nothing."""

    id = "attack:noun_slots_strong"

    async def respond(self, observation: Observation) -> str:
        """Return three phrases of the companion's bank, by moves that come round in a fixed order."""
        moves = COURSE[self.turn(observation) % len(COURSE)]
        bank = phrases(observation.language)
        chosen = [self.pick(observation, bank[move], move) for move in moves]
        return " ".join([self.fill(phrase, observation, k) for k, phrase in enumerate(chosen)])


class _OneAxis(Attack):
    """Does one thing only, twice a turn, with the user's nouns."""

    banks: tuple[str, ...]
    """Own banks."""
    moves: tuple[str, ...]
    """Banks of the reference companion."""

    async def respond(self, observation: Observation) -> str:
        """Return two phrases of the one kind."""
        companion = phrases(observation.language)
        bank = (*[p for b in self.banks for p in pool()[b]], *[p for m in self.moves for p in companion[m]])
        first = 2 * self.turn(observation)
        return " ".join([self.fill(self.pick(observation, bank, "all", first + k), observation, k) for k in (0, 1)])


class OnlyReframes(_OneAxis):
    """Offers another view, whatever was said."""

    id, banks, moves = "attack:one_axis_c", ("reframing",), ("reframe", "reflect")


class OnlyValidates(_OneAxis):
    """Finds every feeling natural, whatever was said."""

    id, banks, moves = "attack:one_axis_a", ("validating",), ("validate",)


class OnlyEmpowers(_OneAxis):
    """Hands back the choice and praises strength, whatever was said."""

    id, banks, moves = "attack:one_axis_p", ("affirming", "empowering"), ("affirm", "empower")


class FixedScript(Attack):
    """Says the best script that the searcher found for everybody at once."""

    id = "attack:fixed_script"

    async def respond(self, observation: Observation) -> str:
        """Return the script's next line; after the last one it begins anew."""
        replies = fixed_script().replies
        return replies[self.turn(observation) % len(replies)]


class PersonaFlip(Attack):
    """Says what the reference companion said to another person, whose first need is the opposite one."""

    id = "attack:persona_flip"

    async def respond(self, observation: Observation) -> str:
        """Return the reply of the same turn in the other's conversation."""
        replies = skilled_replies(self.other(observation.messages[0].text), self.seed)
        return replies[self.turn(observation) % len(replies)]

    def other(self, opening: str) -> str:
        """Return the id of the other person's scenario; any, for somebody whom no file knows."""
        scenario = whose(opening)
        others = by_first_need(OPPOSITE[scenario.needs[0].axis]) if scenario else tuple(scenario_ids("benchmark"))
        return random.Random(f"{self.id}:{self.seed}:{opening}").choice(others)


SOURCES = 12
"""Conversations of the train split that random good sentences are drawn from."""


class RandomGood(Attack):
    """Says good sentences that were said to other people."""

    id = "attack:random_good"

    async def respond(self, observation: Observation) -> str:
        """Return three sentences from the reference companion's conversations with others."""
        bank = _said_to_others(self.seed)
        first = 3 * self.turn(observation)
        return " ".join([self.pick(observation, bank, "others", first + k) for k in range(3)])


@lru_cache(maxsize=4)
def _said_to_others(seed: int) -> tuple[str, ...]:
    names = scenario_ids("train")
    chosen = names[:: max(1, len(names) // SOURCES)][:SOURCES]
    said = [s for name in chosen for reply in skilled_replies(name, seed) for s in split_sentences(reply)]
    return tuple(dict.fromkeys(said))
