"""moodsona: personas become scenarios.

A persona is a YAML file with id, display_name, description, hidden_goal, reaction_rules [{when, then, emotion_delta,
energy_delta, stance_to}], initial_state and baseline {emotion, energy 0..100, stance}, tags, license and author. They
come with the PyPI package `moodsona` (code Apache-2.0, personas CC BY 4.0; github.com/moodsona/moodsona) in its folder
`personas/`. Each scenario names author and licence at its head, as CC BY asks.

A persona is a kind of person, not a story: it has no name, job or first message, and few sentences. Most chapters of
the scenario stay empty; a language model has to make up the rest.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import cast

from echo_env.errors import RecordError
from echo_env.importers.fields import Entry, as_entry, found_files, slug, unique
from echo_env.importers.people import Person, Rater, most_frequent, scenario_of, sentences
from echo_env.profiles import Domain, Register, Scenario
from echo_env.types import AXES, Axis
from echo_env.yamlfiles import read_yaml

GUESSED = (
    "Changes: made a scenario by `echo-env import moodsona`; sentences as they stand; ratings, ranking of the needs,"
    " age, domain and register by its tables; of the reaction rules, those that help and hurt most."
)

GOAL_WORDS: dict[str, tuple[str, ...]] = {
    "A": ("listen", "hear", "sit with", "notice", "sadness", "tired", "company", "less alone", "lonel", "vent", "feel"),
    "C": ("understand", "honest", "explain", "decide", "whether", "proof", "checking", "clear", "reason", "useful"),
    "P": ("help", "plan", "practical", "step", "advice", "encourage", "courage", "habit", "sleep"),
}
"""The needs are ranked by how often these stand in the hidden goal; equals in the order A, C, P."""
STANCES: dict[str, tuple[Register, bool]] = {
    "open": ("warm", False),
    "curious": ("plain", False),
    "guarded": ("guarded", True),
    "skeptical": ("wry", True),
    "withdrawn": ("guarded", True),
    "hostile": ("blunt", True),
}
"""Stance at the start -> register, and whether the person is on their guard."""
DOMAIN_WORDS: dict[str, tuple[str, ...]] = {
    "career": ("work", "burnout", "shift", "job", "career", "study", "exam"),
    "family": ("family", "grief", "bereave", "parent", "sibling"),
    "intimate": ("dating", "breakup", "relationship", "partner", "divorce"),
    "health": ("health", "illness", "pain", "insomnia"),
    "leisure": ("hobby", "relocation", "loneliness", "late-night"),
}
"""The domain is guessed from the tags; "values" where none of these is in them."""
DECADES = {"teens": 17, "twenties": 25, "thirties": 35, "forties": 45, "fifties": 55, "sixties": 65, "seventies": 75}
UNKNOWN_AGE = 35
LOW = 40
"""Emotion or energy, 0..100, below which feeling runs high or strength is gone."""


def load_people(path: Path, rater: Rater | None = None) -> list[tuple[Scenario, Person]]:
    """Read personas: a file, or all `*.yaml` below a folder.

    Raises:
        RecordError: A file lacks a field.
        ScenarioError: A file is no YAML, or a persona does not make a scenario.
    """
    files = found_files(path, "*.yaml", "personas of the PyPI package moodsona (its folder personas/, CC BY 4.0)")
    people = [person_of(_persona(file)) for file in files]
    unique([person.id for person in people], "personas")
    return [(scenario_of(person, rater), person) for person in people]


def _persona(file: Path) -> Entry:
    return as_entry(read_yaml(file), str(file))


def person_of(entry: Entry) -> Person:
    """Read one persona.

    Raises:
        RecordError: A field is missing or not of its kind, or the persona is not in English.
    """
    if entry.text("language") != "en":
        raise RecordError(f"{entry.where}: 'language' must be en, not {entry.text('language')!r}")
    name, goal = entry.text("display_name", "id"), " ".join(entry.text("hidden_goal").split())
    about = " ".join(entry.text("description").split()) if entry.get("description") else goal
    state, tags = entry.entry("initial_state", "baseline"), entry.texts("tags")
    stance = state.text("stance")
    if stance not in STANCES:
        raise RecordError(f"{state.where}: 'stance' must be one of {', '.join(STANCES)}, not {stance!r}")
    register, defensive = STANCES[stance]
    story = sentences(about)
    return Person(
        where=entry.where,
        id=f"moodsona-{slug(entry.text('id').lower())}"[:60],
        language="en",
        name=name,
        age=_age(about),
        job="not told",
        traits=(*tags[:5], stance),
        speech=about,
        register=register,
        defensive=defensive,
        domain=cast("Domain", most_frequent(" ".join(tags), DOMAIN_WORDS, "values")),
        ranking=_ranking(goal),
        ranked_by="hidden_goal",
        wants=f"{goal} {_rule(entry, 1)}",
        hurts=_rule(entry, -1),
        raised=_raised(state, defensive),
        summary=about,
        trigger=story[0] if story else about,
        opening="",
        story=tuple(story),
        present=(),
        notes=(_credit(entry, name), GUESSED),
    )


def _age(about: str) -> int:
    decade = next((age for word, age in DECADES.items() if word in about.lower()), UNKNOWN_AGE)
    year = re.search(r"\b([1-9]\d)[- ]years?[- ]old\b", about)
    return int(year[1]) if year else decade


def _ranking(goal: str) -> tuple[Axis, ...]:
    counts = {axis: sum(goal.lower().count(word) for word in GOAL_WORDS[axis]) for axis in AXES}
    order: tuple[Axis, ...] = ("A", "C", "P")
    return tuple(sorted(order, key=lambda axis: -counts[axis]))


def _raised(state: Entry, defensive: bool) -> dict[str, str]:
    emotion, energy = state.number("emotion"), state.number("energy")
    raised = {"A.1": f"emotion {emotion:g} of 100 at the start"} if emotion < LOW else {}
    raised |= {"A.2": f"stance {state.text('stance')}"} if defensive else {}
    return raised | ({"P.1": f"energy {energy:g} of 100 at the start"} if energy < LOW else {})


def _rule(entry: Entry, sign: int) -> str:
    """Return what the bot does in the rule that moves the emotion most, up or down; empty where none does."""
    rules = entry.entries("reaction_rules")
    moved = [(rule.number("emotion_delta") * sign, rule.text("when")) for rule in rules if rule.get("emotion_delta")]
    most = max(moved, key=lambda entry: entry[0], default=(0.0, ""))
    return most[1] if most[0] > 0 else ""


def _credit(entry: Entry, name: str) -> str:
    licence = entry.text("license")
    if licence.upper().replace(" ", "-") != "CC-BY-4.0":
        raise RecordError(f"{entry.where}: 'license' must be CC-BY-4.0, not {licence!r}")
    author = entry.text("author")
    return f'"{name}" by {author}, from https://github.com/moodsona/moodsona, licensed under CC BY 4.0.'
