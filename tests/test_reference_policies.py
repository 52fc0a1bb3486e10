"""What the reference policies earn on the benchmark, and what they may know: bar 4 of the first milestone."""

import asyncio
import random
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from statistics import mean

import pytest

from echo_env.agents.controls import Swapped, user_messages
from echo_env.agents.embedded import listening
from echo_env.agents.embedded.anchors import rubric
from echo_env.agents.embedded.language import split_sentences
from echo_env.agents.embedded.orderly import ROWS, InOrder, Orderly, told
from echo_env.agents.embedded.policies import Adviser, Lecturer, Parrot, Silent, Stuffer, Template
from echo_env.agents.embedded.skilled import Skilled, phrases
from echo_env.build import WorldConfig, build_policy, build_session, conversation_seed
from echo_env.profiles import CLUSTER_OF, Scenario, benchmark, get_scenario, scenario_ids
from echo_env.roles import Observation, Policy
from echo_env.types import End, Message

THIRTY = list(benchmark().values())
FLOOR = ("silent", "template", "lecturer", "stuffer", "parrot")
ALL = (*FLOOR, "adviser", "orderly", "skilled")
WORLD = WorldConfig(backend="embedded", scorer="strict", recipe="epm")


@dataclass(frozen=True)
class Play:
    """One conversation with seed 0."""

    scenario: str
    end: End
    reward: float
    messages: tuple[Message, ...]

    @property
    def success(self) -> bool:
        return self.end == "success"

    @property
    def said(self) -> list[str]:
        """The companion's replies."""
        return [m.text for m in self.messages if m.role == "companion"]


async def play(policy: Policy, scenario: Scenario) -> Play:
    session = build_session(WORLD, scenario, conversation_seed(0, scenario.id))
    observation, reward = await session.open(), 0.0
    while session.outcome is None:
        advance = await session.reply(await policy.respond(observation))
        assert advance.turn.reward is not None
        observation, reward = advance.observation, reward + advance.turn.reward
    return Play(scenario.id, session.outcome.end, reward, observation.messages)


@pytest.fixture(scope="session")
def plays() -> dict[str, list[Play]]:
    """Every reference policy with every person of the benchmark."""

    async def run() -> dict[str, list[Play]]:
        return {name: [await play(build_policy(name, 0), s) for s in THIRTY] for name in ALL}

    return asyncio.run(run())


def success_rate(found: list[Play]) -> float:
    return mean(p.success for p in found)


def mean_return(found: list[Play]) -> float:
    return mean(p.reward for p in found)


# --- what they earn


def test_skilled_succeeds_with_seven_in_ten(plays: dict[str, list[Play]]) -> None:
    assert success_rate(plays["skilled"]) >= 0.70, Counter(p.end for p in plays["skilled"])


@pytest.mark.parametrize("name", FLOOR)
def test_the_floor_succeeds_with_nobody(plays: dict[str, list[Play]], name: str) -> None:
    assert [p.scenario for p in plays[name] if p.success] == []


def test_the_adviser_stands_between_the_floor_and_skilled(plays: dict[str, list[Play]]) -> None:
    returns = {name: mean_return(found) for name, found in plays.items()}
    assert max(returns[name] for name in FLOOR) < returns["adviser"] < returns["skilled"], returns


def test_a_success_is_worth_more_than_any_failure(plays: dict[str, list[Play]]) -> None:
    every = [p for found in plays.values() for p in found]
    assert min(p.reward for p in every if p.success) > max(p.reward for p in every if not p.success)
    assert all(p.reward < 0 for name in FLOOR for p in plays[name])


def test_skilled_is_not_carried_by_one_kind_of_person(plays: dict[str, list[Play]]) -> None:
    won = {p.scenario for p in plays["skilled"] if p.success}
    for axis in ("C", "A", "P"):
        mine = [s.id for s in THIRTY if s.dominant == axis]
        assert len(won & set(mine)) >= 5, axis
    for threshold in ("low", "high"):
        mine = [s.id for s in THIRTY if s.threshold == threshold]
        assert len(won & set(mine)) >= 8, threshold


# --- what they need


def test_skilled_falls_by_more_than_half_when_it_hears_someone_else(plays: dict[str, list[Play]]) -> None:
    async def swapped() -> list[Play]:
        heard = {p.scenario: [m.text for m in p.messages if m.role == "user"] for p in plays["skilled"]}
        others = [*THIRTY[7:], *THIRTY[:7]]  # someone of another domain
        return [await play(Swapped(Skilled(0), heard[o.id]), s) for s, o in zip(THIRTY, others, strict=True)]

    assert success_rate(asyncio.run(swapped())) < 0.5 * success_rate(plays["skilled"])


def test_a_swapped_policy_reads_the_other_talk_turn_by_turn() -> None:
    other = asyncio.run(user_messages(Template(0), THIRTY[9]))

    class Repeats:
        id = "repeats"

        async def respond(self, observation: Observation) -> str:
            return " | ".join(m.text for m in observation.messages)

    swapped = Swapped(Repeats(), other)
    mine = Observation(
        (Message(role="user", text="a"), Message(role="companion", text="b"), Message(role="user", text="c"))
    )
    assert asyncio.run(swapped.respond(mine)) == f"{other[0]} | b | {other[1]}"
    long = Observation(tuple(Message(role="user" if k % 2 == 0 else "companion", text=str(k)) for k in range(201)))
    assert asyncio.run(swapped.respond(long)).endswith(other[-1]), "the last message stays when the other talk is over"
    with pytest.raises(ValueError, match="at least one message"):
        Swapped(Repeats(), [])


def test_user_messages_are_those_of_the_talk(plays: dict[str, list[Play]]) -> None:
    heard = asyncio.run(user_messages(build_policy("adviser", 0), THIRTY[4]))
    assert list(heard) == [m.text for m in plays["adviser"][4].messages if m.role == "user"]


# --- what they know: the observation


class Strict(Observation):
    """An observation that is nothing else: whoever asks it for more is found out."""

    def __getattr__(self, name: str) -> object:
        raise AssertionError(f"a policy asked the observation for '{name}'")


def bare(*texts: str) -> Observation:
    roles = ("user", "companion")
    return Observation(tuple(Message(role=roles[k % 2], text=text) for k, text in enumerate(texts)))


@pytest.mark.parametrize("name", ALL)
def test_a_policy_needs_nothing_but_a_bare_observation(name: str) -> None:
    """No session, no scenario: a person whom no file knows."""
    observation = bare("My aunt sold the orchard on Friday, and I heard it from the postman.", "Oh?", "I can't sleep.")
    strict = Strict(observation.messages, observation.language)
    reply = asyncio.run(build_policy(name, 0).respond(strict))
    assert isinstance(reply, str)
    assert bool(reply) == (name != "silent")


def test_skilled_reads_no_scenario_of_the_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ear is fitted on lines of the train split, and on no others."""
    asked: list[str] = []

    def watched(name: str) -> Scenario:
        asked.append(name)
        return get_scenario(name)

    monkeypatch.setattr(listening, "get_scenario", watched)
    listening.trained_ear.cache_clear()
    asyncio.run(Skilled(0).respond(bare("My aunt sold the orchard on Friday.")))
    assert asked
    assert {name.rpartition("-")[0] for name in asked} == {"train"}
    assert set(asked) <= set(scenario_ids("train"))


def test_a_reply_is_a_function_of_the_talk(plays: dict[str, list[Play]]) -> None:
    """The same observation twice, by an old and a new instance, in any order: the same reply, and the recorded one."""
    for name, found in plays.items():
        old = build_policy(name, 0)
        asks = [(Observation(p.messages[: 2 * k + 1]), p.said[k]) for p in found[::5] for k in range(0, len(p.said), 3)]
        random.Random(0).shuffle(asks)
        for observation, said in asks:
            assert asyncio.run(old.respond(observation)) == said
            assert asyncio.run(old.respond(observation)) == said
            assert asyncio.run(build_policy(name, 0).respond(observation)) == said


def test_no_global_random_state_is_used(monkeypatch: pytest.MonkeyPatch, plays: dict[str, list[Play]]) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("global random state was used")

    for name in ("random", "choice", "choices", "shuffle", "sample", "randint", "randrange", "uniform", "seed"):
        monkeypatch.setattr(random, name, refuse)
    for name in ALL:
        p = plays[name][11]
        assert asyncio.run(build_policy(name, 0).respond(Observation(p.messages[:5]))) == p.said[2]


@pytest.mark.parametrize("name", ["template", "lecturer", "adviser", "stuffer", "skilled"])
def test_another_seed_takes_another_order(name: str) -> None:
    def said(seed: int) -> list[str]:
        policy = build_policy(name, seed)
        texts = ["My aunt sold the orchard on Friday.", "Oh?"] * 6
        return [asyncio.run(policy.respond(bare(*texts[: 2 * k + 1]))) for k in range(6)]

    assert said(0) != said(1)


def test_names_are_those_of_the_registry() -> None:
    for name, kind in zip(ALL, (Silent, Template, Lecturer, Stuffer, Parrot, Adviser, Orderly, Skilled), strict=True):
        assert type(build_policy(name)) is kind
        assert build_policy(name).id == name


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("message", ["", "?!", "🙂", "…", "{it} {feeling} %s", "a " * 500, "Ünïcödé wörds.", "No."])
def test_any_message_gets_a_reply(name: str, message: str) -> None:
    reply = asyncio.run(build_policy(name, 0).respond(bare("Hello.", "Yes?", message)))
    assert isinstance(reply, str)
    assert bool(reply.strip()) == (name != "silent")


# --- where skilled's words come from


def words(text: str) -> list[str]:
    return re.findall(r"[^\W_]+(?:['-][^\W_]+)*", text.lower().replace("\u2019", "'"))


def runs(text: str, n: int = 5) -> Iterator[tuple[str, ...]]:
    """Runs of `n` words within one sentence."""
    for sentence in split_sentences(text):
        said = words(sentence)
        yield from (tuple(said[i : i + n]) for i in range(len(said) - n + 1))


def rubric_runs() -> set[tuple[str, ...]]:
    """Runs of five words of the rubric's examples, slots filled as they stand, and of what it looks for."""
    found = rubric("epm_v1")
    texts = [t for a in found.anchors for t in (*a.for_, *a.against, a.looks_like)] + list(found.neutral)
    return {run for text in texts for run in runs(re.sub(r"[{}]", "", text))}


def test_skilled_shares_no_five_words_in_a_row_with_the_rubric() -> None:
    known = rubric_runs()
    written = [phrase for bank in phrases().values() for phrase in bank]
    assert [p for p in written if known & set(runs(re.sub(r"\{\w+\}", "SLOT", p)))] == []


def test_what_skilled_said_shares_none_either(plays: dict[str, list[Play]]) -> None:
    known = rubric_runs()
    shared = [run for p in plays["skilled"] for reply in p.said for run in runs(reply) if run in known]
    assert Counter(shared) == Counter()


def test_the_search_for_shared_words_finds_them() -> None:
    assert set(runs("Perhaps: knowing it now is not the same, as I said.")) & rubric_runs()


def test_skilled_repeats_no_sentence_within_a_talk(plays: dict[str, list[Play]]) -> None:
    for p in plays["skilled"]:
        said = Counter(p.said)
        assert max(said.values()) == 1, p.scenario


def test_orderly_listens_as_well(plays: dict[str, list[Play]]) -> None:
    assert success_rate(plays["orderly"]) >= 0.70, Counter(p.end for p in plays["orderly"])


def test_orderly_repeats_no_sentence_within_a_talk(plays: dict[str, list[Play]]) -> None:
    for p in plays["orderly"]:
        assert max(Counter(p.said).values()) == 1, p.scenario


def test_orderlys_phrases_come_in_order_for_every_move_alike() -> None:
    talk = [Message(role="companion" if k % 2 else "user", text=f"line {k}") for k in range(99)]
    banks = {move: bank for move, bank in phrases().items() if len(bank) >= ROWS}
    rows = []
    for turn in range(50):
        listener = InOrder(Observation(tuple(talk[: 2 * turn + 1])), (), "", 0)
        (row,) = {bank.index(listener.phrase(move, 0)) for move, bank in banks.items()}
        rows.append(row)
    assert [(b - a) % ROWS for a, b in pairwise(rows)] == [1] * 49


def test_orderly_goes_back_to_what_it_took_up_two_replies_ago() -> None:
    talk = [Message(role="user", text="I lost the silver watch of my grandfather.")]
    replies = []
    for line in ("The piano is locked.", "Nobody waters the orchard.", ""):
        replies.append(asyncio.run(Orderly().respond(Observation(tuple(talk)))))
        talk += [Message(role="companion", text=replies[-1]), Message(role="user", text=line)]
    assert "the silver watch" in replies[0]
    assert "the silver watch" not in replies[1]
    assert "the silver watch" in replies[2]
    assert "the orchard" in replies[2]


@pytest.mark.parametrize(
    ("user", "moves"),
    [
        ("They sold the orchard. I was ashamed of the auction.", ["name", "affirm"]),
        ("They sold the orchard.", ["validate", "affirm"]),
        ("I'd like to see the orchard again.", ["empower", "validate"]),
        ("I am ashamed of the auction. I want to buy the orchard back.", ["empower", "name"]),
        ("...", ["lean"]),
    ],
)
def test_orderly_listens_by_plain_words(user: str, moves: list[str]) -> None:
    answers = told(InOrder.to_newest(Observation((Message(role="user", text=user),))))
    assert [answer.move for answer in answers] == moves


def test_skilled_names_feelings_the_person_may_have(plays: dict[str, list[Play]]) -> None:
    """It does name them, and not the same one to everybody."""
    named = Counter(word for p in plays["skilled"] for reply in p.said for word in words(reply) if word in CLUSTER_OF)
    assert sum(named.values()) >= 100
    assert len(named) >= 15
    assert named.most_common(1)[0][1] < 0.4 * sum(named.values())


def test_every_phrase_fills_its_slots() -> None:
    slots = {"it": "the orchard", "feeling": "sad", "Feeling": "Sad", "earlier": "the postman"}
    for move, bank in phrases().items():
        assert len(bank) == len(set(bank)), move
        for phrase in bank:
            assert not re.search(r"[{}]", phrase.format(**slots)), phrase
            assert "{it}" in phrase or "{earlier}" in phrase or move == "lean", phrase
