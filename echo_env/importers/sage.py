"""SAGE and RLVER: profiles become scenarios, recorded conversations become a run.

SAGE (arXiv 2505.02847) and RLVER (arXiv 2507.03112) by Tencent share a format: one JSON object a line, in Chinese.

    profile     id, player, scene, main_cha, cha_group, task, and perhaps first_talk
    recording   the same with `character` for main_cha, emo_point, history [{role, content, emotion-point, planning}]

They lie in github.com/Tencent/digitalhuman under the MIT licence (Copyright (C) 2025 THL A29 Limited, a Tencent
company). The people were written by a language model, and the emotion points come from one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from echo_env.errors import RecordError
from echo_env.importers.fields import Entry, found_files, read_lines, slug, unique
from echo_env.importers.people import Person, Rater, most_frequent, scenario_of, sentences
from echo_env.importers.runs import ImportedRun, bare_header
from echo_env.profiles import Domain, Register, Scenario
from echo_env.types import Axis, End, Episode, Outcome, Turn, Verdict

CREDIT = "Profile of SAGE / RLVER, github.com/Tencent/digitalhuman, MIT License, Copyright (C) 2025 THL A29 Limited."
GUESSED = "Made by `echo-env import sage`: sentences as they stand; ratings, needs, domain and register by its tables."

RANKING_OF_TASK: dict[str, tuple[Axis, Axis, Axis]] = {
    "建议": ("P", "C", "A"),  # advice that really helps
    "共情": ("A", "C", "P"),  # to be felt with
    "夸奖": ("P", "A", "C"),  # praise for what they did
    "反思": ("C", "P", "A"),  # to be led to think about themselves
    "倾听": ("A", "P", "C"),  # to be listened to
    "辩证": ("C", "A", "P"),  # to see both sides
    "其他人物": ("C", "A", "P"),  # why others did it
    "没有错": ("A", "C", "P"),  # to be told that they did no wrong
}
"""Ranking of the needs by a word of the hidden theme; the eight are all that SAGE and RLVER have."""
UNKNOWN_TASK: tuple[Axis, Axis, Axis] = ("A", "C", "P")


@dataclass(frozen=True, slots=True)
class Character:
    """What a kind of character (`main_cha`) means here."""

    register: Register
    defensive: bool
    raised: str
    """The IEDR item that it raises."""
    why: str


CHARACTERS: dict[str, Character] = {
    "负面": Character("blunt", True, "A.1", "main_cha is negative, the feeling runs high"),
    "被动": Character("plain", False, "P.1", "main_cha is passive, the person waits to be moved"),
    "回避": Character("guarded", True, "A.2", "main_cha is avoidant, the feeling is hard to reach"),
}
UNKNOWN_CHARACTER = Character("plain", False, "", "")

DOMAIN_WORDS: dict[str, tuple[str, ...]] = {
    "career": ("工作", "公司", "同事", "老板", "上司", "客户", "项目", "职场", "创业", "业务"),
    "family": ("父母", "父亲", "母亲", "妈妈", "爸爸", "家人", "儿子", "女儿", "孩子", "亲戚"),
    "intimate": ("男友", "女友", "恋爱", "恋人", "初恋", "丈夫", "妻子", "分手", "婚", "约会"),
    "health": ("医院", "医生", "生病", "病情", "手术", "失眠", "疼", "健康"),
    "leisure": ("游戏", "比赛", "旅行", "社团", "爱好", "网友", "邻居", "宠物"),
}
"""The domain is guessed from the scene: the most frequent of these, else "values"."""

_REACTIONS = re.compile(
    r"emotion|隐藏主题|可能的?反应|不同.{0,6}回复|(?:面对|如果|若|当).{0,4}NPC|NPC.{0,6}回[复应]", re.IGNORECASE
)
"""Begins the part of a scene that is stage direction, not story."""
_LABEL = re.compile(
    r"^[^，。：:]{0,24}(?:冲突|原因|方案|问题|想法|感受|时间线|事件|困难|状态|起因|经过|背景|角色)[^，。：:]{0,14}[：:]\s*"
)
"""A heading that stands before its text on one line."""
_FITS, _MISSES = re.compile(r"贴合|符合|提升|上升"), re.compile(r"偏离|降低|下降")
LIMIT = 10
"""Turns after which SAGE cuts a conversation off; RLVER does after 8."""


def load_people(path: Path, rater: Rater | None = None) -> list[tuple[Scenario, Person]]:
    """Read profiles: a file of them, or all `*.jsonl` of a folder.

    Raises:
        RecordError: A file cannot be read or a profile lacks a field.
        ScenarioError: A profile does not make a scenario.
    """
    people = [person_of(entry) for file in _files(path) for entry in read_lines(file)]
    unique([person.id for person in people], "people")
    return [(scenario_of(person, rater), person) for person in people]


def holds_recordings(path: Path) -> bool:
    """Whether a file or folder holds recorded conversations, by its first entry."""
    first = next(read_lines(_files(path)[0]), None)
    return first is not None and "history" in first.data


def _files(path: Path) -> list[Path]:
    return found_files(
        path, "*.jsonl", "profiles or recordings of SAGE or RLVER (github.com/Tencent/digitalhuman, MIT)"
    )


def person_of(entry: Entry) -> Person:
    """Read one profile, or what a recording says of its person.

    Raises:
        RecordError: A field is missing, or `player` has no name or age in it.
    """
    player, scene, task = entry.text("player"), entry.text("scene"), entry.text("task")
    kind = entry.text("main_cha", "character")
    character = next((c for word, c in CHARACTERS.items() if word in kind), UNKNOWN_CHARACTER)
    ranking = next((r for word, r in RANKING_OF_TASK.items() if word in task), UNKNOWN_TASK)
    story, reactions = _parts(scene)
    wants, hurts = _reactions(reactions)
    traits = entry.texts("cha_group")
    told = [*sentences(_section(player, "爱好")), *sentences(_section(player, "习惯"))]
    return Person(
        where=entry.where,
        id=f"sage-{slug(entry.text('id').lower())}"[:60],
        language="zh",
        name=_stated(entry, player, "姓名"),
        age=int(_stated(entry, player, "年龄", r"(\d+)")),
        job=_stated(entry, player, "职业"),
        traits=traits[:6] or (kind,),
        speech=_section(player, "说话风格") or player,
        register=character.register,
        defensive=character.defensive,
        domain=cast("Domain", most_frequent(scene, DOMAIN_WORDS, "values")),
        ranking=ranking,
        ranked_by="task",
        wants=f"{task}。{wants}" if wants else task,
        hurts=hurts,
        raised={character.raised: character.why} if character.raised else {},
        summary="".join(story[:3]) or _other(scene),
        trigger=story[-1] if story else _other(scene),
        opening=_first_talk(entry),
        story=tuple(story),
        present=tuple(told),
        notes=(CREDIT, GUESSED, f"task: {task}; main_cha: {kind}"),
    )


def _first_talk(entry: Entry) -> str:
    if entry.get("first_talk") is not None:
        return entry.text("first_talk")
    spoken = [message for message in entry.get("history") or [] if isinstance(message, dict)]
    return str(spoken[0].get("content", "")) if spoken and spoken[0].get("role") == "user" else ""


def _stated(entry: Entry, player: str, label: str, value: str = r"([^\n*]+)") -> str:
    found = re.search(rf"{label}\W*?[:：]\W*?{value}", player)
    if found is None or not found[1].strip():
        raise RecordError(f"{entry.where}: 'player' does not tell {label}; expected a line such as  * {label}：...")
    return found[1].strip()


def _section(player: str, label: str) -> str:
    """Return what stands under a heading of `player`."""
    found = re.search(rf"{label}[^\n：:]*[:：]\s*(.*?)(?=\n\s*[*#-]+\s*[^\n：:]{{2,10}}[:：]|\Z)", player, re.DOTALL)
    lines = found[1].split("\n") if found else []
    return "\n".join(re.sub(r"^\s*(?:\d+[.、]|[*#-]+)\s*", "", line).strip() for line in lines)


def _parts(scene: str) -> tuple[list[str], list[str]]:
    """Return the sentences of the story, and the lines of the stage directions behind it."""
    lines = [re.sub(r"^[\s#*>-]*(?:\d+[.、]\s*)?|\*\*|__", "", line).strip() for line in scene.split("\n")]
    start = next((k for k, line in enumerate(lines) if _REACTIONS.search(line)), len(lines))
    told = []
    for line in lines[:start]:
        text = _LABEL.sub("", line).strip()
        if not re.search(r"[。！？!?]", text):  # a heading
            continue
        told += sentences(text)
    return [_other(sentence) for sentence in told], [line for line in lines[start:] if line]


def _other(text: str) -> str:
    """Call the game's "NPC" what it is to the person: the other."""
    return text.replace("NPC", "对方")


def _reactions(lines: Sequence[str]) -> tuple[str, str]:
    """Return what the directions say of replies that fit the hidden theme, and of those that miss it."""
    fit: list[str] = []
    miss: list[str] = []
    told: list[str] | None = None
    for piece in (piece for line in lines for piece in sentences(line) or [line]):
        fits, misses = _FITS.search(piece), _MISSES.search(piece)
        if fits or misses:
            told = fit if fits and (misses is None or fits.start() < misses.start()) else miss
        text = re.sub(r"^[^。，：:]{0,30}[：:]\s*", "", piece)
        if told is not None and re.search(r"[。！？]", text):
            told.append(text)
    return _other("".join(fit)), _other("".join(miss))


# --- recordings ------------------------------------------------------------------------------------------------------


def load_recordings(path: Path, rater: Rater | None = None) -> list[ImportedRun]:
    """Read recorded conversations: a `*_result.jsonl`, named by the model under test, or a folder of them.

    Turns are unjudged, since recordings hold no levels; `echo-env score RUNS --judge NAME --out DIR` judges them. The
    emotion after a reply is its verdict "sage", 0..1 for 0..100 points; RLVER's has no lower bound.

    Raises:
        RecordError: A file cannot be read or a recording lacks a field.
        ScenarioError: A person does not make a scenario.
    """
    return [_run(file, rater) for file in _files(path)]


def _run(file: Path, rater: Rater | None) -> ImportedRun:
    model = file.stem.removesuffix("_result")
    based = file.resolve().parent.name
    actor = based.removesuffix("_based_simulator") if based.endswith("_based_simulator") else "sage"
    entries = list(read_lines(file))
    people = [person_of(entry) for entry in entries]
    unique([person.id for person in people], f"recordings of {file.name}")
    scenarios = [scenario_of(person, rater) for person in people]
    return ImportedRun(
        name=slug(model, r"\w.-"),
        source="sage",
        episodes=tuple(_episode(e, s, model, actor) for e, s in zip(entries, scenarios, strict=True)),
        people=tuple(zip(scenarios, (person.notes for person in people), strict=True)),
    )


def _episode(entry: Entry, scenario: Scenario, model: str, actor: str) -> Episode:
    messages = entry.entries("history")
    said = [_spoken(message, "assistant" if k % 2 else "user") for k, message in enumerate(messages)]
    felt = [*messages[2::2], entry]  # what a reply did stands with the user's next message
    turns = [
        _turn(k + 1, user, reply, felt[k], actor)
        for k, (user, reply) in enumerate(zip(said[::2], said[1::2], strict=False))
    ]
    outcome = Outcome(end=_end(entry, len(turns)), turns=len(turns), closing=said[-1] if len(said) % 2 else "")
    header = bare_header(scenario.id, scenario.digest, scenario.p0, domain=scenario.domain).model_copy(
        update={"policy": model, "actor": actor, "max_turns": LIMIT}
    )
    return Episode(header=header, turns=tuple(turns), outcome=outcome)


def _turn(index: int, user: str, reply: str, after: Entry, actor: str) -> Turn:
    planning = after.get("planning")
    verdict = Verdict(
        kind="sage",
        judge=f"sage:{actor}",
        value=after.number("emotion-point", "emo_point") / 100,
        reasoning=str(planning.get("analyse", "")) if isinstance(planning, dict) else "",
    )
    return Turn(
        index=index,
        user=user,
        reply=reply,
        judgement=None,
        epm=None,
        direction=None,
        reward=None,
        verdicts=(verdict,),
    )


def _spoken(message: Entry, role: str) -> str:
    if message.get("role") != role:
        raise RecordError(f"{message.where}: 'role' must be '{role}' here, not {message.get('role')!r}")
    return message.text("content")


def _end(entry: Entry, turns: int) -> End:
    """Return how a recording ended: at 100 points in success, at the limit cut off, else the person left."""
    if entry.number("emo_point") >= 100:
        return "success"
    return "budget" if turns >= LIMIT else "director"
