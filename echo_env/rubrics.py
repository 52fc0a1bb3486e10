"""Reading rubric files: one may take its structure from another and bring its own texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from echo_env.errors import ScenarioError
from echo_env.profiles import data_root
from echo_env.yamlfiles import read_yaml

TEXTS = ("for", "against", "cues")
"""What an anchor says in words of its own: never taken over from another rubric."""


def rubric_path(name: str) -> Path:
    """Return where a rubric's file lies, whether it is there or not."""
    return data_root() / "rubrics" / f"{name}.yaml"


def read_rubric(name: str) -> dict[str, Any]:
    """Read a rubric. One that says `extends: other` has the other's anchors, with texts of its own or none.

    Raises:
        ScenarioError: There is no such file, or it is not YAML, or it gives no examples of an act of the rubric that it
            extends, or says something of an anchor that is for that one to say.
    """
    path = rubric_path(name)
    data: dict[str, Any] = read_yaml(path)
    if not isinstance(data, dict) or "extends" not in data:
        return data
    extended = data.pop("extends")
    base = read_rubric(extended)
    texts = {anchor.get("id"): anchor for anchor in data.get("anchors", [])}
    known = {anchor["id"]: anchor.get("found_by") for anchor in base["anchors"]}
    wrong = sorted({name for name, how in known.items() if how == "act"} - texts.keys())
    if wrong:
        raise ScenarioError(f"{path}: has no examples of {', '.join(wrong)}", f"every act of {extended} needs some")
    wrong = sorted(map(str, texts.keys() - known.keys()))
    if wrong:
        raise ScenarioError(f"{path}: {', '.join(wrong)} is no anchor of {extended}", "anchors are taken from there")
    more = sorted({key for anchor in texts.values() for key in anchor} - {"id", *TEXTS})
    if more:
        raise ScenarioError(f"{path}: {more[0]} comes from {extended}", f"give an anchor no more than id, {TEXTS}")
    kept = [{key: value for key, value in anchor.items() if key not in TEXTS} for anchor in base["anchors"]]
    return {
        "language": base["language"],
        **data,
        "anchors": [{"for": [], **anchor, **texts.get(anchor["id"], {})} for anchor in kept],
    }
