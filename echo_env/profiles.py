"""Scenarios: the people the companion talks with. Schema, loading, splits, and errors that teach.

A scenario is a YAML file under `sim_profiles/`. Each `Line` in it is one thing the person may say and at the same time
one or two things that a companion can understand: a fact or belief (axis C), a feeling (axis A), a strength or wish
(axis P), and perhaps a feeling that the line shows without naming it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import Field, ValidationError, model_validator

from echo_env.errors import ConfigError, ScenarioError, unknown_name
from echo_env.types import AXES, CHITCHAT, Axis, Record, Vector
from echo_env.yamlfiles import EXAMPLES, explain, read_yaml

Domain = Literal["career", "family", "intimate", "health", "leisure", "values"]
Kind = Literal["fact", "belief", "feeling", "strength", "wish"]
Register = Literal["plain", "wry", "guarded", "warm", "formal", "blunt"]
Stage = Literal["childhood", "teens", "young_adult", "now"]
STAGES: tuple[Stage, ...] = ("childhood", "teens", "young_adult", "now")
Split = Literal["benchmark", "benchmark-zh", "chitchat", "train", "dev", "imported"]
"""The splits. `imported` has no list: it marks other projects' people, as `echo-env import` makes them."""

FEELINGS: dict[str, tuple[str, ...]] = {
    "sorrow": ("sad", "grieving", "lonely", "homesick", "empty"),
    "shame": ("ashamed", "humiliated", "guilty", "worthless"),
    "anger": ("angry", "resentful", "betrayed", "jealous"),
    "fear": ("afraid", "anxious", "insecure"),
    "fatigue": ("exhausted", "overwhelmed", "numb"),
    "stuck": ("trapped", "torn", "helpless", "lost"),
    "unseen": ("invisible", "rejected", "unappreciated", "misunderstood"),
    "regret": ("disappointed", "regretful"),
    "bright": ("proud", "hopeful", "relieved", "tender"),
}
"""Feeling words by cluster. A feeling named within the right cluster is near; the exact word is right."""
CLUSTER_OF = {word: cluster for cluster, words in FEELINGS.items() for word in words}

IEDR_ITEMS = ("C.1", "C.2", "C.3", "A.1", "A.2", "A.3", "P.1", "P.2", "P.3")
IEDR_POINTS: dict[str, tuple[int, int, int, int]] = {
    "C.1": (0, -2, -4, -6),
    "C.2": (0, -2, -4, -6),
    "C.3": (0, -3, -6, -9),
    "A.1": (0, -2, -4, -6),
    "A.2": (0, -4, -8, -12),
    "A.3": (0, -3, -6, -9),
    "P.1": (0, -2, -4, -6),
    "P.2": (0, -4, -8, -12),
    "P.3": (0, -3, -6, -9),
}
"""Points of each rated item by level 0..3: situational complexity, depth and priority of C; intensity, accessibility
and priority of A; agency loss, relevance to values and priority of P (EMPA's IEDR)."""

Text = Annotated[str, Field(min_length=1, max_length=400)]


def _fault(field: str, message: str, example: str) -> ValueError:
    """Return the error for a rule that spans fields; `explain` takes the field from its front."""
    return ValueError(f"{field}: {message}; for example  {example}")


_ENOUGH: dict[Axis, str] = {
    "C": '{say: "I should have locked up that night.", about: locking up that night, kind: belief}',
    "A": '{say: "I set a place for her by mistake.", about: the place I set, kind: fact, feeling: grieving}',
    "P": '{say: "I want one dinner without the phone.", about: one dinner without the phone, kind: wish}',
}
"""A line that adds three points to an axis."""


class Line(Record):
    """One thing the person may say, and what there is to understand in it."""

    say: Text
    """First person, one sentence or two short ones, in this person's voice."""
    about: Annotated[str, Field(min_length=3, max_length=60)]
    """Noun phrase for it in the person's own words, fit for "I keep coming back to ...": "the desk they gave Owen"."""
    kind: Kind
    feeling: str | None = None
    """kind "feeling": the word that `say` names. Other kinds: a feeling that `say` shows and does not name."""

    @model_validator(mode="after")
    def _known_feeling(self) -> Line:
        if self.kind == "feeling" and self.feeling is None:
            raise ValueError("a line of kind 'feeling' needs 'feeling'; for example  feeling: ashamed")
        if self.feeling is not None and self.feeling not in CLUSTER_OF:
            raise ValueError(f"unknown feeling '{self.feeling}'; one of: {', '.join(sorted(CLUSTER_OF))}")
        return self


class Persona(Record):
    """Who the person is."""

    name: Text
    age: Annotated[int, Field(ge=16, le=99)]
    job: Text
    traits: Annotated[tuple[Text, ...], Field(min_length=2, max_length=6)]
    register_: Annotated[Register, Field(alias="register")]
    """Which bank of reactions the embedded actor speaks from."""
    speech: Text
    """How this person talks, in a sentence: for people and language models to read."""
    defensiveness: Literal["low", "high"]

    model_config = Record.model_config | {"populate_by_name": True}


class Need(Record):
    """What one axis means for this person; `Scenario.needs` ranks three of them."""

    axis: Axis
    wants: Text
    """What they want to hear."""
    hurts: Text
    """What hurts them."""
    asks: Annotated[tuple[Text, ...], Field(min_length=2, max_length=4)]
    """First-person sentences that let this need show: "I don't want a plan tonight."."""


class Rating(Record):
    """One IEDR item."""

    level: Annotated[int, Field(ge=0, le=3)]
    reason: Text


class Chapter(Record):
    """A beat, a life stage, the turning point: what happened, and the lines that tell it."""

    event: Text
    """Third person, one sentence."""
    lines: Annotated[tuple[Line, ...], Field(max_length=10)]
    """At least one, except in an imported scenario, whose source may not know this chapter."""


class Situation(Record):
    """What brings the person here."""

    summary: Text
    trigger: Text


class Ending(Record):
    """How it ends when it ends well."""

    event: Text
    says: Annotated[tuple[Text, ...], Field(min_length=2, max_length=4)]
    """Closing messages of the person who has been understood."""


class Scenario(Record):
    """One person in one situation."""

    id: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{1,60}$")]
    language: Literal["en", "zh"]
    split: Split
    domain: Domain | Literal["chitchat"]
    threshold: Literal["low", "high"]
    """Empathy threshold: how much it takes before this person feels understood (Echo-N1 section 5.3.3)."""
    persona: Persona
    needs: tuple[Need, ...]
    """The three axes, most important first; none in chit-chat, as for `iedr`."""
    iedr: dict[str, Rating]
    life: dict[Stage, Chapter]
    situation: Situation
    opening: Line
    beats: Annotated[tuple[Chapter, ...], Field(min_length=4, max_length=4)]
    turning_point: Chapter
    ending: Ending

    @model_validator(mode="after")
    def _whole(self) -> Scenario:
        self._check_ratings()
        if set(self.life) != set(STAGES):
            raise _fault("life", f"must have the stages {', '.join(STAGES)}", "teens: {event: ..., lines: [...]}")
        empty = [name for name, chapter in self.chapters() if not chapter.lines]
        if empty and self.split != "imported":
            raise _fault(f"{empty[0]}.lines", "a chapter needs a line", EXAMPLES["lines"])
        said: dict[str, str] = {}
        for item, line in self.items():
            if line.say in said:
                raise _fault(said[line.say], f"a line stands twice, again as {item}", 'say: "Another sentence."')
            said[line.say] = item
        if not self.chitchat:
            self._check_deficit()
        return self

    def _check_ratings(self) -> None:
        if self.chitchat:
            if self.needs or self.iedr:
                raise _fault("needs", "chit-chat has neither needs nor ratings", "needs: [] and iedr: {}")
            return
        if sorted(n.axis for n in self.needs) != ["A", "C", "P"]:
            raise _fault("needs", "must rank each axis once", "needs: [{axis: A, ...}, {axis: C, ...}, {axis: P, ...}]")
        if sorted(self.iedr) != sorted(IEDR_ITEMS):
            raise _fault("iedr", f"must rate exactly {', '.join(IEDR_ITEMS)}", "C.1: {level: 2, reason: ...}")

    def _check_deficit(self) -> None:
        deficit = [-x for x in self.p0]
        if sum(max(0.0, d - 1) ** 2 for d in deficit) == 0:
            raise _fault("iedr", "the ratings give no deficit to heal: no axis is below -1", "A.1: {level: 2, ...}")
        first = self.needs[0].axis
        largest = AXES[deficit.index(max(deficit))]
        if deficit[AXES.index(first)] < max(deficit):
            told = f"needs rank {first} first, but the IEDR ratings make {largest} the largest deficit {self.p0}"
            raise _fault("needs", told, f"needs: [{{axis: {largest}, ...}}, ...]")
        if self.split == "imported":  # its sentences were written without kinds: what they are worth says nothing
            return
        for axis, have, need in zip(AXES, self.capacity(), deficit, strict=True):
            if have < 1.2 * need:
                worth = "fact 1, belief 3; feeling 1, shown feeling 3; strength 1, wish 3"
                told = f"too little to heal axis {axis}: worth {have:g} points, {1.2 * need:g} needed ({worth})"
                raise _fault("lines", told, _ENOUGH[axis])

    @property
    def p0(self) -> Vector:
        """Initial deficit in points, from the IEDR ratings: each axis's three items summed; (0, 0, 0) in chit-chat."""
        if self.chitchat:
            return (0.0, 0.0, 0.0)
        return iedr_deficit({item: rating.level for item, rating in self.iedr.items()})

    @property
    def chitchat(self) -> bool:
        """Whether this person came for nothing but a chat: no deficit, no EPM."""
        return self.domain == CHITCHAT

    @property
    def dominant(self) -> Axis:
        """The axis ranked first; of nobody in chit-chat."""
        return self.needs[0].axis

    def lines(self) -> Iterator[Line]:
        """Every line, in the order of the schema: opening, life, beats, turning point."""
        return (line for _, line in self.items())

    def items(self) -> Iterator[tuple[str, Line]]:
        """Every line with its id: "opening", "childhood.0", "beat2.1", "turn.0"."""
        yield "opening", self.opening
        for name, chapter in self.chapters():
            for j, line in enumerate(chapter.lines):
                yield f"{name}.{j}", line

    def chapters(self) -> Iterator[tuple[str, Chapter]]:
        """Every chapter with its name: the four stages of life, "beat1" to "beat4", "turn"."""
        yield from ((stage, self.life[stage]) for stage in STAGES)
        yield from ((f"beat{i + 1}", beat) for i, beat in enumerate(self.beats))
        yield "turn", self.turning_point

    def capacity(self) -> Vector:
        """Points per axis that a companion could earn by meeting every line once."""
        c = a = p = 0
        for line in self.lines():
            c += {"fact": 1, "belief": 3}.get(line.kind, 0)
            p += {"strength": 1, "wish": 3}.get(line.kind, 0)
            a += 1 if line.kind == "feeling" else 3 if line.feeling else 0
        return (c, a, p)

    @cached_property
    def digest(self) -> str:
        """First 16 hex digits of the SHA-256 of the canonical JSON."""
        return hashlib.sha256(self.model_dump_json(by_alias=True).encode()).hexdigest()[:16]


def iedr_deficit(levels: dict[str, int]) -> Vector:
    """Map nine IEDR levels to the initial deficit P0.

    Args:
        levels: Level 0..3 for each of `IEDR_ITEMS`.

    Returns:
        (C, A, P) in points; C within [-21, 0], A and P within [-27, 0].

    Raises:
        ScenarioError: An item is missing, unknown or out of range. (The published code maps it to 0 in silence.)
    """
    if sorted(levels) != sorted(IEDR_ITEMS):
        raise ScenarioError(f"IEDR needs exactly the items {', '.join(IEDR_ITEMS)}, got {', '.join(sorted(levels))}")
    bad = {k: v for k, v in levels.items() if v not in (0, 1, 2, 3)}
    if bad:
        raise ScenarioError(f"IEDR levels must be 0, 1, 2 or 3, got {bad}")
    c, a, p = (sum(IEDR_POINTS[f"{axis}.{i}"][levels[f"{axis}.{i}"]] for i in (1, 2, 3)) for axis in AXES)
    return (float(c), float(a), float(p))


def data_root() -> Path:
    """Return the folder `sim_profiles`: inside the installed package, or beside it in a checkout."""
    here = Path(__file__).resolve().parent
    for folder in (here / "sim_profiles", here.parent / "sim_profiles"):
        if folder.is_dir():
            return folder
    raise ScenarioError("the folder sim_profiles/ is missing from this installation", "reinstall echo-env")


def load_scenario(path: Path | str) -> Scenario:
    """Load and validate one scenario file.

    Raises:
        ScenarioError: Naming the file, each field at fault and a valid example for it.
    """
    path = Path(path)
    data = read_yaml(path)
    if not isinstance(data, dict):
        held = "is empty" if data is None else f"holds a {type(data).__name__}"
        raise ScenarioError(
            f"{path}: a scenario is a mapping of fields, this file {held}; for example  {EXAMPLES['id']}",
            "copy one of sim_profiles/benchmark/ and change it",
        )
    try:
        return Scenario.model_validate(data)
    except ValidationError as e:
        raise ScenarioError(explain(path, e)) from None


HAND_WRITTEN: dict[str, str] = {"benchmark": "benchmark", "benchmark-zh": "benchmark_zh", "chitchat": "chitchat"}
"""Splits of hand-written scenarios, and the folder of each under `sim_profiles/`."""


def benchmark(split: str = "benchmark") -> dict[str, Scenario]:
    """Return a hand-written split's scenarios by id, in the order of their ids."""
    return _hand_written(split)


@cache
def _hand_written(split: str) -> dict[str, Scenario]:
    files = sorted((data_root() / HAND_WRITTEN[split]).glob("*.yaml"))
    return {s.id: s for s in (load_scenario(f) for f in files)}


def scenario_ids(split: str) -> list[str]:
    """Return the ids of a split, in order.

    Args:
        split: "benchmark" (30, by hand), "benchmark-zh" (30, by hand, Chinese), "chitchat" (10, by hand, no deficit),
            "train" (400) or "dev" (100), both generated.

    Raises:
        ConfigError: There is no such split, or it is "imported", which has no list.
    """
    if split == "imported":
        raise ConfigError(
            "the split 'imported' has no list: its people are files of yours",
            "name one, or several, with  --scenario FILE.yaml;  echo-env import makes them",
        )
    if split in HAND_WRITTEN:
        return list(benchmark(split))
    from echo_env.generator import SPLIT_SIZES  # the bank is read only when it is asked for

    if split not in SPLIT_SIZES:
        raise unknown_name("split", split, get_args(Split))
    return [f"{split}-{i:04d}" for i in range(SPLIT_SIZES[split])]


@lru_cache(maxsize=1024)
def get_scenario(name: str) -> Scenario:
    """Return a scenario by id, or from a YAML file where `name` is a path that ends in .yaml.

    Raises:
        ConfigError: No such scenario; the message gives the nearest id.
        ScenarioError: The file does not hold a valid scenario.
    """
    if name.endswith((".yaml", ".yml")):
        return load_scenario(name)
    split, _, number = name.rpartition("-")
    if split in ("train", "dev") and number.isdigit() and name in scenario_ids(split):
        from echo_env.generator import generate

        return generate("train" if split == "train" else "dev", int(number))
    for hand_written in HAND_WRITTEN:
        if name in benchmark(hand_written):
            return benchmark(hand_written)[name]
    known = [scenario for hand_written in HAND_WRITTEN for scenario in benchmark(hand_written)]
    raise unknown_name("scenario", name, [*known, "train-0000", "dev-0000"])
