"""The embedded actor: never the same words twice, reactions to what was said, a story that opens with trust."""

import asyncio
import random
import re
import string
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from echo_env.agents.embedded import EmbeddedActor, EmbeddedDirector, EmbeddedJudge
from echo_env.agents.embedded.actor import MAX_SENTENCES, voice
from echo_env.agents.embedded.answers import place_of
from echo_env.agents.embedded.language import read, split_sentences
from echo_env.build import build_policy
from echo_env.profiles import Scenario, benchmark, get_scenario
from echo_env.realism import contradictions, facts_of, tone
from echo_env.rewards import epm
from echo_env.roles import (
    ActorView,
    Cast,
    Cue,
    DirectorView,
    Exchange,
    Judge,
    JudgeView,
    Observation,
    Policy,
    cue_of,
    profiles_of,
)
from echo_env.scorers import get_scorer
from echo_env.session import DialogueSession
from echo_env.types import Direction, Judgement, Levels, Message

THIRTY = list(benchmark().values())
every_person = pytest.mark.parametrize("scenario", THIRTY, ids=[s.id for s in THIRTY])
PATIENCE = 45


class Rambler:
    """Answers with anything: words, marks, scripts, nothing."""

    id = "rambler"
    ALPHABET = string.printable + "äßçñéŁİ" + "你好мир" + "\u2019\u201c\u2026🙂\u200b\u202e"
    WORDS = ("your", "mother", "feel", "sad", "angry", "should", "job", "name", "why", "is", "it", "not", "you", "life")

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    async def respond(self, observation: Observation) -> str:
        rnd = random.Random(f"{self.seed}:{len(observation.messages)}:{observation.user}")
        if rnd.random() < 0.5:
            return "".join(rnd.choices(self.ALPHABET, k=rnd.randrange(120)))
        said = [*self.WORDS, *observation.user.split()]
        return " ".join(rnd.choices(said, k=rnd.randrange(1, 25))) + rnd.choice(".?!")


def policy_of(name: str) -> Policy:
    return Rambler() if name == "rambler" else build_policy(name)


@dataclass
class Talk:
    """A conversation that nothing ends: actor and director without a judge."""

    scenario: Scenario
    actor: EmbeddedActor
    messages: list[str] = field(default_factory=list)
    replies: list[str] = field(default_factory=list)

    @property
    def told(self) -> set[str]:
        """Ids of the lines that stand in a message."""
        return {item for item, line in self.scenario.items() if any(line.say in m for m in self.messages)}


async def converse(scenario: Scenario, policy: Policy, turns: int = PATIENCE, seed: int = 7) -> Talk:
    """Play with the embedded director, who is told of no judgement."""
    talk = Talk(scenario, EmbeddedActor(seed))
    director, (profile, _) = EmbeddedDirector(), profiles_of(scenario)
    history: tuple[Exchange, ...] = ()
    shown: list[Message] = []
    cue = Cue("flow")
    while True:
        talk.messages.append(await talk.actor.speak(ActorView(profile, history, cue)))
        if len(history) == turns:
            return talk
        shown.append(Message(role="user", text=talk.messages[-1]))
        talk.replies.append(await policy.respond(Observation(tuple(shown), scenario.language)))
        shown.append(Message(role="companion", text=talk.replies[-1]))
        history = (*history, Exchange(talk.messages[-1], talk.replies[-1]))
        none = (None,) * len(history)
        direction = await director.direct(DirectorView(scenario, history, scenario.p0, none, none, 12))
        if direction.function == "end_conversation":
            direction = Direction(function="continue_naturally")
        cue = cue_of(direction)


def say(scenario: Scenario, *replies: str, seed: int = 7, cue: Cue | None = None) -> list[str]:
    """The messages of a person who gets these replies, the opening first."""

    async def run() -> list[str]:
        actor, profile = EmbeddedActor(seed), profiles_of(scenario)[0]
        history: tuple[Exchange, ...] = ()
        messages = [await actor.speak(ActorView(profile, history, Cue("flow")))]
        for reply in replies:
            history = (*history, Exchange(messages[-1], reply))
            messages.append(await actor.speak(ActorView(profile, history, cue or Cue("flow"))))
        return messages

    return asyncio.run(run())


def bank(scenario: Scenario, *kinds: str) -> list[str]:
    """The phrases of this person's voice, slots as patterns."""
    found = voice(scenario.language, scenario.persona.register_)
    return [phrase for kind in kinds for phrase in found[kind]]


def reacts(scenario: Scenario, message: str, *kinds: str) -> bool:
    """Whether a message holds a phrase of one of these kinds."""
    patterns = (re.sub(r"\\\{\w+\\\}", ".+", re.escape(phrase)) for phrase in bank(scenario, *kinds))
    return any(re.search(pattern, message, re.IGNORECASE) for pattern in patterns)


POLICIES = ("silent", "template", "lecturer", "parrot", "rambler", "skilled")


@pytest.fixture(scope="session")
def talks() -> dict[str, list[Talk]]:
    """Every person, 45 turns, with each of several companions."""

    async def run() -> dict[str, list[Talk]]:
        return {name: [await converse(s, policy_of(name)) for s in THIRTY] for name in POLICIES}

    return asyncio.run(run())


def all_messages(talks: dict[str, list[Talk]]) -> Iterator[tuple[str, Talk, str]]:
    return ((name, talk, m) for name, found in talks.items() for talk in found for m in talk.messages)


# --- messages


def test_no_message_comes_twice_in_forty_five_turns(talks: dict[str, list[Talk]]) -> None:
    for name, found in talks.items():
        for talk in found:
            assert len(talk.messages) == PATIENCE + 1
            twice = [m for m, n in Counter(talk.messages).items() if n > 1]
            assert twice == [], (name, talk.scenario.id)


def sentences(talk: Talk, message: str) -> int:
    """Sentences of a message; a line of the story counts as one, since it may hold two short ones."""
    for line in talk.scenario.lines():
        message = message.replace(line.say, "A line.")
    for need in talk.scenario.needs:
        for ask in need.asks:
            message = message.replace(ask, "A line.")
    return len(split_sentences(message))


def test_a_message_is_a_few_sentences(talks: dict[str, list[Talk]]) -> None:
    for name, talk, message in all_messages(talks):
        assert 1 <= sentences(talk, message) <= MAX_SENTENCES + 1, (name, talk.scenario.id, message)
        assert message == message.strip()
        assert not re.search(r"[{}]|  ", message), message
        assert message[:1].upper() == message[:1], message


def test_a_message_is_one_to_three_sentences(talks: dict[str, list[Talk]]) -> None:
    long = [m for _, talk, m in all_messages(talks) if sentences(talk, m) > MAX_SENTENCES]
    assert long == []


def test_a_line_that_counts_as_told_was_said(talks: dict[str, list[Talk]]) -> None:
    for name, found in talks.items():
        for talk in found:
            heart = talk.actor._heart
            assert heart is not None
            assert set(heart.told) <= talk.told, (name, talk.scenario.id)


def test_a_reworded_message_is_written_properly() -> None:
    """Where a person runs out of words, an opener goes before them: "Well, is everything all right with you?"."""
    silent = policy_of("silent")
    talks = [asyncio.run(converse(s, silent, seed=seed)) for s in THIRTY[::3] for seed in range(3)]
    wrong = [m for t in talks for m in t.messages if re.match(r"(Well|So|Anyway|Look|But|Still|Again),? I[a-z]", m)]
    assert wrong == []


def test_a_name_keeps_its_capital_however_often_it_is_asked_for() -> None:
    asks = [
        f"What is your name, {word}?" for word in ("please", "friend", "then", "again", "now", "sir", "today", "mate")
    ]
    for scenario in THIRTY[:5]:
        name = scenario.persona.name.split()[0]
        assert all(name in message for message in say(scenario, *asks)[1:])


def test_the_opening_comes_first(talks: dict[str, list[Talk]]) -> None:
    assert all(talk.messages[0] == talk.scenario.opening.say for found in talks.values() for talk in found)


def test_no_line_of_the_story_comes_twice(talks: dict[str, list[Talk]]) -> None:
    for name, found in talks.items():
        for talk in found:
            said = "\n".join(talk.messages)
            twice = [line.say for line in talk.scenario.lines() if said.count(line.say) > 1]
            assert twice == [], (name, talk.scenario.id)


def test_a_good_listener_hears_more_than_a_bad_one(talks: dict[str, list[Talk]]) -> None:
    for good, bad in zip(talks["skilled"], talks["lecturer"], strict=True):
        assert len(good.told) >= 2 * len(bad.told), good.scenario.id
    assert min(len(talk.told) for talk in talks["skilled"]) >= 20


# --- reactions


@every_person
def test_a_question_about_age_job_or_name_is_answered(scenario: Scenario) -> None:
    p = scenario.persona
    assert str(p.age) in say(scenario, "How old are you?")[1]
    assert p.job.lower() in say(scenario, "What do you do for a living?")[1].lower()
    assert p.name.split()[0] in say(scenario, "May I ask what your name is? What is your name?")[1]


@pytest.mark.parametrize(
    "question",
    [
        "What do you do when the house goes quiet?",
        "What do they call that?",
        "How did your work feel after that day?",
        "Can I call you tomorrow?",
        "What do you do on a Sunday like that?",
    ],
)
def test_another_question_is_not_answered_with_name_or_job(question: str) -> None:
    for scenario in THIRTY:
        message = say(scenario, question)[1]
        assert not reacts(scenario, message, "job"), message
        assert scenario.persona.name.split()[0] not in message, message


def test_a_question_about_the_story_is_answered_from_the_story() -> None:
    answered = 0
    for scenario in THIRTY:
        line = scenario.beats[0].lines[0]
        message = say(scenario, f"What about {line.about}?")[1]
        answered += line.say in message
    assert answered >= 24, "most questions that name a line get it"


@every_person
@pytest.mark.parametrize("question", ["What age are you, if you don't mind?", "And how many years old are you?"])
def test_a_paraphrase_gets_the_same_answer(scenario: Scenario, question: str) -> None:
    assert str(scenario.persona.age) in say(scenario, question)[1]


@every_person
def test_a_fact_that_the_profile_lacks_is_not_made_up(scenario: Scenario) -> None:
    """Who has nobody of the kind in their story, or no town in it, says openly that they won't tell."""
    facts = facts_of(scenario)
    for question in ("Do you have a cat?", "Are you married?", "Where do you live?"):
        message = say(scenario, question)[1]
        assert contradictions(message, facts) == []
        own = "my " in message.lower() or place_of(scenario.persona.job) in message
        assert own or reacts(scenario, message, "dodge"), message


def test_a_fact_that_was_told_is_told_again_as_such() -> None:
    for scenario in THIRTY[::5]:
        name = scenario.persona.name.split()[0]
        first, second = say(scenario, "What is your name?", "What is your name?")[1:]
        assert reacts(scenario, first, "name")
        assert reacts(scenario, second, "again")
        assert name in first
        assert name in second


def test_asked_about_what_they_told_they_point_to_it() -> None:
    pointed = 0
    for scenario in THIRTY:
        message = say(scenario, f"What about {scenario.opening.about}?")[1]
        assert scenario.opening.say not in message, "no line twice"
        pointed += scenario.opening.about.rstrip(".") in message
    assert pointed >= 20


def test_who_somebody_is_brings_up_a_line_with_them() -> None:
    message = say(get_scenario("career-03"), "Who is Larissa?")[1]
    assert "Larissa" in message


@pytest.mark.parametrize(
    ("reply", "kinds"),
    [
        ("Ha, good one. What a drama.", ("mocked",)),
        ("Nobody cares about that. You'll get over it.", ("blamed", "dismissed")),
        ("You are so careless.", ("blamed",)),
        ("If you had been there, it would not have happened.", ("blamed",)),
        ("My favourite colour is blue, what is yours? I had pasta for lunch.", ("ignored",)),
        ("Why did you lie? What were you thinking? Why can't you just say it?", ("mocked", "dismissed", "blamed")),
    ],
)
def test_they_do_not_take_ill_manners_well(reply: str, kinds: tuple[str, ...]) -> None:
    for scenario in THIRTY[::3]:
        message = say(scenario, reply)[1]
        assert reacts(scenario, message, *kinds), message
        assert tone(message) < 0, message


def test_a_question_for_a_nod_is_not_answered_with_a_fact() -> None:
    for scenario in THIRTY[::3]:
        message = say(scenario, f"You still carry {scenario.opening.about} around, don't you?")[1]
        assert not reacts(scenario, message, "dodge", "unknown", "told_before"), message


LECTURES = (
    "You need to accept what you cannot change. Life is about growth.",
    "It's important to keep a positive mindset, because happiness comes from within.",
)


@every_person
def test_they_bristle_when_lectured(scenario: Scenario) -> None:
    messages = say(scenario, *LECTURES)[1:]
    for message in messages:
        assert reacts(scenario, message, "lectured"), message
        assert not any(line.say in message for line in scenario.lines()), "nothing new after a lecture"


@every_person
def test_they_are_hurt_when_blamed(scenario: Scenario) -> None:
    message = say(scenario, "Honestly, you overreact. It is your own fault.")[1]
    assert reacts(scenario, message, "blamed"), message
    assert not any(line.say in message for line in scenario.lines())


@pytest.mark.parametrize(
    "reply",
    [
        "It wasn't your fault that it went this way.",
        "It must sting to get overlooked like that.",
        "Was it ridiculous of them to do that?",
    ],
)
def test_words_of_blame_on_their_side_do_not_hurt(reply: str) -> None:
    assert [m for s in THIRTY if reacts(s, m := say(s, reply)[1], "blamed")] == []


@pytest.mark.parametrize("reply", ["Where did you leave the key that day?", "What did you hope from your studies?"])
def test_a_question_about_a_key_or_studies_is_no_lecture(reply: str) -> None:
    assert [m for s in THIRTY if reacts(s, m := say(s, reply)[1], "lectured")] == []


@pytest.mark.parametrize("scenario", [s for s in THIRTY if s.opening.feeling], ids=lambda s: s.id)
def test_they_soften_when_understood(scenario: Scenario) -> None:
    kind_reply = f"You sound {scenario.opening.feeling} to me about {scenario.opening.about}."
    reactions = [say(scenario, kind_reply, seed=seed)[1] for seed in range(6)]
    assert sum(reacts(scenario, m, "understood") for m in reactions) >= 3
    assert not any(reacts(scenario, m, "hollow", "lectured", "blamed", "noise") for m in reactions)
    actor, profile = EmbeddedActor(1), profiles_of(scenario)[0]
    asyncio.run(actor.speak(ActorView(profile, (), Cue("flow"))))
    heart = actor._heart
    assert heart is not None
    before = heart.trust, heart.tension
    view = ActorView(profile, (Exchange(scenario.opening.say, kind_reply),), Cue("flow"))
    asyncio.run(actor.speak(view))
    assert heart.trust > before[0]
    assert heart.tension < before[1]


@every_person
def test_they_correct_a_wrong_relation(scenario: Scenario) -> None:
    spoken = " ".join([*(line.say for line in scenario.lines()), scenario.situation.summary]).lower()
    stranger = next(r for r in ("husband", "wife", "aunt", "uncle", "cousin", "boss") if r not in spoken)
    message = say(scenario, f"Did you talk it over with your {stranger}?")[1]
    assert stranger in message
    assert reacts(scenario, message, "misread"), message


@every_person
@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        ("", "silence"),
        ("🙂🙂🙂", "noise"),
        ("qwpo zxmn vbla trew ploi mnbu vcxz asdf", "noise"),
    ],
)
def test_they_say_so_when_there_is_nothing_to_answer(scenario: Scenario, reply: str, kind: str) -> None:
    assert reacts(scenario, say(scenario, reply)[1], kind)


@every_person
def test_they_notice_a_sentence_that_came_before(scenario: Scenario) -> None:
    reply = "There is so much in what you tell me."
    assert reacts(scenario, say(scenario, reply, reply)[2], "repeated")


def test_advice_is_welcome_to_someone_who_wants_it() -> None:
    welcomed = 0
    for scenario in (s for s in THIRTY if s.dominant == "P"):
        messages = say(
            scenario,
            *(f"You could try one small step with {line.about}." for line in list(scenario.lines())[:6]),
            cue=Cue("tell", tuple(item for item, _ in scenario.items())),
        )
        welcomed += sum(reacts(scenario, m, "advised_welcome") for m in messages)
    assert welcomed > 0


def test_they_close_when_it_ends_well_and_leave_when_not() -> None:
    for scenario in THIRTY:
        assert say(scenario, "I hear you.", cue=Cue("close"))[1] in scenario.ending.says
        assert reacts(scenario, say(scenario, "I hear you.", cue=Cue("leave"))[1], "leave")


def test_they_let_a_need_show_on_a_hint() -> None:
    for scenario in THIRTY:
        asks = scenario.needs[0].asks
        ids = tuple(f"need0.{k}" for k in range(len(asks)))
        messages = say(scenario, "Tell me more?", "Go on?", cue=Cue("hint", ids))
        assert asks[0] in messages[1]
        assert asks[1] in messages[2]


# --- trust


@pytest.mark.parametrize("name", ["silent", "template", "lecturer", "parrot"])
def test_who_does_not_listen_never_hears_of_the_turning_point(talks: dict[str, list[Talk]], name: str) -> None:
    for talk in talks[name]:
        assert not any(item.startswith("turn.") for item in talk.told), talk.scenario.id


def test_who_listens_hears_of_it(talks: dict[str, list[Talk]]) -> None:
    reached = sum(any(item.startswith("turn.") for item in talk.told) for talk in talks["skilled"])
    assert reached >= 20


@every_person
def test_nobody_tells_it_to_a_stranger_though_the_director_asks_for_it(scenario: Scenario) -> None:
    hidden = tuple((item, line) for item, line in scenario.items() if item.startswith("turn."))
    cue = Cue("tell", tuple(item for item, _ in hidden), scenario.turning_point.event)
    messages = say(scenario, "Hello there.", "Tell me.", cue=cue)
    assert not any(line.say in m for _, line in hidden for m in messages)


@every_person
def test_nobody_tells_it_to_a_stranger_who_asks_outright(scenario: Scenario) -> None:
    for line in scenario.turning_point.lines:
        words = " ".join(w for s in read(line.say).sentences for w in s.telling)
        message = say(scenario, f"What happened with {words}?")[1]
        assert line.say not in message


# --- independence of the judge


@dataclass
class Fixed:
    """A director who makes the same calls whatever happens, or records those of another."""

    calls: list[Direction]
    source: EmbeddedDirector | None = None
    id: str = "fixed"

    async def direct(self, view: DirectorView) -> Direction:
        if self.source is not None:
            self.calls.append(await self.source.direct(view))
            return self.calls[-1]
        return self.calls[len(view.history) - 1]


@dataclass
class Says:
    """A judge with one opinion, or none."""

    levels: Levels | None
    id: str = "says"
    rubric: str = "none"

    async def judge(self, view: JudgeView) -> Judgement | None:
        # two silences in a row at most: the third would end the conversation
        if self.levels is None and len(view.history) % 3 < 2:
            return None
        return Judgement(levels=self.levels or Levels(), judge=self.id)


class Breaks:
    id = "breaks"
    rubric = "none"

    async def judge(self, view: JudgeView) -> Judgement | None:
        if len(view.history) % 3 == 2:
            return Judgement(levels=Levels(), judge=self.id)
        raise RuntimeError("no judgement today")


BEFORE_ANY_END = 11
"""Turns that every judge leaves alone: success and failure are decided from the twelfth on."""


def heard_by(scenario: Scenario, judge: Judge, director: Fixed | EmbeddedDirector, policy: Policy) -> list[str]:
    async def run() -> list[str]:
        cast = Cast(EmbeddedActor(5), director, judge)
        session = DialogueSession(scenario, cast, get_scorer("strict"), epm())
        observation = await session.open()
        for _ in range(BEFORE_ANY_END):
            observation = (await session.reply(await policy.respond(observation))).observation
        return [m.text for m in observation.messages if m.role == "user"]

    return asyncio.run(run())


OTHER_JUDGES: list[Judge] = [Says(None), Says(Levels(2, 0, 2, 0, 2, 0)), Says(Levels(0, -2, 0, -2, 0, -2)), Breaks()]


@every_person
def test_the_judge_does_not_move_the_person(scenario: Scenario) -> None:
    """With the director's calls held, whatever the judge says the person says the same."""
    policy = build_policy("adviser" if scenario.id.endswith("3") else "skilled")
    calls = Fixed([], EmbeddedDirector())
    expected = heard_by(scenario, EmbeddedJudge(), calls, policy)
    assert len(calls.calls) == BEFORE_ANY_END
    for judge in OTHER_JUDGES:
        assert heard_by(scenario, judge, Fixed(calls.calls), policy) == expected


def test_the_judge_moves_the_person_through_the_director_alone() -> None:
    """The counterpart: with a director who listens to the judge, the messages do change."""
    policy = build_policy("skilled")
    changed = [
        s.id
        for s in THIRTY[:6]
        if heard_by(s, OTHER_JUDGES[1], EmbeddedDirector(), policy)
        != heard_by(s, OTHER_JUDGES[2], EmbeddedDirector(), policy)
    ]
    assert len(changed) >= 4


# --- seeds


def test_the_same_seed_gives_the_same_person(talks: dict[str, list[Talk]]) -> None:
    for name in ("skilled", "rambler", "silent"):
        for talk in talks[name][::6]:
            again = asyncio.run(converse(talk.scenario, policy_of(name)))
            assert again.messages == talk.messages


def test_another_seed_gives_other_words(talks: dict[str, list[Talk]]) -> None:
    for name in ("skilled", "template", "silent"):
        for talk in talks[name][::6]:
            other = asyncio.run(converse(talk.scenario, policy_of(name), turns=12, seed=8))
            assert other.messages[0] == talk.messages[0]
            assert other.messages != talk.messages[:13]


def test_two_people_at_once_do_not_touch_each_other() -> None:
    one, other = THIRTY[0], THIRTY[17]
    replies = [LECTURES[0], "", "How old are you?", "I hear you.", "You sound lonely."]
    alone = say(one, *replies), say(other, *replies)

    async def interleaved() -> tuple[list[str], list[str]]:
        actors = EmbeddedActor(7), EmbeddedActor(7)
        profiles = profiles_of(one)[0], profiles_of(other)[0]
        said: tuple[list[str], list[str]] = ([], [])
        histories: list[tuple[Exchange, ...]] = [(), ()]
        for reply in [None, *replies]:
            for k in (0, 1):
                if reply is not None:
                    histories[k] = (*histories[k], Exchange(said[k][-1], reply))
                said[k].append(await actors[k].speak(ActorView(profiles[k], histories[k], Cue("flow"))))
        return said

    assert asyncio.run(interleaved()) == alone


def refuse(*args: object, **kwargs: object) -> None:
    raise AssertionError("global random state was used")


def test_no_global_random_state_is_used(monkeypatch: pytest.MonkeyPatch, talks: dict[str, list[Talk]]) -> None:
    for name in ("random", "choice", "choices", "shuffle", "sample", "randint", "randrange", "uniform", "seed"):
        monkeypatch.setattr(random, name, refuse)
    for name in ("random", "rand", "randn", "randint", "choice", "shuffle", "permutation", "seed"):
        monkeypatch.setattr(np.random, name, refuse)
    for name in ("skilled", "template"):
        talk = talks[name][3]
        assert asyncio.run(converse(talk.scenario, policy_of(name))).messages == talk.messages


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(
    st.sampled_from(THIRTY),
    st.lists(st.one_of(st.text(max_size=200), st.sampled_from(["{it} {0} %s", "your " * 30, "I'm?", "?"])), max_size=8),
)
def test_any_reply_gets_an_answer(scenario: Scenario, replies: list[str]) -> None:
    messages = say(scenario, *replies)
    assert len(set(messages)) == len(replies) + 1
    assert all(m.strip() == m and m for m in messages)
