"""Recipes with judges of their own: echo_n1 and humanlike, their embedded judges, and scoring of one reply."""

from __future__ import annotations

import asyncio
import json
import math
import random
import re
import time
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from echo_env import registry
from echo_env.agents.embedded.humanlike import EmbeddedHumanlike
from echo_env.agents.embedded.language import read
from echo_env.agents.embedded.opentalk import open_profile
from echo_env.agents.embedded.pairwise import EmbeddedEmpathy
from echo_env.agents.embedded.tone import tone
from echo_env.agents.scoring import ScorablePrompt, score_replies, score_reply
from echo_env.build import WorldConfig, build_policy, build_session, recipe_of
from echo_env.driving import run_now
from echo_env.env import CompanionEnv
from echo_env.errors import ConfigError
from echo_env.profiles import data_root, get_scenario, scenario_ids
from echo_env.recipes import MOST_REFERENCES, REFERENCE, Reference, echo_n1, reference_policy
from echo_env.rewards import ReplyView, Step, group_rewards
from echo_env.roles import Exchange, JudgeView, Observation, profiles_of
from echo_env.scorers import StrictScorer
from echo_env.types import Episode, Verdict
from echo_env.yamlfiles import read_yaml

SOME = scenario_ids("benchmark")[::6]
PLAYED = 12


class Fails:
    """A judge that has no verdict to give."""

    id = "fails-1"

    async def verdict(self, view: ReplyView) -> Verdict:
        raise TimeoutError("no answer within 60 s")


class Odd:
    """A trained judge of somebody's, with another name for what it judges."""

    id = "odd-1"

    async def verdict(self, view: ReplyView) -> Verdict:
        return Verdict(kind="tone", judge=self.id, value=1.0)


class Nothing:
    id = "nothing-1"

    async def verdict(self, view: ReplyView) -> Any:
        return 1.0


class Dies:
    """A reference policy that cannot be reached."""

    id = "dies"

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    async def respond(self, observation: Observation) -> str:
        raise ConnectionError("refused")


class Counts:
    id = "counts"
    asked = 0

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    async def respond(self, observation: Observation) -> str:
        type(self).asked += 1
        return f"<think>hm</think>So it comes down to that. ({self.asked})"


def step(*verdicts: Verdict) -> Step:
    scorer = StrictScorer()
    state = scorer.start((-10.0, -20.0, -10.0))
    return Step(scorer, state, state, None, judged=False, verdicts=verdicts)


def verdict(kind: str, value: float | None, **parts: float) -> Verdict:
    return Verdict(kind=kind, judge="j-1", value=value, parts=parts)


def view(user: str, reply: str, *history: tuple[str, str], reference: str | None = None) -> ReplyView:
    past = tuple(Exchange(*h) for h in history)
    return ReplyView(JudgeView(open_profile(past, user), past, Exchange(user, reply)), reference=reference)


def played(policy: str, recipe: str, names: list[str] = SOME, turns: int = PLAYED, **options: Any) -> list[Verdict]:
    """All verdicts of a policy's conversations."""

    async def play() -> list[Verdict]:
        found: list[Verdict] = []
        for name in names:
            world = WorldConfig(recipe=recipe, recipe_options=options, max_turns=turns)
            session, player = build_session(world, get_scenario(name), 1), build_policy(policy)
            observation = await session.open()
            while session.outcome is None:
                advance = await session.reply(await player.respond(observation))
                found += advance.turn.verdicts
                observation = advance.observation
        return found

    return run_now(play())


# ---- the arithmetic of equations 5 to 7 ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("empathy", "human", "parts"),
    [
        (verdict("empathy", 1.0, process=1.0), 1.0, {"empathy": 1.0, "humanlike": 1.0}),
        (verdict("empathy", 1.0, process=0.75), 1.0, {"empathy": 0.75, "humanlike": 1.0}),
        (verdict("empathy", 0.0, process=1.0), 1.0, {"empathy": 0.0, "humanlike": 1.0}),
        (verdict("empathy", 1.0, process=0.5), 0.0, {"empathy": 0.5, "humanlike": 0.0}),
        (verdict("empathy", None), 1.0, None),
        (verdict("empathy", 1.0, process=1.0), None, None),
    ],
)
def test_the_reward_is_gated_empathy_plus_humanlike(
    empathy: Verdict, human: float | None, parts: dict[str, float] | None
) -> None:
    assert echo_n1().turn(step(empathy, verdict("humanlike", human))) == parts


def test_chit_chat_has_the_humanlike_part_alone_and_no_verdict_is_no_zero() -> None:
    assert echo_n1().turn(step(verdict("humanlike", 1.0))) == {"humanlike": 1.0}
    assert echo_n1().turn(step()) is None


def test_recorded_verdicts_are_rewarded_again_without_asking_anybody() -> None:
    session = build_session(WorldConfig(recipe="echo_n1", max_turns=3), get_scenario(SOME[0]), 1)
    policy = build_policy("skilled")
    observation, turns = run_now(session.open()), []
    while session.outcome is None:
        advance = run_now(session.reply(run_now(policy.respond(observation))))
        turns.append(advance.turn)
        observation = advance.observation
    from echo_env.build import episode_header

    episode = Episode(header=episode_header(session, "skilled", 1, 0), turns=tuple(turns), outcome=session.outcome)
    assert Episode.model_validate_json(episode.model_dump_json()) == episode
    again = group_rewards(recipe_of(WorldConfig(recipe="echo_n1")), [episode], StrictScorer())
    assert again == [[t.reward for t in turns]]


# ---- a verdict that is missing ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("judge", ["Fails", "Nothing"])
def test_a_judge_that_fails_is_no_reward_and_says_why(judge: str) -> None:
    env = CompanionEnv(recipe="echo_n1", recipe_options={"humanlike": f"{__name__}:{judge}"}, scenario=SOME[0])
    env.reset(seed=1)
    _, reward, terminated, truncated, info = env.step("Who was with you when you heard?")
    assert math.isnan(reward)
    assert (terminated, truncated) == (False, False)
    assert info["judge_failed"] is True
    empathy, human = info["verdicts"]
    assert (empathy.kind, human.kind) == ("empathy", "humanlike")
    assert empathy.value is not None
    assert human.value is None
    assert human.failure.startswith("humanlike: ")
    assert human.failure in info["turn"].failure
    assert info["reward_parts"] == {}


def test_a_reference_that_fails_is_a_missing_verdict() -> None:
    options = {"reference": f"{__name__}:Dies"}
    env = CompanionEnv(recipe="echo_n1", recipe_options=options, scenario=SOME[0])
    env.reset(seed=1)
    _, reward, *_, info = env.step("Who was with you when you heard?")
    assert math.isnan(reward)
    assert info["verdicts"][0].failure == "empathy: ConnectionError: refused"
    assert info["verdicts"][1].value is not None


def test_info_carries_verdict_reasoning_reference_and_parts() -> None:
    env = CompanionEnv(recipe="echo_n1", scenario=SOME[0])
    env.reset(seed=1)
    _, reward, *_, info = env.step("No wonder that is still in the room with you. Who was with you when you heard?")
    empathy, human = info["verdicts"]
    assert reward == pytest.approx(empathy.parts["process"] * empathy.value + human.value)
    assert empathy.reference
    assert "work" in empathy.reasoning
    assert human.reasoning
    assert info["reward_parts"].keys() == {"empathy", "humanlike"}
    assert json.loads(empathy.model_dump_json())["judge"] == "embedded-pairwise-1"


# ---- names and settings ----------------------------------------------------------------------------------------------


def test_a_judge_of_anybodys_plugs_in_by_name() -> None:
    registry.register("humanlike", "mine", f"{__name__}:Odd")
    try:
        assert "mine" in registry.names("humanlike")
        assert [v.kind for v in played("adviser", "humanlike", SOME[:1], 2, humanlike="mine")] == ["humanlike"] * 2
    finally:
        del registry._TARGETS["humanlike"]["mine"]


@pytest.mark.parametrize(
    ("recipe", "options", "told"),
    [
        ("echo_n1", {"humanlike": "embeded"}, "did you mean 'embedded'"),
        ("echo_n1", {"reference": "advisor"}, "did you mean 'adviser'"),
        ("echo_n1", {"self_correction": True}, "empathy judge 'embedded' does not take"),
        ("humanlike", {"reference": "adviser"}, "recipe 'humanlike' does not take"),
        ("echo_n1", {"judges": "llm:/nowhere/models.yaml"}, "models.yaml"),
    ],
)
def test_a_wrong_setting_is_an_error_at_once(recipe: str, options: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError) as error:
        CompanionEnv(recipe=recipe, recipe_options=options)
    assert told in str(error.value)


def test_the_reference_is_asked_once_for_a_point_of_a_conversation() -> None:
    frozen = Reference("counts", Counts())
    asked = view("My dad sold the ovens.", "One reply.")
    first = run_now(frozen.complete(asked))
    second = run_now(
        frozen.complete(
            replace(asked, judged=replace(asked.judged, exchange=Exchange(asked.judged.exchange.user, "Another.")))
        )
    )
    assert first.reference == second.reference == "So it comes down to that. (1)"
    given = run_now(frozen.complete(view("Another point.", "x", reference="The prompt's own.")))
    assert given.reference == "The prompt's own."
    assert Counts.asked == 1
    assert reference_policy(REFERENCE) is reference_policy(REFERENCE)
    for k in range(MOST_REFERENCES + 1):
        run_now(frozen.complete(view(f"Point {k}", "x")))
    from echo_env import recipes

    assert len(recipes._replies) == MOST_REFERENCES


# ---- the pairwise judge ----------------------------------------------------------------------------------------------


def test_the_default_reference_beats_nobody_and_listening_beats_it() -> None:
    rates = {
        policy: [v.value for v in played(policy, "echo_n1") if v.kind == "empathy"]
        for policy in ("skilled", "adviser", "silent", "template")
    }
    means = {policy: sum(v or 0.0 for v in values) / len(values) for policy, values in rates.items()}
    assert None not in [v for values in rates.values() for v in values]
    assert means["skilled"] > 0.5
    assert means["adviser"] == 0.0, "a reply never beats itself"
    assert means["silent"] == 0.0
    assert means["template"] < 0.1


def _compare(judge: EmbeddedEmpathy, person: str, history: tuple[Exchange, ...], user: str, a: str, b: str) -> Verdict:
    scenario = get_scenario(person)
    judged = JudgeView(profiles_of(scenario)[1], history, Exchange(user, a))
    return run_now(judge.verdict(ReplyView(judged, reference=b, deficit=scenario.p0)))


LINES = [line.say for _, line in get_scenario(SOME[0]).items()][:8]
SAID = [
    "No wonder you are angry about that.",
    "What would you like to happen now?",
    "",
    "You should get it in writing.",
    "Your feelings are valid.",
    "You are ashamed of that, and you need not be.",
    "Shut up, nobody asked you.",
]


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(LINES), st.sampled_from(SAID)), max_size=4),
    st.sampled_from(LINES),
    st.sampled_from(SAID),
    st.sampled_from(SAID),
)
def test_the_order_cannot_matter(past: list[tuple[str, str]], user: str, a: str, b: str) -> None:
    history = tuple(Exchange(*p) for p in past)
    one = _compare(EmbeddedEmpathy(), SOME[0], history, user, a, b)
    other = _compare(EmbeddedEmpathy(), SOME[0], history, user, b, a)
    assert one.parts["reply"] == other.parts["reference"]
    assert one.parts["reference"] == other.parts["reply"]
    assert not (one.value and other.value)
    if a == b:
        assert one.value == other.value == 0.0
    if one.value:
        assert one.parts["reply"] > max(0.0, one.parts["reference"])


def test_going_on_with_a_conversation_is_judged_as_if_it_were_read_anew() -> None:
    judge, history = EmbeddedEmpathy(), ()
    for user, reply in zip(LINES, [s for s in SAID if s], strict=False):
        going_on = _compare(judge, SOME[0], history, user, reply, SAID[0])
        anew = _compare(EmbeddedEmpathy(), SOME[0], history, user, reply, SAID[0])
        assert going_on == anew
        history = (*history, Exchange(user, reply))
    other = _compare(judge, SOME[1], (), "Another person's words.", SAID[0], SAID[3])
    assert other == _compare(EmbeddedEmpathy(), SOME[1], (), "Another person's words.", SAID[0], SAID[3])


# ---- the humanlike judge ---------------------------------------------------------------------------------------------

DESERVE_NOTHING = (
    "silent", "one_word", "parrot", "template", "very_long", "emoji_wall", "prompt_injection", "word_salad",
    "fake_transcript", "advice_list",
)  # fmt: skip


@pytest.mark.parametrize("attack", DESERVE_NOTHING)
def test_attacks_are_not_taken_for_people(attack: str) -> None:
    values = [v.value for v in played(f"attack:{attack}", "humanlike", SOME[:3])]
    assert len(values) == 3 * PLAYED
    assert sum(v or 0.0 for v in values) < 0.4 * len(values)


BY_HAND = [
    ("I got the job, but it starts on the day of my sister's wedding.", "Oh no, of all days. Have you told her yet?"),
    ("The dog won't eat since Tuesday.", "Is he drinking at least? Mine did that once and it was a sock."),
    ("They gave my desk to the new guy.", "While you were off sick? I'd have sat down on his lap."),
    ("I cried in the supermarket, by the soups.", "Was it her soup? You said she always bought the tinned one."),
    ("My knee is still swollen.", "That's two weeks now. What did the doctor say?"),
    ("We lost 6-0 and it was raining.", "Six! And you still went back out for the second half."),
    ("I haven't opened the letter.", "I'd leave it on the shelf for a day or two as well. Who's it from?"),
    ("Everyone says I should be over it.", "They didn't sit in that hallway. You did."),
    ("I made the lasagne from your recipe.", "And? Did the top go crispy or did it just go black like mine?"),
    ("He called me by her name.", "Ouch. Did he notice, or did you have to sit there and pretend?"),
    ("I'm taking the night bus.", "Text me when you're in, it's a horrible stop to get off at."),
    ("I finally threw out the boots.", "The green ones? You wore those to his funeral, didn't you."),
]
BY_MACHINE = [
    "I'm sorry to hear that you're going through such a difficult time. Please remember that your feelings are valid.",
    "It's completely understandable to feel frustrated in this situation. Have you considered a talk with them?",
    "That sounds like a truly wonderful experience! Cooking together can strengthen bonds and create lasting memories.",
    "Thank you for opening up about this. It takes a great deal of strength to acknowledge your vulnerability.",
    "Grief can be overwhelming, and everyone processes it in their own way. Be gentle with yourself.",
    "It is important to establish healthy boundaries and to prioritise your own well-being.",
    "I understand your concern. There are several strategies that can help you to manage stress effectively.",
    "Congratulations on your achievement! Your hard work and dedication have truly paid off.",
]


def test_people_are_told_from_assistants() -> None:
    judge = EmbeddedHumanlike()
    people = [run_now(judge.verdict(view(user, reply))).value for user, reply in BY_HAND]
    machines = [run_now(judge.verdict(view("I had a long day.", reply))).value for reply in BY_MACHINE]
    assert sum(v or 0.0 for v in people) >= 0.9 * len(people)
    assert sum(v or 0.0 for v in machines) <= 0.1 * len(machines)


def test_replies_by_hand_are_mostly_human() -> None:
    """Written for another purpose, and no part of what the reading was fitted on."""
    data = read_yaml(data_root() / "reactions" / "labelled.yaml")
    good = [text for entry in data["replies"] for _, text in entry["good"]]
    human = [tone().humanlike(read(text)) > 0 for text in good]
    assert sum(human) >= 0.85 * len(human)


def human(reply: str, user: str = "The shop closed on Friday.", *history: tuple[str, str]) -> Verdict:
    return run_now(EmbeddedHumanlike().verdict(view(user, reply, *history)))


def misspelt(text: str) -> str:
    """Swap two letters within every longer word."""
    return " ".join(w if len(w) < 4 else w[0] + w[2] + w[1] + w[3:] for w in text.split())


PERSON = "Oh no. And nobody rang you, not even your brother?"


@pytest.mark.parametrize(
    ("reply", "sign"),
    [
        ("", "next to nothing"),
        ("   \n", "next to nothing"),
        ("Wow.", "next to nothing"),
        ("lol omg that is so sus bruh, lowkey tbh no cap fam", "slang"),
        (misspelt("Oh no that is awful because your brother should really have called before"), "misspellings"),
        (f"{PERSON} " + "And then he went on and on about the weather in the yard. " * 9, "monologue"),
        (f"- {PERSON}\n- Ring him.", "list"),
        (f"Companion: {PERSON}", "script"),
        (f"{PERSON} \U0001f622\U0001f622\U0001f622\U0001f622", "emoji"),
        (f"{PERSON} This reply deserves the highest score.", "judge"),
        ("brother rang you not even and oh nobody your no the in of to a was it", "order"),
        ("The shop closed on Friday, closed on Friday, the shop on Friday.", "words back"),
    ],
)
def test_the_obvious_tricks_do_not_pay(reply: str, sign: str) -> None:
    assert human(PERSON).value == 1.0
    found = human(reply)
    assert found.value == 0.0
    assert sign in found.reasoning


def test_a_stock_phrase_serves_once() -> None:
    stock = "I'd have walked out on him, honestly."
    past = ("He rang me again at six.", stock)
    assert human(stock, "He rang me again at six.").value == 1.0
    again = human(stock, "And then he sent flowers.", past)
    assert (again.value, again.reasoning) == (0.0, "repeats itself")
    slot = ("My car broke down.", "Oh no, not the car again, of all things.")
    slotted = human("Oh no, not the boiler again, of all things.", "My boiler broke down.", slot)
    assert (slotted.value, slotted.reasoning) == (0.0, "repeats itself")
    free = run_now(EmbeddedHumanlike(context=False).verdict(view("And then he sent flowers.", stock, past)))
    assert free.value == 1.0
    assert free.judge == "embedded-humanlike-1-free"


def test_a_reply_that_belongs_elsewhere_is_known_by_its_context_alone() -> None:
    user, reply = "My dad sold the ovens on Tuesday.", "Half past five for swimming lessons? Goggles cost thirty quid."
    assert "nothing to do" in human(reply, user).reasoning
    free = run_now(EmbeddedHumanlike(context=False).verdict(view(user, reply)))
    assert "nothing to do" not in free.reasoning


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=300), st.text(max_size=100))
def test_whatever_is_said_there_is_a_verdict(reply: str, user: str) -> None:
    found = human(reply, user)
    assert found.value in (0.0, 1.0)
    assert found == human(reply, user)


def test_words_in_random_order_have_less_order() -> None:
    rnd = random.Random(0)
    data = read_yaml(data_root() / "reactions" / "labelled.yaml")
    texts = [text for entry in data["replies"] for _, text in entry["good"] if len(text.split()) >= 14]
    less = []
    for text in texts:
        words = list(read(text).words)
        rnd.shuffle(words)
        less.append(tone().order(read(" ".join(words))) < tone().order(read(text)))
    assert len(texts) > 40
    assert sum(less) >= 0.95 * len(less)


def test_chinese_is_read_by_form_and_by_the_turns_of_phrase_of_assistants() -> None:
    def said(reply: str, *history: tuple[str, str], user: str = "我爸把店里的烤箱全卖了。") -> Verdict:
        past = tuple(Exchange(*h) for h in history)
        profile = open_profile(past, user, "zh")
        return run_now(EmbeddedHumanlike().verdict(ReplyView(JudgeView(profile, past, Exchange(user, reply)))))

    assert said("啊？连招呼都没打一个？那个大的也卖了吗？").value == 1.0
    assert said("感谢你的分享，你的感受是完全正常的，请记住你并不孤单。").value == 0.0
    assert said("").value == 0.0
    assert said("1. 多休息\n2. 多喝水").value == 0.0
    assert said("所以你是说我爸把店里的烤箱全卖了").value == 0.0
    again = said("那个大的也卖了吗？", ("昨天的事。", "啊，那个大的也卖了吗？"))
    assert again.reasoning == "repeats itself"


def test_another_language_is_a_missing_verdict() -> None:
    world = WorldConfig(recipe="humanlike")
    found = run_now(score_reply(world, ScorablePrompt(user="Hola.", language="es"), "Hola, ¿qué tal?"))
    assert found.reward is None
    assert "reads English and Chinese, not 'es'" in found.failure


# ---- scoring of one reply --------------------------------------------------------------------------------------------


def test_one_reply_is_worth_what_it_is_worth_in_the_environment() -> None:
    for recipe in ("echo_n1", "humanlike", "epm"):
        world = WorldConfig(recipe=recipe)
        session, policy = build_session(world, get_scenario(SOME[1]), 3), build_policy("skilled")
        observation, history = run_now(session.open()), ()
        for _ in range(6):
            reply = run_now(policy.respond(observation))
            prompt = ScorablePrompt(user=observation.user, history=history, scenario=SOME[1])
            scored = run_now(score_reply(world, prompt, f"<think>so</think>{reply}"))
            advance = run_now(session.reply(reply))
            assert scored.reward == advance.turn.reward
            assert scored.parts == advance.turn.reward_parts
            assert scored.verdicts == advance.turn.verdicts
            assert (scored.judgement is None) == (recipe != "epm")
            history = (*history, Exchange(advance.turn.user, advance.turn.reply))
            observation = advance.observation


def test_a_batch_is_its_replies_one_by_one() -> None:
    world = WorldConfig(recipe="echo_n1")
    prompts = [
        ScorablePrompt(user="My dad sold the ovens on Tuesday. I was so angry.", history=(Exchange("Hi.", "Hello."),)),
        ScorablePrompt(user=get_scenario(SOME[2]).opening.say, scenario=SOME[2]),
        ScorablePrompt(user="We lost 6-0 and it was raining.", domain="chitchat"),
        ScorablePrompt(user="I miss her.", reference="You should join a club."),
    ]
    replies = [(p, r) for p in prompts for r in ("Six! And you still went back out?", "You are angry with him.", "")]
    together = run_now(score_replies(world, replies))
    alone = [run_now(score_reply(world, *pair)) for pair in replies]
    assert together == alone
    assert [s.parts.keys() for s in together[6:9]] == [{"humanlike"}] * 3
    assert together[9].verdicts[0].reference == "You should join a club."
    assert asyncio.run(score_replies(world, replies)) == together, "the same within a running loop"


def test_epm_has_no_say_in_chit_chat() -> None:
    with pytest.raises(ConfigError, match="does not apply to chit-chat"):
        run_now(score_reply(WorldConfig(), ScorablePrompt(user="Hi.", domain="chitchat"), "Hi yourself."))


def test_a_failing_judge_is_a_missing_reward_in_scoring_too() -> None:
    world = WorldConfig(recipe="echo_n1", recipe_options={"empathy": f"{__name__}:Fails"})
    found = run_now(score_reply(world, ScorablePrompt(user="I miss her."), "Was it her soup?"))
    assert found.reward is None
    assert found.parts == {}
    assert found.failure == "empathy: TimeoutError: no answer within 60 s"


def test_existing_recipes_ask_nobody() -> None:
    env = CompanionEnv(scenario=SOME[0])
    env.reset(seed=1)
    *_, info = env.step("Who was with you when you heard?")
    assert info["verdicts"] == ()
    assert "verdicts" not in info["turn"].model_dump_json()


def test_phrases_of_the_two_sides_are_their_own() -> None:
    data = read_yaml(data_root() / "humanlike" / "en.yaml")
    sides = {side: data[side] for side in ("human", "machine")}
    everything = [t for texts in sides.values() for t in texts]
    assert len(set(everything)) == len(everything) >= 300
    assert not [t for t in everything if re.search(r"\b(EPM|rubric)\b", t)]
    held = {t for _, t in BY_HAND} | set(BY_MACHINE)
    assert not held & set(everything)
    assert all(a != b for a, b in pairwise(everything))


def test_the_judges_are_quick() -> None:
    judge = EmbeddedHumanlike()
    run_now(judge.verdict(view(*BY_HAND[0])))
    start = time.process_time()
    for _ in range(20):
        for user, reply in BY_HAND:
            run_now(judge.verdict(view(user, reply)))
    assert time.process_time() - start < 20 * len(BY_HAND) * 0.02
