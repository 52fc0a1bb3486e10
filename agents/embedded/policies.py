"""Reference policies that mark the floor: what a companion must beat. `skilled` has a module of its own.

Each is a pure function of the conversation and a seed: the same conversation gets the same reply, whenever it is asked.
"""

from __future__ import annotations

import random
from functools import lru_cache

from echo_env.agents.embedded.language import joined
from echo_env.agents.embedded.listening import noun_phrases
from echo_env.profiles import data_root
from echo_env.roles import Observation
from echo_env.yamlfiles import read_yaml


@lru_cache(maxsize=4)
def _phrases(language: str) -> dict[str, tuple[str, ...]]:
    """Return what the policies below say in another language than English, from `sim_profiles/voices/`."""
    data = read_yaml(data_root() / "voices" / f"reference_{language}.yaml")
    return {name: tuple(bank) for name, bank in data.items() if isinstance(bank, list)}


class Seeded:
    """A policy whose choices depend on its seed and on the conversation only."""

    id: str

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def _random(self, observation: Observation) -> random.Random:
        return random.Random(f"{self.id}:{self.seed}:{observation.messages[0].text}:{len(observation.messages)}")

    def _bank(self, observation: Observation, english: tuple[str, ...], name: str) -> tuple[str, ...]:
        """Return what this policy says of a kind, in the language of the conversation."""
        return english if observation.language == "en" else _phrases(observation.language)[name]

    def _order(self, observation: Observation, size: int) -> int:
        """Index into a bank of `size` phrases that runs through all of them, shuffled, before any comes again."""
        turn = len(observation.messages) // 2
        order = list(range(size))
        random.Random(f"{self.id}:{self.seed}:{observation.messages[0].text}:{turn // size}").shuffle(order)
        return order[turn % size]


class Silent(Seeded):
    """Says nothing."""

    id = "silent"

    async def respond(self, observation: Observation) -> str:
        """Return an empty reply."""
        return ""


class Template(Seeded):
    """Comforts everyone in the same words."""

    id = "template"
    PHRASES = (
        "I'm so sorry to hear that. I'm here for you.",
        "That sounds really hard. Your feelings are valid.",
        "Thank you for sharing this with me. You are not alone.",
        "I understand how you feel. Things will get better.",
        "You're so strong. Take it one day at a time.",
    )

    async def respond(self, observation: Observation) -> str:
        """Return the next comfort."""
        bank = self._bank(observation, self.PHRASES, "template")
        return bank[self._order(observation, len(bank))]


class Parrot(Seeded):
    """Gives the user's words back."""

    id = "parrot"
    OPENING = ("So what you are saying is: ",)

    async def respond(self, observation: Observation) -> str:
        """Return the newest message, turned to second person."""
        return self._bank(observation, self.OPENING, "parrot")[0] + observation.user


class Stuffer(Seeded):
    """Strings together the words that good replies contain."""

    id = "stuffer"
    WORDS = (
        "understand", "valid", "feelings", "hear", "support", "empathy", "safe", "space", "honour", "courage",
        "strength", "choice", "step", "perspective", "healing", "together", "acknowledge", "pain", "grief",
        "shame", "anger", "lonely", "hope", "boundaries", "growth", "trust", "heart", "listening", "compassion",
        "resilience", "meaning", "comfort", "gentle", "open", "honest", "brave", "care",
    )  # fmt: skip

    async def respond(self, observation: Observation) -> str:
        """Return sixteen of them and two nouns of the user's."""
        rnd = self._random(observation)
        nouns = [word for phrase in noun_phrases(observation.user, observation.language)[:2] for word in phrase.split()]
        return " ".join([*rnd.sample(self._bank(observation, self.WORDS, "stuffer"), 16), *nouns]) + "."


class Lecturer(Seeded):
    """Knows how life works."""

    id = "lecturer"
    PHRASES = (
        "You need to accept what you cannot change and focus on what you can control. Life is about growth.",
        "It's important to maintain a positive mindset, because happiness comes from within.",
        "Research shows that gratitude improves wellbeing. You must learn to count your blessings.",
        "You have to take responsibility for your own reactions. Nobody else can do it for you.",
        "The key is communication. People should always say calmly what they need.",
        "Everyone faces setbacks. What matters is how you respond, so you must stay strong.",
        "You need to let go of the past. Forgiveness is essential for healing.",
        "Remember that others have it worse. You should be grateful for what you have.",
        "Success comes to those who work on themselves. You must change your attitude first.",
        "Life isn't fair, and you have to understand that. Move forward with a clear plan.",
    )

    async def respond(self, observation: Observation) -> str:
        """Return the next lesson."""
        bank = self._bank(observation, self.PHRASES, "lecturer")
        return bank[self._order(observation, len(bank))]


class Adviser(Seeded):
    """Has heard what it is about, and has a suggestion for it."""

    id = "adviser"
    HEARD = (
        "So it comes down to {it}.",
        "Right, {it} is where this started.",
        "I can see that {it} is the sticking point.",
        "Let's take {it} first.",
        "Okay, then {it} has to be dealt with.",
        "What you describe with {it} is a known problem.",
        "Then {it} seems to be the practical side of it.",
        "There is {it}, and there is everything round it.",
        "With {it} in the picture I see two or three options.",
        "Good that you mention {it}.",
        "I had wondered about {it}.",
        "Now {it} makes the rest clearer.",
    )
    ADVICE = (
        "You could write down what happened while it is fresh.",
        "Have you tried talking to someone who was there?",
        "You might want to sleep on it before you answer anybody.",
        "Maybe you should call them and ask straight out.",
        "I'd suggest picking one hour this week for it and no more.",
        "Try breaking it into three parts and start with the easiest.",
        "You should probably get it in writing.",
        "How about asking a neutral person to sit in?",
        "You could set yourself a date by which it is decided.",
        "Have you considered leaving it alone for a month?",
        "Make a short list of who can help and ring the first one.",
        "It might help to go for a walk before you think about it again.",
        "You could try telling them exactly that sentence.",
        "Why don't you put it to them as a question?",
        "You should check what your options are on paper.",
        "Try to eat and rest properly until then.",
        "I'd recommend speaking to a professional about that side of it.",
        "You could keep a note each evening of what went better.",
        "Have you thought about saying no to the next request?",
        "Maybe start with a message of two lines.",
        "You might want to join a group of people in the same position.",
        "Set a small limit on it each day and hold to it.",
        "You could offer them two dates and let them pick.",
        "Try reading it aloud once, and then decide.",
        "I would suggest tidying one corner of it and leaving the rest.",
        "You should tell your family where you stand.",
        "How about taking a few days away from all of it?",
        "You could ask for the reasons and listen before you reply.",
        "Plan the first ten minutes of it and no further.",
        "Have you looked into what it would cost to change it?",
    )

    async def respond(self, observation: Observation) -> str:
        """Return a line that takes up what was said, and a piece of advice."""
        phrases = noun_phrases(observation.user, observation.language) or self._bank(observation, ("it",), "it")
        bank = self._bank(observation, self.HEARD, "adviser_heard")
        heard = bank[self._order(observation, len(bank))].format(it=phrases[0])
        return joined([heard, self.advice(observation)], observation.language)

    def advice(self, observation: Observation) -> str:
        """Return the next piece of advice."""
        bank = self._bank(observation, self.ADVICE, "adviser_advice")
        return bank[self._order(observation, len(bank))]
