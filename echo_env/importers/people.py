"""From what another project tells of a person to a scenario of ours, by stated defaults.

Sentences are taken as they stand, in order; nothing is put into the person's mouth. What our schema asks for and the
source does not tell is filled from the tables here, and the file says so: the IEDR ratings above all, which are
defaults by the ranking of the needs unless a rater gives them.
"""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, Protocol, cast

from pydantic import ValidationError

from echo_env.build import build_judge
from echo_env.errors import ConfigError, RecordError, ScenarioError
from echo_env.profiles import STAGES, Domain, Rating, Register, Scenario, data_root, iedr_deficit
from echo_env.types import AXES, Axis
from echo_env.yamlfiles import explain, read_yaml

Language = Literal["en", "zh"]
MOST_LINES, LONGEST, LONGEST_ABOUT = 10, 400, 60
"""What a chapter, a text and an `about` may hold (`profiles`)."""
SHORTEST = 4
"""Characters below which a piece between two stops is no sentence."""

LEVELS_BY_RANK: tuple[tuple[int, int, int], ...] = ((3, 2, 3), (1, 1, 2), (1, 1, 1))
"""Default levels of an axis's three IEDR items, for the need ranked first, second and third. Whatever items a source
raises by one, the first stays the largest deficit."""

NEEDS: dict[Language, dict[Axis, dict[str, Any]]] = {
    "en": {
        "C": {
            "wants": "To see more clearly how it all hangs together.",
            "hurts": "Being told how it is by someone who has not looked.",
            "asks": ("I'd like to make sense of this.", "Am I looking at this the wrong way?"),
        },
        "A": {
            "wants": "To have what they feel noticed and taken seriously.",
            "hurts": "Being cheered up, or hurried along.",
            "asks": ("I'd like someone to hear me out.", "It's hard to say what this is like."),
        },
        "P": {
            "wants": "To find a next step that is their own.",
            "hurts": "Being handed a plan, or told that they cannot do it.",
            "asks": ("I'd like to know what I could do.", "I want to get through this on my own feet."),
        },
    },
    "zh": {
        "C": {
            "wants": "想把这件事看得更清楚一些。",
            "hurts": "还没弄清情况就被人下了结论。",
            "asks": ("我想弄明白这到底是怎么一回事。", "是不是我看这件事的角度不对？"),
        },
        "A": {
            "wants": "希望自己的感受有人看见，有人当真。",
            "hurts": "被随口安慰，或者被催着快点好起来。",
            "asks": ("我就想有个人听我把话说完。", "这种滋味我说不太清楚。"),
        },
        "P": {
            "wants": "想找到自己走得动的下一步。",
            "hurts": "被硬塞一套做法，或者被说成办不到。",
            "asks": ("我想知道我还能做点什么。", "我想靠自己把这件事过去。"),
        },
    },
}
"""Needs in default words. The words of the source replace the wants and hurts of the need ranked first."""

DEFAULTS: dict[Language, dict[str, Any]] = {
    "en": {
        "opening": ("Hi, have you got a minute?", "having a minute"),
        "untold": "The source does not tell.",
        "ending": "The person says goodbye.",
        "says": ("Thank you for this. I'll leave it there for today.", "All right. It was good to talk."),
    },
    "zh": {
        "opening": ("你好，现在方便聊几句吗？", "现在方便聊几句"),
        "untold": "资料里没有说。",
        "ending": "这个人道别。",
        "says": ("谢谢你，今天先说到这里。", "好，能聊聊挺好的。"),
    },
}
"""What stands where a source is silent."""


@dataclass(frozen=True, slots=True)
class Person:
    """What a source tells of a person, before it is a scenario."""

    where: str
    """File and place, for errors."""
    id: str
    language: Language
    name: str
    age: int
    job: str
    traits: tuple[str, ...]
    speech: str
    register: Register
    defensive: bool
    domain: Domain
    ranking: tuple[Axis, ...]
    """The axes, most wanted first."""
    ranked_by: str
    """The field, or fields, that the ranking and the ratings were read from."""
    wants: str
    """What the person wants most, in the source's words; empty for the default."""
    hurts: str
    """What hurts the person most, likewise."""
    raised: Mapping[str, str]
    """IEDR items that lie a level above the default, each with why."""
    summary: str
    trigger: str
    opening: str
    """The first message; empty for the default."""
    story: tuple[str, ...]
    """Sentences of the story, in order; they make the beats and the turning point."""
    present: tuple[str, ...]
    """Sentences about the person's life now."""
    notes: tuple[str, ...] = field(default=())
    """Credit and what was guessed: the comment at the head of the file."""


class Rater(Protocol):
    """A judge that can rate a person's initial deficit (EMPA's IEDR)."""

    async def rate(self, scenario: Scenario) -> Mapping[str, Rating]:
        """Return a rating of each of `profiles.IEDR_ITEMS`; the scenario's own ratings are the importer's defaults."""
        ...


def load_rater(name: str) -> Rater:
    """Return a rater by the registered name of a judge, or "module:attribute".

    Raises:
        ConfigError: There is no such judge, or it does not rate.
    """
    judge = build_judge(name)
    if not inspect.iscoroutinefunction(getattr(judge, "rate", None)):
        raise ConfigError(f"judge '{name}' cannot rate people", "leave --rater out for the default ratings")
    return cast("Rater", judge)


def scenario_of(person: Person, rater: Rater | None = None) -> Scenario:
    """Return a person as a scenario of the split "imported".

    A rater's ratings rank the needs anew, by the deficit that they give.

    Raises:
        ScenarioError: What the source tells does not make a scenario, or the rater's ratings do not.
    """
    drafted = _validated(person, _default_ratings(person), person.ranking)
    if rater is None:
        return drafted
    ratings = asyncio.run(rater.rate(drafted))
    deficit = dict(zip(AXES, iedr_deficit({item: rating.level for item, rating in ratings.items()}), strict=True))
    return _validated(person, ratings, sorted(person.ranking, key=lambda axis: deficit[axis]))


def _default_ratings(person: Person) -> dict[str, Rating]:
    ratings = {}
    for rank, axis in enumerate(person.ranking):
        for number, level in enumerate(LEVELS_BY_RANK[rank], start=1):
            item, reason = f"{axis}.{number}", f"Default of the importer: need {rank + 1} by {person.ranked_by}."
            if item in person.raised:
                level, reason = min(3, level + 1), f"{reason} One more: {person.raised[item]}."
            ratings[item] = Rating(level=level, reason=reason)
    return ratings


def _validated(person: Person, ratings: Mapping[str, Rating], ranking: Sequence[Axis]) -> Scenario:
    try:
        return Scenario.model_validate(_data(person, ratings, ranking))
    except ValidationError as e:
        raise ScenarioError(explain(Path(person.where), e)) from None


def _data(person: Person, ratings: Mapping[str, Rating], ranking: Sequence[Axis]) -> dict[str, Any]:
    words = DEFAULTS[person.language]
    said: set[str] = set()
    opening = _lines([person.opening], person.language, said) if person.opening else []
    opening = opening or [{"say": words["opening"][0], "about": words["opening"][1], "kind": "fact"}]
    story, present = _lines(person.story, person.language, said), _lines(person.present, person.language, said)
    bounds = [k * max(5, len(story)) // 5 for k in range(6)]
    parts = [_chapter(story[start:end], words["untold"]) for start, end in pairwise(bounds)]
    return {
        "id": person.id,
        "language": person.language,
        "split": "imported",
        "domain": person.domain,
        "threshold": "high" if person.defensive else "low",
        "persona": {
            "name": person.name,
            "age": person.age,
            "job": person.job,
            "traits": person.traits if len(person.traits) > 1 else (*person.traits, words["untold"]),
            "register": person.register,
            "speech": shortened(person.speech),
            "defensiveness": "high" if person.defensive else "low",
        },
        "needs": [_need(person, axis) for axis in ranking],
        "iedr": {item: rating.model_dump() for item, rating in ratings.items()},
        "life": {stage: _chapter(present if stage == "now" else [], words["untold"]) for stage in STAGES},
        "situation": {"summary": shortened(person.summary), "trigger": shortened(person.trigger)},
        "opening": opening[0],
        "beats": parts[:4],
        "turning_point": parts[4],
        "ending": {"event": words["ending"], "says": words["says"]},
    }


def _need(person: Person, axis: Axis) -> dict[str, Any]:
    told = {"wants": shortened(person.wants), "hurts": shortened(person.hurts)} if axis == person.ranking[0] else {}
    return {"axis": axis, **NEEDS[person.language][axis], **{key: text for key, text in told.items() if text}}


def _chapter(lines: Sequence[dict[str, Any]], untold: str) -> dict[str, Any]:
    return {"event": lines[0]["say"] if lines else untold, "lines": list(lines[:MOST_LINES])}


def _lines(texts: Iterable[str], language: Language, said: set[str]) -> list[dict[str, Any]]:
    """Return lines for the texts that were not said yet."""
    found: list[dict[str, Any]] = []
    for text in map(shortened, texts):
        if text and text not in said:
            said.add(text)
            feeling = named_feeling(text, language)
            line = {"say": text, "about": _about(text), "kind": "feeling" if feeling else "fact"}
            found.append(line | ({"feeling": feeling} if feeling else {}))
    return found


# --- texts -----------------------------------------------------------------------------------------------------------


def sentences(text: str) -> list[str]:
    """Split a text, Chinese or English, into sentences as they stand; pieces too short to be one are left out."""
    pieces = re.findall(r"(?:[^。！？!?.…\n]|[.!?](?=[^\s”\"'’」)]))+(?:[。！？!?.…]+[”\"'’」）)]*|\n|$)", text)
    return [piece.strip() for piece in pieces if len(piece.strip()) >= SHORTEST]


def shortened(text: str) -> str:
    """Return a text on one line that is no longer than a field may be, cut behind its last full sentence or clause."""
    text = " ".join(text.split())
    if len(text) <= LONGEST:
        return text
    cut = text[:LONGEST]
    end = max(cut.rfind(stop) for stop in "。！？；，.!?;,")
    return cut[: end + 1] if end > 0 else cut


def _about(text: str) -> str:
    """Return the longest clause of a sentence that fits."""
    clauses = [clause.strip(" \"'“”‘’「」()（）") for clause in re.split(r"[，。！？；：,.!?;:\n]", text)]
    fitting = [clause for clause in clauses if 3 <= len(clause) <= LONGEST_ABOUT]
    if fitting:
        return max(fitting, key=len)
    cut = text[:LONGEST_ABOUT].ljust(3, ".")
    return cut[: cut.rfind(" ")] if " " in cut else cut


def named_feeling(text: str, language: Language) -> str | None:
    """Return the first feeling that a sentence names by a form of the lexicon, if there is a lexicon."""
    forms = _feeling_forms(language)
    if not forms:
        return None
    edge = r"\b" if language == "en" else ""
    pattern = edge + "(" + "|".join(re.escape(form) for form in sorted(forms, key=len, reverse=True)) + ")" + edge
    found = re.search(pattern, text.lower())
    return forms[found[1]] if found else None


@lru_cache(maxsize=2)
def _feeling_forms(language: Language) -> dict[str, str]:
    """Form -> feeling, from the lexicon of the embedded world; empty where there is none for the language."""
    path = data_root() / "lexicons" / f"{language}.yaml"
    listed = read_yaml(path).get("feelings", {}) if path.is_file() else {}
    return {form.lower(): feeling for feeling, forms in listed.items() for form in forms}


def most_frequent(text: str, words: Mapping[str, Iterable[str]], default: str) -> str:
    """Return the key whose words stand in a text most often, the first of equals; the default where none does."""
    counts = {key: sum(text.lower().count(word) for word in listed) for key, listed in words.items()}
    best = max(counts, key=lambda key: counts[key])
    return best if counts[best] else default


# --- files -----------------------------------------------------------------------------------------------------------


def write_scenario(scenario: Scenario, folder: Path, notes: Sequence[str], *, overwrite: bool = False) -> Path:
    """Write a scenario as `FOLDER/ID.yaml`, the notes as a comment at its head.

    Raises:
        RecordError: The file is there already, or cannot be written.
    """
    import yaml

    path = folder / f"{scenario.id}.yaml"
    if path.exists() and not overwrite:
        raise RecordError(f"{path} exists already", "give --overwrite, or another --out")
    data = scenario.model_dump(mode="json", by_alias=True, exclude_none=True)
    body = yaml.safe_dump(data, allow_unicode=True, sort_keys=False, width=120)
    head = "".join(f"# {' '.join(note.split())}\n" for note in notes)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(head + body, encoding="utf-8")
    except OSError as e:
        raise RecordError(f"{path} cannot be written: {e.strerror or e}") from None
    return path
