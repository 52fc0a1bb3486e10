"""Reading YAML that people write, and saying what is wrong with it: file, field, and what would be right."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from echo_env.errors import ScenarioError


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """The safe loader, which in addition refuses a key that stands twice in one mapping."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"'{key.value}' stands twice", key.start_mark)
            seen.add(key.value)
        found: dict[Any, Any] = super().construct_mapping(node, deep)
        return found


def read_yaml(path: Path) -> Any:
    """Read one YAML file.

    Raises:
        ScenarioError: The file is missing, unreadable or not YAML; the message names file, line and column.
    """
    try:
        with path.open(encoding="utf-8") as f:
            return yaml.load(f, Loader=_Loader)
    except FileNotFoundError:
        raise ScenarioError(f"{path}: there is no such file") from None
    except (OSError, UnicodeDecodeError) as e:
        raise ScenarioError(f"{path}: cannot be read: {e}") from None
    except yaml.YAMLError as e:
        mark = getattr(e, "problem_mark", None)
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise ScenarioError(
            f"{path}: {where}not valid YAML: {getattr(e, 'problem', None) or e}",
            'quote a sentence that holds ": " or starts with a sign; for example  say: "He said: no."',
        ) from None


EXAMPLES: dict[str, str] = {
    "id": "id: career-01",
    "language": "language: en",
    "split": "split: benchmark",
    "domain": "domain: family",
    "threshold": "threshold: high",
    "name": "name: Ines Carvalho",
    "age": "age: 34",
    "job": "job: pastry chef",
    "traits": "traits: [exact, quick to joke]",
    "register": "register: wry",
    "speech": "speech: Short sentences; jokes when it gets close.",
    "defensiveness": "defensiveness: high",
    "persona": "persona: {name: ..., age: 34, job: ..., traits: [..., ...], register: wry, speech: ..., ...}",
    "needs": "needs: [{axis: A, wants: ..., hurts: ..., asks: [..., ...]}, {axis: C, ...}, {axis: P, ...}]",
    "axis": "axis: A",
    "wants": "wants: To hear that it was a rotten thing to do.",
    "hurts": "hurts: Being told that there will be other jobs.",
    "asks": 'asks: ["Don\'t fix it. Just sit here a minute.", "..."]',
    "iedr": 'iedr: {C.1: {level: 1, reason: "..."}, ...}  with C.1 to C.3, A.1 to A.3, P.1 to P.3',
    "level": "level: 2",
    "reason": 'reason: "He has told nobody yet."',
    "life": "life: {childhood: {event: ..., lines: [...]}, teens: ..., young_adult: ..., now: ...}",
    "situation": "situation: {summary: ..., trigger: ...}",
    "summary": "summary: Her father sold the bakery without telling her.",
    "trigger": "trigger: A text on Friday said that the ovens were gone.",
    "opening": 'opening: {say: "My dad sold the ovens.", about: the ovens he sold, kind: fact, feeling: betrayed}',
    "beats": "beats: [{event: ..., lines: [...]}, ...]  with four entries",
    "turning_point": "turning_point: {event: ..., lines: [...]}",
    "ending": 'ending: {event: ..., says: ["...", "..."]}',
    "event": "event: The buyer asked for the recipes too.",
    "lines": 'lines: [{say: "...", about: the ovens he sold, kind: fact}]',
    "say": 'say: "My dad sold the ovens on Tuesday."',
    "says": 'says: ["I think I can call him now.", "..."]',
    "about": "about: the ovens he sold",
    "kind": "kind: fact",
    "feeling": "feeling: betrayed",
}
"""A valid line for each field of a scenario."""


def explain(path: Path, error: ValidationError) -> str:
    """Say what is wrong with a scenario, a line for each fault: file, field, and a valid example."""
    faults = error.errors()
    places = [fault["loc"] for fault in faults]
    # a faulty entry of a list is also reported as "too short" for the list: one fault, one message
    kept = [
        fault
        for fault in faults
        if not any(fault["loc"] == place[: len(fault["loc"])] and fault["loc"] != place for place in places)
    ]
    return "\n".join(_explain_one(path, fault) for fault in kept)


def _explain_one(path: Path, fault: Any) -> str:
    loc = [str(part) for part in fault["loc"] if part != "[key]"]
    message = str(fault["msg"]).removeprefix("Value error, ")
    if not loc:  # a rule that spans fields: it names the field itself
        return f"{path}: {message}"
    where, field = ".".join(loc), next((part for part in reversed(loc) if not part.isdigit()), "")
    if fault["type"] == "extra_forbidden":
        near = difflib.get_close_matches(field, EXAMPLES, n=1)
        remedy = f"did you mean '{near[0]}'? for example  {EXAMPLES[near[0]]}" if near else "remove it (for example: #)"
        return f"{path}: {where}: there is no such field; {remedy}"
    if "for example" in message:
        return f"{path}: {where}: {message}"
    known = next((part for part in reversed(loc) if part in EXAMPLES), "")
    return f"{path}: {where}: {message}" + (f"; for example  {EXAMPLES[known]}" if known else "")
