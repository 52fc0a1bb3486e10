"""The generator's bank: situation modules with holes, life chapters, need texts, people, reasons.

Hand-written data in `sim_profiles/bank/`; `docs/scenarios.md` says how to write more.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated, Literal, cast, get_args

from pydantic import Field, ValidationError, model_validator

from echo_env.errors import ScenarioError
from echo_env.profiles import (
    Chapter,
    Domain,
    Ending,
    Line,
    Register,
    Stage,
    Text,
    data_root,
)
from echo_env.types import Axis, Record
from echo_env.yamlfiles import read_yaml

DOMAINS: tuple[Domain, ...] = get_args(Domain)

Tag = Literal[
    "mother",
    "father",
    "sibling",
    "grandparent",
    "partner",
    "child",
    "friend",
    "work",
    "money",
    "faith",
    "illness",
    "home",
    "death",
]
# fmt: on
"""What a module or a life chapter makes claims about."""


class Module(Record):
    """A situation with named holes: `{slot}`, `{slot.form}`, `{Slot}` for a capital letter, `{name}` for the person."""

    id: Annotated[str, Field(pattern=r"^[a-z]+(-[a-z]+)+$")]
    held_out: bool = False
    """Dev draws it, train never does."""
    ages: tuple[int, int]
    registers: Annotated[tuple[Register, ...], Field(min_length=1)]
    """Ways of talking that the lines fit."""
    tags: tuple[Tag, ...]
    """What the story makes claims about: a life chapter with a tag in common is not drawn beside it."""
    topic: Text
    """Noun phrase for the trouble, for the reasons of the ratings."""
    stakes: Text
    """Noun phrase for what the person holds dear in it."""
    circle: Text
    """Noun phrase for who is tangled up in it."""
    jobs: Annotated[tuple[Text, ...], Field(min_length=6)]
    slots: Annotated[dict[str, tuple[str | dict[str, str], ...]], Field(min_length=4, max_length=6)]
    """Alternatives by slot: a string, or a mapping with `text` and further forms of the same thing."""
    summary: Text
    trigger: Text
    opening: tuple[Line, Line, Line]
    beats: Annotated[tuple[Chapter, ...], Field(min_length=4, max_length=4)]
    turning_point: Chapter
    ending: Ending

    @property
    def domain(self) -> Domain:
        """The first word of the id."""
        return cast(Domain, self.id.partition("-")[0])

    @model_validator(mode="after")
    def _slots_with_text(self) -> Module:
        if self.domain not in DOMAINS:
            raise ValueError(f"the id must start with a domain, {', '.join(DOMAINS)}; got '{self.id}'")
        for slot, alternatives in self.slots.items():
            if len(alternatives) < 4:
                raise ValueError(f"slot '{slot}' has {len(alternatives)} alternatives, at least 4 expected")
            if any(isinstance(a, dict) and "text" not in a for a in alternatives):
                raise ValueError(f"slot '{slot}': an alternative with forms needs 'text'")
        return self

    def fillings(self) -> int:
        """How many different choices of alternatives there are."""
        return math.prod(len(alternatives) for alternatives in self.slots.values())

    def filling(self, number: int) -> dict[str, str]:
        """Return what each hole reads in filling `number` of `fillings()`."""
        forms: dict[str, str] = {}
        for slot, alternatives in self.slots.items():
            number, digit = divmod(number, len(alternatives))
            chosen = alternatives[digit]
            named = {"text": chosen} if isinstance(chosen, str) else chosen
            forms[slot] = named["text"]
            forms.update({f"{slot}.{form}": text for form, text in named.items()})
        return forms


class LifeChapter(Chapter):
    """A chapter of a life before the story."""

    tags: tuple[Tag, ...] = ()
    ages: tuple[int, int] = (16, 99)
    """Ages of the person now that the chapter fits."""


class NeedText(Record):
    """One variant of what an axis may mean for a person."""

    wants: Text
    hurts: Text
    asks: Annotated[tuple[Text, ...], Field(min_length=3, max_length=3)]


class People(Record):
    """Who the persons can be."""

    names: tuple[Text, ...]
    """First name first."""
    traits: tuple[tuple[Text, ...], ...]
    """Groups of traits that exclude one another; a person has at most one of each."""
    speech: dict[Register, tuple[Text, ...]]


class Bank(Record):
    """The whole hand-written bank."""

    modules: tuple[Module, ...]
    life: dict[Stage, tuple[LifeChapter, ...]]
    needs: dict[Axis, tuple[NeedText, ...]]
    people: People
    reasons: dict[str, tuple[tuple[Text, ...], tuple[Text, ...], tuple[Text, ...], tuple[Text, ...]]]
    """Sentences by rated item and level 0..3."""

    @model_validator(mode="after")
    def _whole(self) -> Bank:
        if len({m.id for m in self.modules}) < len(self.modules):
            raise ValueError("two modules have the same id")
        for domain in DOMAINS:
            if not self.shared(domain) or not self.held_out(domain):
                raise ValueError(f"domain '{domain}' needs modules of both kinds: held_out: true and held_out: false")
        return self

    def shared(self, domain: Domain) -> tuple[Module, ...]:
        """The modules of a domain that both splits use."""
        return tuple(m for m in self.modules if m.domain == domain and not m.held_out)

    def held_out(self, domain: Domain) -> tuple[Module, ...]:
        """The modules of a domain that only dev uses."""
        return tuple(m for m in self.modules if m.domain == domain and m.held_out)


@lru_cache(maxsize=1)
def load_bank() -> Bank:
    """Read and check the whole bank, once a process.

    Raises:
        ScenarioError: A file is missing, is not YAML or does not follow the schema.
    """
    folder = data_root() / "bank"
    raw = {part: read_yaml(folder / f"{part}.yaml") for part in ("life", "needs", "people", "reasons")}
    modules = [m for domain in DOMAINS for m in read_yaml(folder / f"situations-{domain}.yaml")]
    try:
        return Bank.model_validate({"modules": modules, **raw})
    except ValidationError as error:
        raise ScenarioError(
            f"{folder} does not follow the schema of a bank: {error}", "see Bank in generator.py"
        ) from None


HOLE = re.compile(r"\{([A-Za-z_]+(?:\.[A-Za-z_]+)?)\}")
"""A slot in a text of the bank."""


def fill(text: str, forms: Mapping[str, str]) -> str:
    """Fill the holes of a text; a hole that starts with a capital letter gets a capital letter."""

    def read(hole: re.Match[str]) -> str:
        key = hole[1]
        if key in forms:
            return forms[key]
        lower = key[0].lower() + key[1:]
        if lower not in forms:
            raise ScenarioError(f"no slot '{key}' for {text!r}", f"slots: {', '.join(sorted(forms))}")
        return forms[lower][:1].upper() + forms[lower][1:]

    return HOLE.sub(read, text)


def filled(raw: object, forms: Mapping[str, str]) -> object:
    """Fill every text of a nested structure."""
    if isinstance(raw, str):
        return fill(raw, forms)
    if isinstance(raw, dict):
        return {key: filled(value, forms) for key, value in raw.items()}
    if isinstance(raw, list | tuple):
        return [filled(value, forms) for value in raw]
    return raw


# --- the bank's files
