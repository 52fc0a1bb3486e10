"""Who sees what: nothing of the rubric and no EPM number reaches the actor; nothing but the talk reaches the policy.

A new field in a view is a failure here until someone decides that the role may see it.
"""

import asyncio
import dataclasses
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from pydantic import BaseModel

from echo_env.agents.embedded import EmbeddedActor, EmbeddedDirector, EmbeddedJudge
from echo_env.agents.embedded.actor import voice
from echo_env.agents.embedded.anchors import rubric
from echo_env.build import build_policy, conversation_seed
from echo_env.profiles import Scenario, benchmark, data_root, get_scenario, scenario_ids
from echo_env.rewards import epm
from echo_env.roles import Actor, ActorView, Cast, Director, Judge, JudgeView, Observation, Policy, profiles_of
from echo_env.scorers import get_scorer
from echo_env.session import DialogueSession
from echo_env.types import EpmDelta, Judgement

THIRTY = list(benchmark().values())
REGISTERS = ("plain", "wry", "guarded", "warm", "formal", "blunt")

WORDS = re.compile(
    r"empath\w*|\bcognitiv\w*|\baffective\w*|\bproactive\w*|\bepm\b|\biedr\b|\bscor(e|es|ed|ing)\b|\brubric\w*|\bax[ei]s\b"
    r"|\bvalidat(e|es|ed|ing|ion)\b|\brefram(e|es|ed|ing)\b|\bresonance\b|\brestructuring\b|\bempower\w*"
    r"|\b[cap]\.?(prog|neg)\b|\b(prog|neg)\.|\bdeficit\b|\bmotivational\b"
)
"""Words of the rubric and of EPM, in lower case. The rules for scenarios forbid them to the stories, too."""
NEGATIVE = re.compile(r"(?<![\w\u2013\u2014-])[-\u2212]\d")
ANCHORS = rubric("epm_v1").anchors


def leaves(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    """Every value in a view with its path, positions left out: ("history.user", "Hello.")."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        for part in dataclasses.fields(value):
            yield from leaves(getattr(value, part.name), f"{path}.{part.name}")
    elif isinstance(value, BaseModel):
        for name, part in value:
            yield from leaves(part, f"{path}.{name}")
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from leaves(part, f"{path}.{key}")
    elif isinstance(value, list | tuple | set | frozenset):
        for part in value:
            yield from leaves(part, path)
    else:
        yield path.removeprefix("."), value


def assert_clean(text: str, where: str) -> None:
    """No rubric word, no anchor, no sentence of the rubric, no negative number."""
    found = WORDS.search(text.lower())
    assert found is None, f"{where}: {found.group()!r} in {text!r}"
    assert NEGATIVE.search(text) is None, f"{where}: {text!r}"
    for anchor in ANCHORS:
        assert anchor.id not in text, f"{where}: {text!r}"
        assert anchor.looks_like.rstrip(".") not in text, f"{where}: {text!r}"


PERSONA = {f"profile.persona.{f}" for f in ("name", "age", "job", "traits", "register_", "speech", "defensiveness")}
SITUATION = {"profile.situation.summary", "profile.situation.trigger"}
LINES = {"profile.lines", *(f"profile.lines.{f}" for f in ("say", "about", "kind", "feeling"))}
ACTOR_MAY_SEE = {
    "profile.key", "profile.language", "profile.hopes", "profile.touchy", "profile.patience", "profile.closing",
    "profile.wants_help",
    "history.user", "history.reply", "cue.act", "cue.lines", "cue.words", *PERSONA, *SITUATION, *LINES,
}  # fmt: skip
JUDGE_MAY_SEE = {
    "profile.key", "profile.language", "profile.threshold", "profile.needs.axis", "profile.needs.wants",
    "profile.needs.hurts", "profile.needs.asks",
    "history.user", "history.reply", "exchange.user", "exchange.reply", *PERSONA, *SITUATION, *LINES,
}  # fmt: skip
POLICY_MAY_SEE = {"messages.role", "messages.text", "language"}


@dataclass
class WatchedActor:
    source: Actor
    views: list[ActorView] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    id: str = "watched"

    async def speak(self, view: ActorView) -> str:
        self.views.append(view)
        self.said.append(await self.source.speak(view))
        return self.said[-1]


@dataclass
class WatchedJudge:
    source: Judge
    views: list[JudgeView] = field(default_factory=list)
    id: str = "watched"
    rubric: str = "epm_v1"

    async def judge(self, view: JudgeView) -> Judgement | None:
        self.views.append(view)
        return await self.source.judge(view)


@dataclass
class WatchedPolicy:
    source: Policy
    seen: list[Observation] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    id: str = "watched"

    async def respond(self, observation: Observation) -> str:
        self.seen.append(observation)
        self.said.append(await self.source.respond(observation))
        return self.said[-1]


@dataclass
class Play:
    """All that passed between the roles of one conversation."""

    scenario: Scenario
    actor: WatchedActor
    judge: WatchedJudge
    policy: WatchedPolicy
    deltas: list[EpmDelta | None]


async def play(scenario: Scenario, policy: Policy, director: Director | None = None) -> Play:
    actor = WatchedActor(EmbeddedActor(conversation_seed(0, scenario.id)))
    judge, companion = WatchedJudge(EmbeddedJudge()), WatchedPolicy(policy)
    session = DialogueSession(
        scenario, Cast(actor, director or EmbeddedDirector(), judge), get_scorer("strict"), epm(), budget=20
    )
    deltas, observation = [], await session.open()
    while session.outcome is None:
        advance = await session.reply(await companion.respond(observation))
        observation = advance.observation
        deltas.append(advance.turn.epm)
    companion.seen.append(observation)
    return Play(scenario, actor, judge, companion, deltas)


@pytest.fixture(scope="session")
def plays() -> list[Play]:
    async def run() -> list[Play]:
        good = [await play(s, build_policy("skilled")) for s in THIRTY]
        bad = [await play(s, build_policy("lecturer" if k % 2 else "adviser")) for k, s in enumerate(THIRTY[::3])]
        return [*good, *bad]

    return asyncio.run(run())


# --- what reaches the actor


def test_the_actor_sees_persona_story_talk_and_cue_and_nothing_else(plays: list[Play]) -> None:
    for p in plays:
        for view in p.actor.views:
            assert type(view) is ActorView
            turn = len(view.history)
            assert [e.user for e in view.history] == p.actor.said[:turn]
            assert [e.reply for e in view.history] == p.policy.said[:turn]
            assert {path for path, _ in leaves(view.cue, ".cue")} <= ACTOR_MAY_SEE
        assert {path for path, _ in leaves(p.actor.views[-1])} <= ACTOR_MAY_SEE


def test_the_only_number_that_reaches_the_actor_is_its_age(plays: list[Play]) -> None:
    for p in plays:
        assert {id(view.profile) for view in p.actor.views} == {id(p.actor.views[-1].profile)}
        for view in p.actor.views[-1:]:  # the profile is the same in all; the last has the whole history
            for path, value in leaves(view):
                if path == "profile.persona.age":
                    assert value == p.scenario.persona.age
                elif path == "profile.wants_help":
                    assert type(value) is bool
                else:
                    assert value is None or type(value) is str, (path, value)


def actor_texts(views: list[ActorView]) -> Iterator[tuple[str, str]]:
    """The words of a talk's views that others wrote: all but the companion's replies and the key, a digest."""
    for path, value in (*leaves(views[-1]), *(leaf for view in views for leaf in leaves(view.cue, ".cue"))):
        if isinstance(value, str) and path not in ("history.reply", "profile.key"):
            yield path, value


def test_nothing_that_reaches_the_actor_is_of_the_rubric(plays: list[Play]) -> None:
    seen: dict[str, str] = {}
    for p in plays:
        assert all(re.fullmatch(r"[0-9a-f]{16}", view.profile.key) for view in p.actor.views)
        seen.update((text, path) for path, text in actor_texts(p.actor.views))
    assert len(seen) > 2_000
    for text, path in seen.items():
        assert_clean(text, path)


def numerals(text: str) -> set[str]:
    return set(re.findall(r"\d+(?:[.,:]\d+)*", text))


def story_of(scenario: Scenario) -> str:
    """Every word of the profile that the person may say."""
    says = [line.say for line in scenario.lines()] + [line.about for line in scenario.lines()]
    says += [ask for need in scenario.needs for ask in need.asks] + list(scenario.ending.says)
    return " ".join([*says, scenario.persona.job, scenario.persona.name, str(scenario.persona.age)])


def test_messages_hold_no_rubric_words_and_no_number_but_the_storys(plays: list[Play]) -> None:
    for p in plays:
        known = numerals(story_of(p.scenario))
        for message in p.actor.said:
            assert_clean(message, p.scenario.id)
            assert numerals(message) <= known, (p.scenario.id, message)


def shown(x: float) -> set[str]:
    """The ways in which a number could be written out, whole ones aside: they are too common to tell."""
    return set() if x == int(x) else {repr(x), f"{x:.1f}", f"{x:.2f}", f"{x:.3f}", f"{abs(x):.1f}", f"{abs(x):.2f}"}


def test_no_epm_number_stands_in_a_cue_or_a_message(plays: list[Play]) -> None:
    for p in plays:
        told = story_of(p.scenario)
        secret = {f"{x:.1f}" for x in p.scenario.p0} | shown(sum(x * x for x in p.scenario.p0) ** 0.5)
        for delta in p.deltas:
            assert delta is not None
            for x in (*delta.position, *delta.delta, delta.work, delta.energy, delta.distance, delta.cos):
                secret |= shown(x)
        words = "\n".join([*(view.cue.words for view in p.actor.views), *p.actor.said])
        found = set(re.findall(r"-?\d+\.\d+", words)) & (secret | {x.removeprefix("-") for x in secret})
        assert [x for x in found if x not in told] == []


def test_cues_are_stage_directions_in_words_and_lines_of_the_story(plays: list[Play]) -> None:
    plain = {
        "", "Go on where you are.", "That did not land. Hold back and see.", "Let it show what you miss in this talk.",
        "Stay with what has been said.", "This leads nowhere. Leave.", "Come back to what nobody took up.",
    }  # fmt: skip
    for p in plays:
        s = p.scenario
        events = {c.event for c in (*s.life.values(), *s.beats, s.turning_point)}
        ids = {item for item, _ in s.items()}
        ids |= {f"need{r}.{k}" for r, need in enumerate(s.needs) for k in range(len(need.asks))}
        for view in p.actor.views:
            assert view.cue.words in plain or view.cue.words.removeprefix("Bring up: ") in events, view.cue.words
            assert set(view.cue.lines) <= ids


def test_the_order_of_needs_is_all_that_the_actor_has_of_them(plays: list[Play]) -> None:
    for p in plays:
        profile = p.actor.views[0].profile
        assert profile.hopes == tuple(n.asks for n in p.scenario.needs)
        said = [text for _, text in actor_texts(p.actor.views)]
        for need in p.scenario.needs:
            assert need.wants not in said
        for rating in p.scenario.iedr.values():
            assert rating.reason not in said


def test_no_voice_of_the_actor_speaks_of_the_rubric() -> None:
    for register in REGISTERS:
        for kind, phrases in voice("en", register).items():
            for phrase in phrases:
                assert_clean(phrase, f"{register}.{kind}")
                assert numerals(phrase) == set()


@pytest.mark.parametrize("split", ["benchmark", "train", "dev"])
def test_no_profile_of_any_scenario_holds_words_of_the_rubric(split: str) -> None:
    seen: set[str] = set()
    for name in scenario_ids(split):
        profile, _ = profiles_of(get_scenario(name))
        for path, value in leaves(profile, ".profile"):
            assert path in ACTOR_MAY_SEE
            if isinstance(value, str) and path != "profile.key":
                seen.add(value)
    for text in seen:
        assert_clean(text, split)


def test_no_prompt_of_the_actor_speaks_of_the_rubric() -> None:
    for prompt in (data_root().parent / "agents" / "prompts").glob("*actor*.md"):
        assert_clean(prompt.read_text(encoding="utf-8"), prompt.name)


# --- what reaches the policy


def test_the_policy_sees_the_talk_and_nothing_else(plays: list[Play]) -> None:
    for p in plays:
        for turn, observation in enumerate(p.policy.seen):
            assert type(observation) is Observation
            assert {path for path, _ in leaves(observation)} == POLICY_MAY_SEE
            assert not hasattr(observation, "__dict__")
            roles = [m.role for m in observation.messages]
            assert roles == ["user", "companion"] * turn + ["user"]
            assert [m.text for m in observation.messages[::2]] == p.actor.said[: turn + 1]
            assert [m.text for m in observation.messages[1::2]] == p.policy.said[:turn]
            assert observation.language == p.scenario.language


def test_what_the_policy_reads_is_free_of_the_rubric(plays: list[Play]) -> None:
    for p in plays:
        for message in p.policy.seen[-1].messages:
            if message.role == "user":
                assert_clean(message.text, p.scenario.id)
        assert p.scenario.id not in " ".join(m.text for m in p.policy.seen[-1].messages)


# --- what reaches the judge


def test_the_judge_sees_profile_and_talk_and_no_state(plays: list[Play]) -> None:
    for p in plays:
        for turn, view in enumerate(p.judge.views):
            assert type(view) is JudgeView
            assert [e.user for e in (*view.history, view.exchange)] == p.actor.said[: turn + 1]
            assert [e.reply for e in (*view.history, view.exchange)] == p.policy.said[: turn + 1]
        assert {path for path, _ in leaves(p.judge.views[-1])} <= JUDGE_MAY_SEE


# --- thinking


@dataclass
class Thinks:
    """A policy with something to hide."""

    form: str
    id: str = "thinks"

    async def respond(self, observation: Observation) -> str:
        return self.form.format(secret=f"xyzzy {len(observation.messages)}", said="So that is how it was.")


@pytest.mark.parametrize(
    "form",
    [
        "<think>{secret}</think>{said}",
        "<think>\n{secret}\n</think>\n\n{said}",
        "{said} <THINK>{secret}</THINK>",
        "<think>{secret}</think>{said}<think>{secret}",
        "<think>{secret}",
        "{secret}\n</think>\n\n{said}",
    ],
)
def test_thinking_reaches_nobody(form: str) -> None:
    p = asyncio.run(play(THIRTY[0], Thinks(form)))
    assert all("xyzzy" in said for said in p.policy.said)
    for views in (p.actor.views, p.judge.views, p.policy.seen):
        assert not any("xyzzy" in str(value) or "think>" in str(value) for v in views for _, value in leaves(v))
    assert "So that" in p.judge.views[0].exchange.reply or form == "<think>{secret}"


# --- the checks themselves see a leak


def test_a_leak_would_be_seen() -> None:
    for leak in ("axis A lacks 12.5", "your EPM", "P0 = (-19, -4)", "A.prog.1.names", ANCHORS[0].looks_like, "empathy"):
        with pytest.raises(AssertionError):
            assert_clean(leak, "here")

    @dataclass(frozen=True)
    class Leaky:
        profile: object
        p0: tuple[float, ...]

    found = dict(leaves(Leaky(profiles_of(THIRTY[0])[0], THIRTY[0].p0)))
    assert set(found) - ACTOR_MAY_SEE == {"p0"}


@pytest.mark.parametrize("text", ["In the mid-1990s.", "We won 3-1.", "To value it.", "Number two-0-seven."])
def test_harmless_words_are_no_leak(text: str) -> None:
    assert_clean(text, "here")
