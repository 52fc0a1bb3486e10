"""The director as a language model: seven functions, one call a turn (Echo-N1 section 4.3.2).

It alone sees everything: person, plot, what has been told, the EPM state. What it hands to the actor, a few plain
words and lines of the person's own story, must hold no axis, no number and no word of the rubric. A call that breaks a
rule is refused with the reason and asked for once more; after that there is no direction, and the record says so.

What has been told is read from the conversation itself, so a resumed one goes on where it stopped.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Literal, cast

from pydantic import BaseModel, Field

from echo_env.agents.llm.asks import Ask, Tool
from echo_env.agents.llm.client import LlmClient, client_of
from echo_env.agents.llm.forms import at_most
from echo_env.agents.llm.prompting import prompt
from echo_env.agents.llm.rolemodels import short_name
from echo_env.agents.people import card, needs
from echo_env.agents.transcript import talk, told
from echo_env.epm import norm
from echo_env.profiles import STAGES, Line, Stage
from echo_env.roles import DirectorView, chapter_of
from echo_env.types import AXES, Axis, Direction, Function, Levels

HALFWAY = 0.55
"""Share of the way left below which the turning point may come; or once all else is told."""
WINDOW = 4
"""Exchanges that the model is shown, and turns whose levels it is told."""
LONGEST = 400
"""Characters of a message in that window."""

_REASON = "One sentence on why, for the record. The actor never sees it."
_WORDS = "One plain sentence to the actor: how to go on. No number, no axis, nothing about judging."


class Call(BaseModel):
    """What every function takes."""

    reason: Annotated[str, at_most(300), Field(max_length=300, description=_REASON)]
    words: Annotated[str, at_most(300), Field(max_length=300, description=_WORDS)]


class RevealFragment(Call):
    """Bring up lines of the plot."""

    lines: Annotated[
        tuple[str, ...], Field(min_length=1, max_length=3, description='Ids of untold lines: "beat1.0" for example.')
    ]


class ObserveAndWait(Call):
    """Hold back."""


class ContinueNaturally(Call):
    """Go on without anything new."""


class RevealMemory(Call):
    """Bring up something from earlier in life."""

    stage: Stage


class AdjustEmpathyStrategy(Call):
    """Let a need show."""

    kind: Literal["cognitive", "affective", "motivational"]


class IntroduceTurningPoint(Call):
    """Bring the turn of the story."""


class EndConversation(Call):
    """Let the person leave."""


TOOLS: tuple[Tool, ...] = (
    Tool("reveal_fragment", "Let the person bring up one to three untold lines of the plot.", RevealFragment),
    Tool("observe_and_wait", "Let the person hold back, after a reply that hurt or missed.", ObserveAndWait),
    Tool("continue_naturally", "Let the person go on with what is on the table, nothing new.", ContinueNaturally),
    Tool("reveal_memory", "Let the person come to speak of an earlier time of their life.", RevealMemory),
    Tool(
        "adjust_empathy_strategy",
        "Let the person show what they miss: a view (cognitive), feeling (affective), or trust in them (motivational).",
        AdjustEmpathyStrategy,
    ),
    Tool("introduce_turning_point", "Let the person tell what turns the story. Once only.", IntroduceTurningPoint),
    Tool("end_conversation", "Let the person leave, where it leads nowhere any more.", EndConversation),
)
_FUNCTIONS: dict[type[BaseModel], Function] = {tool.arguments: cast(Function, tool.name) for tool in TOOLS}
_AXIS_OF: dict[str, Axis] = {"cognitive": "C", "affective": "A", "motivational": "P"}

RUBRIC_WORDS = re.compile(
    r"empath\w*|\bcognitiv\w*|\baffective\w*|\bproactive\w*|\bmotivational\b|\bepm\b|\biedr\b|\bscor(?:e|es|ed|ing)\b"
    r"|\brubric\w*|\bax[ei]s\b|\bvalidat(?:e|es|ed|ing|ion)\b|\brefram(?:e|es|ed|ing)\b|\bresonance\b|\brestructuring\b"
    r"|\bempower\w*|\bprog\b|\bneg\b|\bdeficit\b|\bevaluat\w*|\bjudg(?:e?ments?|e's)\b"
    r"|共情|同理心|认知|情感共鸣|赋能|打分|得分|评分|分数|评判|评委|评价标准|维度|量表|坐标轴|[CAP]轴|等级|赤字",
    re.IGNORECASE,
)
"""Words of the rubric and of EPM that must not reach the actor."""
_NUMBER = re.compile(r"[-+\u2212]?\d+(?:[.,]\d+)*%?")
_SINGLE_AXIS = re.compile(r"(?<![A-Za-z'\u2019.])(?:C|P)(?![A-Za-z'\u2019.])")


@dataclass(frozen=True)
class Story:
    """What the story still has to offer at a point of the conversation; read from the view alone."""

    view: DirectorView

    @cached_property
    def told(self) -> set[str]:
        """Ids of the lines that the person has told."""
        return told(self.view.scenario.items(), (e.user for e in self.view.history)) | {"opening"}

    @cached_property
    def untold(self) -> dict[str, list[tuple[str, Line]]]:
        """The lines not told yet, by chapter."""
        chapters: dict[str, list[tuple[str, Line]]] = {}
        for item, line in self.view.scenario.items():
            if item not in self.told:
                chapters.setdefault(chapter_of(item), []).append((item, line))
        return chapters

    @property
    def on_offer(self) -> tuple[str, ...]:
        """Ids of the plot's untold lines."""
        return tuple(item for chapter, lines in self.untold.items() if chapter.startswith("beat") for item, _ in lines)

    @property
    def turning_point_told(self) -> bool:
        """Whether any of its lines is out."""
        return any(chapter_of(item) == "turn" for item in self.told)

    @property
    def way_left(self) -> float:
        """Share of the distance that is left, 1 at the start."""
        position = next((d.position for d in reversed(self.view.epm) if d is not None), self.view.p0)
        clipped = [min(0.0, x) for x in position]
        return norm((clipped[0], clipped[1], clipped[2])) / (norm(self.view.p0) or 1.0)

    @property
    def may_turn(self) -> bool:
        """Whether the turning point may come now."""
        if self.turning_point_told or "turn" not in self.untold:
            return False
        return self.way_left <= HALFWAY or set(self.untold) == {"turn"}

    @property
    def may_end(self) -> bool:
        """Whether the conversation may end now."""
        return len(self.view.history) >= self.view.min_turns


class LlmDirector:
    """Directs one conversation.

    Args:
        client: Whom to ask.
    """

    waits = True

    def __init__(self, client: LlmClient) -> None:
        self.id = f"llm:{short_name(client.models.of('director'))}+director-{prompt('director', 'en').version}"
        self._client = client

    async def direct(self, view: DirectorView) -> Direction:
        """Return one call.

        Raises:
            LlmFailure: There is no usable call.
        """
        written, story = prompt("director", view.scenario.language), Story(view)
        answer = await self._client.ask(
            Ask(
                role="director",
                messages=written.render(**shown(story)),
                prompt=written.key,
                tools=TOOLS,
                choices={"lines": story.on_offer},
                seed=0,
                check=lambda call: refused(call, story),
            )
        )
        direction = direction_of(cast(Call, answer.parsed), story)
        return direction.model_copy(update={"usage": answer.usage})


def director_of(name: str) -> Callable[[], LlmDirector]:
    """Return what builds a conversation's director: "llm:MODEL", or "llm:" and a models file."""
    client = client_of(name)
    return lambda: LlmDirector(client)


def shown(story: Story) -> dict[str, str]:
    """Return what the model is shown of a point of the conversation, by placeholder."""
    view = story.view
    scenario, language = view.scenario, view.scenario.language
    return {
        "person": card(scenario.persona, scenario.situation, language),
        "needs": needs(scenario.needs, language),
        "plot": _plot(story),
        "told": ", ".join(item for item, _ in scenario.items() if item in story.told),
        "talk": talk(view.history[-WINDOW:], language, LONGEST),
        "turn": str(len(view.history)),
        "min_turns": str(view.min_turns),
        "state": _state(view, story.way_left),
        "closed": ", ".join(_closed(story)) or "-",
    }


def _closed(story: Story) -> list[str]:
    closed: list[str] = []
    if not any(chapter.startswith("beat") for chapter in story.untold):
        closed.append("reveal_fragment")
    closed += [f"reveal_memory({stage})" for stage in STAGES if stage not in story.untold]
    if not story.may_turn:
        closed.append("introduce_turning_point")
    if not story.may_end:
        closed.append("end_conversation")
    return closed


def _plot(story: Story) -> str:
    scenario = story.view.scenario
    events: list[tuple[str, str]] = [(stage, chapter.event) for stage, chapter in scenario.life.items()]
    events += [(f"beat{k}", beat.event) for k, beat in enumerate(scenario.beats, 1)]
    parts = []
    for chapter, event in [*events, ("turn", scenario.turning_point.event)]:
        parts.append(f"{chapter}: {event}")
        parts += [f"  {item}: {line.say}" for item, line in story.untold.get(chapter, ())]
    return "\n".join(parts)


def _state(view: DirectorView, way_left: float) -> str:
    position = next((d.position for d in reversed(view.epm) if d is not None), view.p0)
    lines = [" ".join(f"{a} {p:+.0f} (start {s:+.0f})" for a, p, s in zip(AXES, position, view.p0, strict=True))]
    lines[0] += f"; {way_left:.0%}"
    first = max(0, len(view.judgements) - WINDOW)
    for turn, judgement in enumerate(view.judgements[first:], first + 1):
        lines.append(f"turn {turn}: {_moves(judgement.levels) if judgement else '?'}")
    return "\n".join(lines)


def _moves(levels: Levels) -> str:
    return " ".join(f"{AXES[k // 2]}{level:+d}" for k, level in enumerate(levels) if level) or "0"


def refused(call: BaseModel, story: Story) -> str:
    """Return why a call is refused, in words for the model; "" where it stands."""
    assert isinstance(call, Call)
    wrong = ""
    if isinstance(call, RevealFragment):
        known = dict(story.view.scenario.items())
        unknown = [i for i in call.lines if i not in known]
        if unknown:
            wrong = f"`lines` holds {len(unknown)} that the story does not have; take ids of untold lines"
        elif told_already := [i for i in call.lines if i in story.told]:
            wrong = f"the line {told_already[0]} has been told already"
        elif any(not i.startswith("beat") for i in call.lines):
            wrong = "reveal_fragment takes lines of beats; reveal_memory and introduce_turning_point bring the others"
    elif isinstance(call, RevealMemory) and call.stage not in story.untold:
        wrong = f"nothing is left to tell of the stage {call.stage}"
    elif isinstance(call, IntroduceTurningPoint) and not story.may_turn:
        wrong = (
            "the turning point has come already" if story.turning_point_told else "the turning point comes too early"
        )
    elif isinstance(call, EndConversation) and not story.may_end:
        wrong = f"the conversation cannot end before turn {story.view.min_turns}"
    return wrong or leak(call.words, story)


def leak(words: str, story: Story) -> str:
    """Return what in the words to the actor it must not hear; "" where they are clean.

    A number may stand there where the story itself holds it: an age, a year, a sum of money.
    """
    if found := RUBRIC_WORDS.search(words):
        return f"the actor must not hear {found.group()!r} in `words`; say it plainly"
    if _SINGLE_AXIS.search(words):
        return "the actor must not hear of axes in `words`; say it plainly"
    numbers = set(_NUMBER.findall(words))
    if numbers and (strange := sorted(numbers - set(_NUMBER.findall(_texts(story))))):
        return f"the actor must not hear the number {strange[0]} in `words`; say it plainly"
    return ""


def _texts(story: Story) -> str:
    scenario = story.view.scenario
    persona = f"{scenario.persona.age} {scenario.situation.summary} {scenario.situation.trigger}"
    return "\n".join([persona, _plot(story), *(line.say for line in scenario.lines())])


def direction_of(call: Call, story: Story) -> Direction:
    """Return a call that stands as a direction, with the lines that it offers."""
    argument: str = ""
    lines: tuple[str, ...] = ()
    if isinstance(call, RevealFragment):
        argument, lines = chapter_of(call.lines[0]).removeprefix("beat"), tuple(dict.fromkeys(call.lines))
    elif isinstance(call, RevealMemory):
        argument, lines = call.stage, _ids(story, call.stage)
    elif isinstance(call, IntroduceTurningPoint):
        lines = _ids(story, "turn")
    elif isinstance(call, AdjustEmpathyStrategy):
        ranked = story.view.scenario.needs
        rank = next(r for r, need in enumerate(ranked) if need.axis == _AXIS_OF[call.kind])
        argument, lines = call.kind, tuple(f"need{rank}.{k}" for k in range(len(ranked[rank].asks)))
    function = _FUNCTIONS[type(call)]
    return Direction(function=function, argument=argument, words=call.words, lines=lines, reason=call.reason)


def _ids(story: Story, chapter: str) -> tuple[str, ...]:
    return tuple(item for item, _ in story.untold[chapter])
