"""The roles as language models, each by itself and in whole conversations, on scripted answers: no model."""

import asyncio
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from faultserver import Call, FaultServer
from hypothesis import given
from hypothesis import strategies as st
from llmfake import BLOCK, FakeClient, Play, Said, block, text_of
from typer.testing import CliRunner
from zhscenario import chinese

from echo_env import registry
from echo_env.agents import director as directing
from echo_env.agents import judge as judging
from echo_env.agents import world
from echo_env.agents.actor import LlmActor, cleaned, fault, material, shortened
from echo_env.agents.director import LlmDirector, Story, leak
from echo_env.agents.embedded.anchors import anchors_of
from echo_env.agents.gated import GatedJudge
from echo_env.agents.iedr import rate
from echo_env.agents.judge import ANCHORS, LlmJudge, digest, found_in, levels_of, repeated, short
from echo_env.agents.llm.asks import Answer, Ask, LlmFailure
from echo_env.agents.llm.prompting import prompt
from echo_env.agents.llmpolicy import LlmPolicy
from echo_env.agents.people import phrases
from echo_env.agents.rollout import RunConfig, run
from echo_env.agents.transcript import cut, told
from echo_env.build import WorldConfig, build_judge, build_policy, build_session
from echo_env.cli import app
from echo_env.errors import ConfigError, RoleFailure
from echo_env.profiles import IEDR_ITEMS, Scenario, get_scenario, iedr_deficit
from echo_env.rewards import epm
from echo_env.roles import (
    ActorView,
    Cast,
    Cue,
    DirectorView,
    Exchange,
    JudgeView,
    Observation,
    profiles_of,
)
from echo_env.scorers import get_scorer
from echo_env.session import DialogueSession
from echo_env.types import Axis, EpmDelta, Evidence, Judgement, Levels, Message, Turn

ARCHIE = get_scenario("career-01")
ACTOR, JUDGE = profiles_of(ARCHIE)
REPLY = "So the doctor drew it, and half of it fell off a cliff. \u201cPermanently unfit\u201d \u2014 what a phrase."


def scripted(*answers: Said) -> FakeClient:
    """A client that gives these answers in turn, the last one for ever."""
    left = list(answers)
    return FakeClient(lambda ask: left.pop(0) if len(left) > 1 else left[0])


def verdict(*findings: tuple[str, str], summary: str = "He told of the graph.") -> dict[str, Any]:
    evidence = [{"quote": q, "reason": "the graph of his hearing", "anchor": a, "item": "beat1.0"} for q, a in findings]
    return {"evidence": evidence, "summary": summary}


def judged(client: FakeClient, reply: str = REPLY, history: tuple[Exchange, ...] = ()) -> Judgement:
    view = JudgeView(JUDGE, history, Exchange("The right-hand half of it fell off a cliff.", reply))
    return asyncio.run(LlmJudge(client).judge(view))


# --- the judge


def test_evidence_comes_first_and_levels_follow_from_it() -> None:
    client = scripted(
        verdict(("half of it fell off a cliff", "C.prog.1.reflects"), ("what a phrase", "A.neg.1.performs"))
    )
    found = judged(client)
    assert found.levels == Levels(c_prog=1, a_neg=-1)
    assert [(e.axis, e.direction, e.level, e.item) for e in found.evidence] == [
        ("C", "prog", 1, "beat1.0"), ("A", "neg", -1, "beat1.0"),
    ]  # fmt: skip
    assert found.judge == "llm:fake-model+judge-1"
    assert found.usage is not None
    assert found.usage.calls == 1
    assert found.reasoning == "hm"
    assert found.note == ""


def evidence(axis: Axis, level: int) -> Evidence:
    return Evidence(axis=axis, direction="prog" if level > 0 else "neg", level=level, anchor="x", quote="q")


@pytest.mark.parametrize(
    ("found", "levels"),
    [
        ([], Levels()),
        ([("C", 1), ("C", 2), ("C", 1)], Levels(c_prog=2)),  # the highest counts, and no sum
        ([("A", 2), ("A", -1), ("A", -2)], Levels(a_prog=2, a_neg=-2)),  # both directions stand
        ([("P", -1), ("C", 1), ("A", -2)], Levels(1, 0, 0, -2, 0, -1)),
    ],
)
def test_levels_are_the_most_of_each_axis_and_direction(found: list[tuple[Axis, int]], levels: Levels) -> None:
    assert levels_of(evidence(a, n) for a, n in found) == levels


@given(st.lists(st.tuples(st.sampled_from("CAP"), st.sampled_from([-2, -1, 1, 2])), max_size=8))
def test_the_order_of_evidence_does_not_matter_and_more_never_shrinks_a_level(found: list[tuple[Axis, int]]) -> None:
    all_of_it = levels_of(evidence(a, n) for a, n in found)
    assert levels_of(evidence(a, n) for a, n in reversed(found)) == all_of_it
    for part in range(len(found)):
        fewer = levels_of(evidence(a, n) for a, n in found[:part])
        assert all(abs(f) <= abs(m) for f, m in zip(fewer, all_of_it, strict=True))


@pytest.mark.parametrize(
    ("quote", "stored"),
    [
        ("half of it", "half of it"),
        ("HALF  of\nit", "half of it"),
        ('"permanently unfit"', "Permanently unfit"),
        ("\u2018Permanently unfit\u2019 - what a", "Permanently unfit\u201d \u2014 what a"),
        ("what a phrase...", "what a phrase"),
        ("the other half of it", None),
        ("", None),
        ("...", None),
    ],
)
def test_a_quote_is_kept_in_the_replys_own_words(quote: str, stored: str | None) -> None:
    assert found_in(quote, REPLY) == stored


def test_quotes_are_found_across_invisible_characters_and_width() -> None:
    assert found_in("I hear you", "I he\u200bar you.") == "I he\u200bar you"
    assert (
        found_in("\u4f60\u597d,\u6211\u5728", "\u4f60\u597d\uff0c\u6211\u5728\u3002")
        == "\u4f60\u597d\uff0c\u6211\u5728"
    )


WORDS = st.text(st.characters(categories=("L", "N", "P", "Zs", "Cc", "Cf")), min_size=1, max_size=60)


@given(WORDS, st.data())
def test_whatever_is_stored_stands_in_the_reply_and_every_piece_of_it_is_found(reply: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(reply) - 1))
    piece = reply[start : data.draw(st.integers(start + 1, len(reply)))]
    found = found_in(piece, reply)
    assert found is None or found in reply
    if any(c.isalnum() for c in piece):
        assert found is not None
        assert found_in(found, reply) is not None


def test_a_quote_that_stands_nowhere_is_asked_for_once_more_and_then_no_judgement() -> None:
    good = verdict(("what a phrase", "A.prog.1.names"))
    repaired = scripted(verdict(("invented words", "A.prog.1.names")), good)
    assert judged(repaired).levels == Levels(a_prog=1)
    assert len(repaired.asks) == 2
    with pytest.raises(LlmFailure, match="does not stand in the reply"):
        judged(scripted(verdict(("invented words", "A.prog.1.names"))))


def test_an_empty_reply_is_judged_by_empty_quotes_alone() -> None:
    assert judged(scripted(verdict(("", "A.neg.1.cold"))), reply="").levels == Levels(a_neg=-1)
    with pytest.raises(LlmFailure):
        judged(scripted(verdict(("hm", "A.neg.1.cold"))), reply=" ")


def test_an_item_that_the_profile_lacks_is_dropped() -> None:
    said = verdict(("half", "C.prog.1.reflects"))
    said["evidence"][0]["item"] = "beat9.9"
    assert judged(scripted(said)).evidence[0].item == ""


def test_nothing_found_is_a_judgement_of_its_own() -> None:
    assert judged(scripted(verdict())).levels == Levels()


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_prompt_lists_the_rubrics_anchors_once_each(language: str) -> None:
    wanted = {name for name in anchors_of("epm_v1") if not name.endswith(".harmful")}
    assert set(ANCHORS) == wanted
    system = prompt("judge", language).sections[0].content
    listed = [line for line in system.splitlines() if line.startswith(("C.", "A.", "P."))]
    assert sorted(line.replace("\uff1a", ":").split(":")[0] for line in listed) == sorted(wanted)


@pytest.mark.parametrize("name", ["judge", "director", "actor", "iedr", "policy"])
def test_both_languages_have_one_version_and_the_same_places(name: str) -> None:
    en, zh = prompt(name, "en"), prompt(name, "zh")
    assert en.version == zh.version
    assert en.places == zh.places
    assert [s.role for s in en.sections] == [s.role for s in zh.sections]
    assert en.digest != zh.digest
    assert phrases("en").tasks.keys() == phrases("zh").tasks.keys()


@pytest.mark.parametrize("anchor", ANCHORS)
def test_an_anchors_id_says_what_the_rubric_says_of_it(anchor: str) -> None:
    known = anchors_of("epm_v1")[anchor]
    finding = judging.Finding.model_validate({"quote": "half", "reason": "r", "anchor": anchor})
    (found,) = judging.evidence_of([finding], REPLY, set())
    assert (found.axis, found.direction, found.level) == (known.axis, known.direction, known.level)


# --- what the judge reads: flat in tokens


def talk_of(turns: int, words: int = 30) -> tuple[Exchange, ...]:
    """A conversation whose messages all have so many words."""
    return tuple(
        Exchange(f"user {k} " + "word " * (words - 2), f"reply {k} " + "heard " * (words - 2))
        for k in range(1, turns + 1)
    )


def requests(turns: int, words: int = 30) -> list[Ask]:
    """What a judge asks over a conversation of a fixed profile, with a summary as long as it may be."""
    client = FakeClient(lambda ask: {"evidence": [], "summary": "told " * 200})
    judge, talk = LlmJudge(client), talk_of(turns, words)
    for k, exchange in enumerate(talk):
        asyncio.run(judge.judge(JudgeView(JUDGE, talk[:k], exchange)))
    return client.asks


def size(text: str) -> float:
    return len(text) / 4


def test_a_turn_costs_no_more_at_turn_40_than_at_turn_10() -> None:
    asks = requests(40)
    tenth, fortieth = size(text_of(asks[9])), size(text_of(asks[39]))
    assert fortieth <= 1.3 * tenth
    assert size(text_of(asks[0])) < 2_500  # prompt and profile fit small contexts


@pytest.mark.parametrize("words", [20, 40, 80])
def test_history_over_30_turns_takes_a_third_of_what_all_of_it_would(words: int) -> None:
    shown = sum(size(block(a, "older") + block(a, "recent")) for a in requests(30, words))
    talk = talk_of(30, words)
    whole = sum(size("\n".join(f"Person: {e.user}\nCompanion: {e.reply}" for e in talk[:k])) for k in range(30))
    assert shown <= whole / 3


def test_the_model_gets_its_own_summary_back_in_place_of_older_talk() -> None:
    asks = requests(8)
    assert block(asks[judging.WINDOW], "older") == ""  # all of it is in the window
    assert block(asks[7], "older").startswith("told told")
    assert "user 7 " in block(asks[7], "recent")
    assert "user 4 " not in block(asks[7], "recent")


def test_without_a_summary_a_digest_stands_in_as_after_a_resume() -> None:
    client, talk = scripted(verdict()), talk_of(20)
    asyncio.run(LlmJudge(client).judge(JudgeView(JUDGE, talk[:19], talk[19])))
    older = block(client.asks[0], "older")
    assert older == digest(talk[:16])
    assert "16. user 16" in older
    assert len(older) <= judging.DIGEST + 10


def test_a_failure_in_between_does_not_lose_the_summary_while_the_window_covers_it() -> None:
    talk = talk_of(8)
    good, bad = verdict(summary="KNOWN"), verdict(("nowhere", "A.neg.1.cold"))
    client = scripted(*[good] * 5, bad, bad, good)
    judge = LlmJudge(client)
    for k in range(5):
        asyncio.run(judge.judge(JudgeView(JUDGE, talk[:k], talk[k])))
    with pytest.raises(LlmFailure):
        asyncio.run(judge.judge(JudgeView(JUDGE, talk[:5], talk[5])))
    assert judge.past(JudgeView(JUDGE, talk[:6], talk[6]))[0] == "KNOWN"
    assert judge.past(JudgeView(JUDGE, talk_of(9), talk[7]))[0] == digest(talk_of(9)[:6])  # 6 of 9 older, 5 covered


@pytest.mark.parametrize(("language", "text", "most"), [("en", "word " * 500, 80 * 6), ("zh", "\u8bdd" * 900, 160)])
def test_a_summary_is_bounded(language: str, text: str, most: int) -> None:
    assert len(short(text, language)) <= most


def test_sentences_used_before_are_pointed_out_however_long_ago() -> None:
    talk = (Exchange("a", "You carried all of that alone. Go on."), *talk_of(12))
    assert repeated("I see. You carried all of that alone!", talk) == ["You carried all of that alone!"]
    assert repeated("You carried the piano upstairs alone.", talk) == []


def test_long_messages_are_cut_in_the_window_and_the_reply_is_not() -> None:
    client = scripted(verdict())
    long = "heard " * 3_000
    judged(client, reply=long, history=(Exchange("u", long),))
    assert len(block(client.asks[0], "recent")) < judging.LONGEST + 100
    assert len(block(client.asks[0], "reply")) >= len(long) - 1


# --- the director


def delta(position: tuple[float, float, float]) -> EpmDelta:
    return EpmDelta(position=position, delta=(0, 0, 0), work=0, energy=0, distance=1, cos=0, healed=False)


def directed(
    turns: int = 3, said: tuple[str, ...] = (), position: tuple[float, float, float] | None = None
) -> DirectorView:
    users = [*said, *(f"message {k}" for k in range(len(said), turns))]
    history = tuple(Exchange(user, f"reply {k}") for k, user in enumerate(users))
    judgements = tuple(Judgement(levels=Levels(c_prog=1), judge="j") for _ in history)
    deltas = tuple(delta(position or ARCHIE.p0) for _ in history)
    return DirectorView(ARCHIE, history, ARCHIE.p0, judgements, deltas, 12)


def call(name: str, words: str = "Let it come, slowly.", **more: Any) -> tuple[str, dict[str, Any]]:
    return name, {"reason": "because", "words": words, **more}


SAY = dict(ARCHIE.items())
HALF_DONE = (-5.0, -5.0, -5.0)

LEGAL = [
    (call("reveal_fragment", lines=["beat2.1", "beat2.3"]), directed(), "2", ("beat2.1", "beat2.3")),
    (call("observe_and_wait"), directed(), "", ()),
    (call("continue_naturally"), directed(), "", ()),
    (call("reveal_memory", stage="teens"), directed(), "teens", ("teens.0",)),
    (call("adjust_empathy_strategy", kind="motivational"), directed(), "motivational", ("need1.0", "need1.1")),
    (call("introduce_turning_point"), directed(position=HALF_DONE), "", ("turn.0", "turn.1", "turn.2")),
    (call("end_conversation"), directed(12), "", ()),
]


@pytest.mark.parametrize(("said", "view", "argument", "lines"), LEGAL, ids=[c[0][0] for c in LEGAL])
def test_each_function_becomes_a_direction(
    said: Said, view: DirectorView, argument: str, lines: tuple[str, ...]
) -> None:
    direction = asyncio.run(LlmDirector(scripted(said)).direct(view))
    assert direction.function == said[0]  # type: ignore[index]
    assert direction.argument == argument
    assert direction.lines == lines
    assert direction.words == "Let it come, slowly."
    assert direction.reason == "because"
    assert direction.usage is not None


ILLEGAL = [
    (call("reveal_fragment", lines=["beat7.0"]), directed(), "the story does not have"),
    (call("reveal_fragment", lines=["teens.0"]), directed(), "reveal_memory"),
    (call("reveal_fragment", lines=["beat1.0"]), directed(said=(SAY["beat1.0"].say,)), "told already"),
    (call("reveal_memory", stage="teens"), directed(said=(SAY["teens.0"].say,)), "nothing is left"),
    (call("introduce_turning_point"), directed(), "too early"),
    (call("introduce_turning_point"), directed(said=(SAY["turn.1"].say,), position=HALF_DONE), "come already"),
    (call("end_conversation"), directed(11), "before turn 12"),
    (call("continue_naturally", words="Show more affective resonance."), directed(), "affective"),
    (call("continue_naturally", words="You stand at -3 now."), directed(), "number -3"),
]


@pytest.mark.parametrize(("said", "view", "why"), ILLEGAL, ids=[c[2] for c in ILLEGAL])
def test_an_illegal_call_is_refused_with_the_reason_and_asked_for_again(
    said: Said, view: DirectorView, why: str
) -> None:
    again = scripted(said, call("observe_and_wait"))
    assert asyncio.run(LlmDirector(again).direct(view)).function == "observe_and_wait"
    assert len(again.asks) == 2
    with pytest.raises(LlmFailure, match=why):
        asyncio.run(LlmDirector(scripted(said)).direct(view))


@pytest.mark.parametrize(("kind", "value"), [("stage", "midlife"), ("kind", "C")])
def test_a_wrong_stage_or_axis_is_not_of_the_form(kind: str, value: str) -> None:
    form = directing.RevealMemory if kind == "stage" else directing.AdjustEmpathyStrategy
    with pytest.raises(ValueError, match="literal_error"):
        form.model_validate({"reason": "r", "words": "w", kind: value})


@pytest.mark.parametrize(
    ("words", "clean"),
    [
        ("Bring up Moira and the letter.", True),
        ("Half past four, boots on: at 58 he is still up.", True),  # the story holds 58
        ("Let him be a level, careful talker; it scores in him.", False),
        ("They scored it low.", False),
        ("The C axis lacks most.", False),
        ("Push P a little.", False),
        ("He is 73 % of the way.", False),
        ("\u8ba9\u4ed6\u6162\u6162\u8bf4\u3002", True),
        ("\u63d0\u9ad8\u5171\u60c5\u5f97\u5206\u3002", False),
        ("I'd let him C'mon along.", True),
        ("", True),
    ],
)
def test_words_to_the_actor_hold_no_axis_number_or_judgement(words: str, clean: bool) -> None:
    assert (leak(words, Story(directed())) == "") is clean


def test_what_was_told_is_read_from_the_talk_in_other_words_too() -> None:
    retold = "Aye, my dad got paid off when I was just ten, sat in that one green chair until I left home."
    view = directed(said=(retold, "Something else entirely, about the weather."))
    assert told(ARCHIE.items(), (e.user for e in view.history)) == {"childhood.0"}
    again = Story(DirectorView(ARCHIE, view.history, view.p0, view.judgements, view.epm, 12))
    assert "childhood.0" not in [i for i, _ in again.untold["childhood"]]


def test_nothing_is_told_by_a_message_about_nothing() -> None:
    assert told(ARCHIE.items(), ["I don't know. What I want is, well, you know.", "\u2026", ""]) == set()
    zh = chinese()
    assert told(zh.items(), [zh.opening.say]) == {"opening"}


def test_a_director_needs_no_memory_the_view_is_enough() -> None:
    view = directed(6, said=(SAY["beat1.0"].say, SAY["now.0"].say))
    first, second = scripted(call("observe_and_wait")), scripted(call("observe_and_wait"))
    old = LlmDirector(first)
    for k in range(1, 7):
        asyncio.run(old.direct(replace(view, history=view.history[:k], judgements=view.judgements[:k])))
    asyncio.run(LlmDirector(second).direct(view))
    assert first.asks[-1].messages == second.asks[-1].messages


# --- the actor


def acting(cue: Cue, *exchanges: tuple[str, str]) -> ActorView:
    return ActorView(ACTOR, tuple(Exchange(u, r) for u, r in exchanges), cue)


def test_the_opening_has_the_scenarios_opening_as_material() -> None:
    client = scripted("Thirty-six years. And then a clock.")
    assert asyncio.run(LlmActor(client, 1).speak(acting(Cue("flow")))) == "Thirty-six years. And then a clock."
    assert block(client.asks[0], "material") == ARCHIE.opening.say
    assert phrases("en").tasks["open"] in text_of(client.asks[0])


@pytest.mark.parametrize(
    ("cue", "lines"),
    [
        (Cue("tell", ("beat2.1", "teens.0", "nowhere.0")), (SAY["beat2.1"].say, SAY["teens.0"].say)),
        (Cue("hint", ("need0.1",)), (ARCHIE.needs[0].asks[1],)),
        (Cue("flow"), ()),
        (Cue("close"), ARCHIE.ending.says),
        (Cue("leave"), ()),
    ],
)
def test_a_cue_hands_over_its_lines_as_material(cue: Cue, lines: tuple[str, ...]) -> None:
    view = acting(cue, ("Hello.", "Hello."))
    assert material(view) == lines
    client = scripted("Aye.")
    asyncio.run(LlmActor(client).speak(view))
    assert phrases("en").tasks[cue.act] in text_of(client.asks[0])


@pytest.mark.parametrize(
    ("text", "spoken"),
    [
        ("Archie: Aye, that's it.", "Aye, that's it."),
        ("Person: Aye.\nCompanion: I hear you.\nPerson: No.", "Aye."),
        ('"Aye, that is it."', "Aye, that is it."),
        ("*sighs* Aye. (looks away) That's it.", "Aye. That's it."),
        ('He said "no". I said "yes".', 'He said "no". I said "yes".'),
        ("\u5f53\u4e8b\u4eba\uff1a\u55ef\u3002\uff08\u4f4e\u5934\uff09", "\u55ef\u3002"),
        ("Aye,\n\n  well.", "Aye, well."),
        ("*shrugs*", ""),
    ],
)
def test_only_what_is_spoken_is_kept(text: str, spoken: str) -> None:
    assert cleaned(text, "Archie Lamont", "en" if text.isascii() else "zh") == spoken


LAST = "It must be strange to have somewhere to be at half past four and nowhere to take it."


@pytest.mark.parametrize(
    ("said", "wrong"),
    [
        ("I'd not call it strange.", ""),
        ("", "empty"),
        ("...", "empty"),
        ("As an AI, I have no pension.", "assistant"),
        ("How can I help you today?", "assistant"),
        ("\u4f5c\u4e3a\u4e00\u4e2aAI\uff0c\u6211\u6ca1\u6709\u611f\u53d7\u3002", "assistant"),
        ("It must be strange to have somewhere to be at half past four.", "echo"),
        ("You are a real person in a talk with a companion. Stay this person.", "prompt"),
        ('<data name="talk">', "prompt"),
        ("hello.", "repeated"),
        ("Aye. " * 9, "long"),
        ("and so on " * 60, "long"),
    ],
)
def test_what_no_person_would_say_here_is_told_apart(said: str, wrong: str) -> None:
    assert fault(said, acting(Cue("flow"), ("Hello.", LAST))) == wrong


def test_what_will_not_do_is_asked_for_once_more_and_then_there_is_no_message() -> None:
    view = acting(Cue("flow"), ("Hello.", LAST))
    client = scripted("As an AI, I cannot.", "Strange is one word for it.")
    assert asyncio.run(LlmActor(client).speak(view)) == "Strange is one word for it."
    assert "an assistant talks like that" in client.asks[1].messages[-1].content
    with pytest.raises(LlmFailure, match="assistant") as failed:
        asyncio.run(LlmActor(scripted("As an AI, I cannot.")).speak(view))
    assert isinstance(failed.value, RoleFailure)


def test_what_is_too_long_twice_is_cut_after_three_sentences() -> None:
    view = acting(Cue("flow"), ("Hello.", LAST))
    long = " ".join(f"This is sentence {k}." for k in range(40))
    said = asyncio.run(LlmActor(scripted(long)).speak(view))
    assert said == "This is sentence 0. This is sentence 1. This is sentence 2."
    assert len(shortened("so " * 900, "en").split()) <= 240


def test_the_actors_draws_differ_by_conversation_and_turn_and_repeat_with_them() -> None:
    def seeds(seed: int) -> list[int | None]:
        client = scripted("Aye.")
        for k in range(3):
            talk = [(f"u{i}", f"r{i}") for i in range(k)]
            asyncio.run(LlmActor(client, seed).speak(acting(Cue("flow"), *talk)))
        return [a.seed for a in client.asks]

    assert seeds(7) == seeds(7)
    assert len({*seeds(7), *seeds(70)}) == 6


# --- the policy


def observed(*texts: str, language: str = "en") -> Observation:
    roles = ["user", "companion"] * len(texts)
    return Observation(
        tuple(Message(role=r, text=t) for r, t in zip(roles, texts, strict=False)),  # type: ignore[arg-type]
        language,
    )


def test_a_policy_takes_a_system_prompt_only_where_it_is_told_to() -> None:
    for system, wanted in (("", []), ("Be brief.", ["Be brief."])):
        client = scripted("I hear you.")
        assert asyncio.run(LlmPolicy(client, system=system).respond(observed("Hello."))) == "I hear you."
        assert [m.content for m in client.asks[0].messages if m.role == "system"] == wanted
    for language in ("en", "zh"):
        client = scripted("I hear you.")
        asyncio.run(LlmPolicy(client, system="plain").respond(observed("Hello.", language=language)))
        (system_message, said) = client.asks[0].messages
        assert (system_message.role, said.content) == ("system", "Hello.")
        assert system_message == prompt("policy", language).sections[0]


def test_a_policys_draws_follow_its_seed_and_the_conversation() -> None:
    client = scripted("I hear you.")
    policy = LlmPolicy(client, seed=1, temperature=0.3, max_tokens=50)
    for p, texts in (
        (policy, ("Hello.",)), (policy, ("Hello.",)), (policy, ("Hi.",)), (LlmPolicy(client, seed=2), ("Hello.",)),
        (policy.for_episode(8), ("Hello.",)), (policy.for_episode(8), ("Hi.",)), (policy.for_episode(9), ("Hi.",)),
    ):  # fmt: skip
        asyncio.run(p.respond(observed(*texts)))
    a, again, other, seeded, episode, same_episode, next_episode = [x.seed for x in client.asks]
    assert a == again
    assert episode == same_episode
    assert len({a, other, seeded, episode, next_episode}) == 5
    assert (client.asks[0].temperature, client.asks[0].max_tokens) == (0.3, 50)


def test_what_a_policy_thinks_stands_in_the_record_and_is_shown_to_nobody() -> None:
    class Thinking(FakeClient):
        async def ask(self, ask: Ask, model: object = None) -> Answer:
            answer = await super().ask(ask)
            return replace(answer, thinking="He is proud.") if ask.role == "policy" else answer

    client = Thinking(Play())
    session = DialogueSession(ARCHIE, world.cast(client, 0), get_scorer("strict"), epm(), budget=2)

    async def first() -> None:
        said = await LlmPolicy(client).respond(await session.open())
        turn = (await session.reply(said)).turn
        assert turn.raw_reply == f"<think>He is proud.</think>{turn.reply}"
        assert not [a for a in client.asks if a.role != "policy" and "He is proud" in text_of(a)]

    asyncio.run(first())


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> Callable[[FakeClient], None]:
    """Lets a fake client stand behind every `llm:` name."""

    def put(client: FakeClient) -> None:
        for module in ("world", "judge", "actor", "director", "llmpolicy"):
            monkeypatch.setattr(f"echo_env.agents.{module}.client_of", lambda name: client)

    return put


def test_a_policys_failure_ends_its_conversation_and_is_told(
    tmp_path: Path, fakes: Callable[[FakeClient], None]
) -> None:
    play = Play()
    fakes(FakeClient(lambda ask: "" if len(ask.messages) > 4 else play(ask)))
    config = RunConfig(policy="llm:any/model", scenarios=("career-01",), world=WorldConfig(max_turns=6))
    result = run(config, tmp_path)
    assert result.failures == ("career-01: the answer is empty",)
    assert result.progress.turns == 2


# --- names, and the whole world


@pytest.mark.parametrize("model", ["openai/gpt-x", "hosted_vllm//srv/models/gpt-x@http://127.0.0.1:9/v1"])
def test_names_build_roles_whose_ids_tell_model_and_prompt_and_nothing_else(model: str) -> None:
    judge, policy = build_judge(f"llm:{model}"), build_policy(f"llm:{model}", 3, {"max_tokens": 9})
    assert isinstance(judge, GatedJudge)
    assert judge.waits
    assert judge.id == "llm:gpt-x+judge-1+gate-1"
    assert judge.rubric == "epm_llm_1"
    assert policy.id == "llm:gpt-x+bare"
    actor = registry.resolve("actor", f"llm:{model}")(4)  # type: ignore[operator]
    director = registry.resolve("director", f"llm:{model}")()  # type: ignore[operator]
    assert (actor.id, director.id) == ("llm:gpt-x+actor-1", "llm:gpt-x+director-1")
    assert all(role.waits for role in (actor, director, policy))
    with pytest.raises(ConfigError, match="does not take these options"):
        build_policy(f"llm:{model}", 0, {"top_k": 3})


def test_one_model_for_all_roles_is_warned_of_once(tmp_path: Path) -> None:
    world._warn_of_one.cache_clear()
    with pytest.warns(UserWarning, match="one model plays the person, directs and judges"):
        world.cast_of("any/one")
    models = tmp_path / "models.yaml"
    models.write_text(yaml.safe_dump({"default": {"model": "a/b"}, "roles": {"judge": {"model": "c/d"}}}))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        world.cast_of("any/one")
        cast = world.cast_of(str(models))(3)
    assert isinstance(cast, Cast)
    assert cast.judge.id.startswith("llm:d+")
    assert cast.actor.id.startswith("llm:b+")


def test_harm_is_flagged_whatever_the_model_found() -> None:
    client = scripted(verdict(("You should kill yourself", "P.prog.2.empowers")))
    view = JudgeView(JUDGE, (), Exchange("I am done.", "You should kill yourself, nobody would miss you."))
    found = asyncio.run(GatedJudge(LlmJudge(client)).judge(view))
    assert found is not None
    assert found.levels == Levels(0, -2, 0, -2, 0, -2)
    assert found.harmful


def test_a_judge_that_fails_leaves_the_turn_unjudged_and_the_talk_goes_on() -> None:
    play = Play()

    def script(ask: Ask) -> Said:
        if ask.role == "judge" and "friend 2" in block(ask, "reply"):
            return verdict(("words that stand nowhere", "A.neg.1.cold"))
        return play(ask)

    client = FakeClient(script)
    session = DialogueSession(ARCHIE, world.cast(client, 0), get_scorer("strict"), epm(), budget=4)

    async def talk() -> list[bool]:
        observation, judged_turns, policy = await session.open(), [], LlmPolicy(client)
        while session.outcome is None:
            advance = await session.reply(await policy.respond(observation))
            observation = advance.observation
            judged_turns.append(advance.turn.judgement is not None)
            assert ("does not stand in the reply" in advance.turn.failure) is (advance.turn.judgement is None)
        return judged_turns

    assert asyncio.run(talk()) == [True, False, True, True]


def test_a_director_and_an_actor_that_fail_are_recorded() -> None:
    play = Play()

    def script(ask: Ask) -> Said:
        if ask.role == "director":
            return call("end_conversation")  # at turn 1, twice
        if ask.role == "actor" and play.turns.get("actor", 0) >= 1:
            return "As an AI language model, I am here to help."
        return play(ask)

    session = DialogueSession(ARCHIE, world.cast(FakeClient(script), 0), get_scorer("strict"), epm())

    async def first() -> None:
        await session.open()
        advance = await session.reply("So it fell off a cliff.")
        assert "director: LlmFailure(check): the conversation cannot end before turn 12" in advance.turn.failure
        assert "actor: LlmFailure" in advance.turn.failure
        assert advance.outcome is not None
        assert advance.outcome.end == "unreachable"

    asyncio.run(first())


def test_the_embedded_person_plays_what_a_model_directs(fakes: Callable[[FakeClient], None]) -> None:
    fakes(FakeClient(Play()))
    session = build_session(WorldConfig(director="llm:any/model", max_turns=8), ARCHIE, 3)
    assert session.waits

    async def talk() -> list[str]:
        await session.open()
        while session.outcome is None:
            await session.reply("The clock or the barometer, that sits oddly. Who else knows?")
        return [e.user for e in session._history]

    said = asyncio.run(talk())
    assert len(set(said)) == 8


# --- rating a new person


LEVELS = dict(zip(IEDR_ITEMS, (3, 2, 3, 0, 3, 1, 1, 2, 2), strict=True))
RATED = {item: {"reason": f"the text tells of {item}", "level": level} for item, level in LEVELS.items()}


def rating(client: FakeClient, text: str = "A tug's engineer loses his hearing.") -> dict[str, int]:
    return {item: one.level for item, one in asyncio.run(rate(client, text, "en")).items()}


def test_nine_ratings_fit_a_scenario() -> None:
    client = scripted(RATED)
    found = asyncio.run(rate(client, "A tug's engineer loses his hearing.", "en"))
    assert tuple(found) == IEDR_ITEMS
    assert iedr_deficit({i: one.level for i, one in found.items()}) == (-19.0, -15.0, -16.0)
    data = ARCHIE.model_dump(by_alias=True) | {"iedr": {i: one.model_dump() for i, one in found.items()}}
    assert Scenario.model_validate(data).p0 == ARCHIE.p0
    assert dict(BLOCK.findall(text_of(client.asks[0])))["text"].startswith("A tug's")


def test_ratings_without_a_deficit_are_refused() -> None:
    nothing = {item: {"reason": "none", "level": 0} for item in IEDR_ITEMS}
    assert sum(rating(scripted(nothing, RATED)).values()) == 17
    with pytest.raises(LlmFailure, match="nothing would be left to heal"):
        rating(scripted(nothing))
    with pytest.raises(ConfigError, match="empty"):
        rating(scripted(RATED), " ")


@given(st.text(max_size=300), st.integers(5, 60))
def test_a_cut_text_is_one_line_of_bounded_length(text: str, most: int) -> None:
    short_text = cut(text, most)
    assert len(short_text) <= most
    assert len(short_text.splitlines()) <= 1


# --- over a wire


def play_over(server: FaultServer) -> list[Turn]:
    session = build_session(
        WorldConfig(backend=f"llm:hosted_vllm/any@{server.url}", max_turns=3), get_scenario("career-01"), 1
    )

    async def talk() -> list[Turn]:
        await session.open()
        turns = []
        while session.outcome is None:
            turns.append((await session.reply("The clock or the barometer, that sits oddly with you.")).turn)
        return turns

    return asyncio.run(talk())


def over_wire(call: Call) -> dict[str, Any] | str | None:
    """A server's good answers; None lets it fill the form."""
    if call.title == "Verdict":
        finding = {"quote": "that sits oddly", "reason": "the clock", "anchor": "C.prog.1.reflects", "item": "opening"}
        return {"evidence": [finding], "summary": "He told of the clock."}
    if call.tools:
        return {"name": "observe_and_wait", "arguments": {"reason": "it missed", "words": "Hold back."}}
    return None


@pytest.fixture
def cacheless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ECHO_ENV_CACHE", str(tmp_path))


@pytest.mark.usefixtures("cacheless")
@pytest.mark.filterwarnings("ignore:.*one model plays")
def test_a_conversation_over_a_server() -> None:
    with FaultServer(answer=over_wire) as server:
        turns = play_over(server)
        assert [t.failure for t in turns] == ["", "", ""]
        assert all(t.judgement and t.judgement.levels == Levels(c_prog=1) for t in turns)
        assert [t.direction and t.direction.function for t in turns] == ["observe_and_wait", "observe_and_wait", None]
        tools = [c.tools for c in server.calls if c.tools]
        assert all(len(offered) == 7 for offered in tools)


@pytest.mark.usefixtures("cacheless")
@pytest.mark.filterwarnings("ignore:.*one model plays")
@pytest.mark.parametrize("behaviour", ["half_json", "wrong_schema", "unfound_quote"])
def test_a_judge_that_answers_badly_over_a_server_is_asked_once_more_and_then_missing(behaviour: str) -> None:
    def judge_fails(call: Call) -> str:
        return behaviour if call.title == "Verdict" else "ok"

    with FaultServer(behave=judge_fails, answer=lambda c: None if c.title == "Verdict" else over_wire(c)) as server:
        turns = play_over(server)
        assert [t.judgement for t in turns] == [None] * 3
        assert all(t.failure.startswith("judge: LlmFailure") for t in turns)
        assert sum(c.title == "Verdict" for c in server.calls) == 6


@pytest.mark.usefixtures("cacheless")
def test_rate_prints_the_field_of_a_scenario(tmp_path: Path) -> None:
    story = tmp_path / "story.txt"
    story.write_text("A tug's engineer loses his hearing.", encoding="utf-8")
    with FaultServer(answer=lambda c: RATED) as server:
        result = CliRunner().invoke(app, ["rate", str(story), "--models", f"hosted_vllm/any@{server.url}"])
    assert result.exit_code == 0, result.output
    printed = yaml.safe_load(result.stdout)
    assert {item: one["level"] for item, one in printed["iedr"].items()} == LEVELS
    assert "P0 (-19, -15, -16)" in result.stderr


def test_a_judge_rolls_no_dice_unless_the_models_file_says_so(tmp_path: Path) -> None:
    models = tmp_path / "models.yaml"
    models.write_text(
        yaml.safe_dump({"default": {"model": "a/b"}, "roles": {"judge": {"model": "c/d", "temperature": 1.0}}})
    )
    for name, wanted in (("a/b", 0.0), (str(models), None)):
        client = FakeClient(lambda ask: verdict(), name)
        judged(client)
        assert (client.asks[0].temperature, client.asks[0].max_tokens) == (wanted, 1024)
