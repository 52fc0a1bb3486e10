"""Imported conversations as a run folder, such as `echo-env run` writes, so that all that reads runs reads them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from echo_env.errors import RecordError
from echo_env.importers.people import write_scenario
from echo_env.profiles import Scenario
from echo_env.record import EpisodeWriter, RunFolder, new_header
from echo_env.scorers import get_scorer
from echo_env.types import Episode, EpisodeHeader, Vector
from echo_env.version import VERSION

UNKNOWN = "unknown"
"""Stands for a role of which a source says nothing."""


@dataclass(frozen=True, slots=True)
class ImportedRun:
    """The conversations of one model."""

    name: str
    """Name of the run's folder."""
    source: str
    episodes: tuple[Episode, ...]
    people: tuple[tuple[Scenario, tuple[str, ...]], ...] = ()
    """Scenarios that come with the run, each with its notes; empty where the source's people are not at hand."""


def bare_header(scenario: str, digest: str, p0: Vector, *, domain: str = "", number: int = 0) -> EpisodeHeader:
    """Return the header of an imported Chinese conversation; what a source knows more of, it fills in.

    Args:
        scenario: Id of the person.
        digest: Digest of what is known of the person.
        p0: The initial deficit, in points.
        domain: Empty where it is not known.
        number: How many conversations with the same person came before it in this run.
    """
    return EpisodeHeader(
        episode_id=f"{scenario}.{number}",
        scenario=scenario,
        scenario_hash=digest,
        split="imported",
        language="zh",
        domain=domain,
        p0=p0,
        policy=UNKNOWN,
        judge="none",
        rubric="none",
        scorer=get_scorer().id,
        recipe="epm-1",
        actor=UNKNOWN,
        director=UNKNOWN,
        seed=0,
        max_turns=get_scorer().max_turns,
        echo_env=VERSION,
    )


def write_run(run: ImportedRun, out: Path, *, overwrite: bool = False) -> RunFolder:
    """Write a run to `OUT/NAME/`, its people to `scenarios/` in it.

    Raises:
        RecordError: A run is there already, or the folder cannot be written.
    """
    folder = RunFolder(out / run.name)
    config: dict[str, Any] = {"imported": run.source}
    digests = {e.header.scenario: e.header.scenario_hash for e in run.episodes}
    if folder.exists and not overwrite:
        raise RecordError(f"{folder.path} holds a run already", "give --overwrite to lose it, or another --out")
    folder.create(new_header(config, digests), overwrite=overwrite)
    for scenario, notes in run.people:
        write_scenario(scenario, folder.scenarios, notes)
    for episode in run.episodes:
        with EpisodeWriter(folder.episode_path(episode.header.episode_id), episode.header) as writer:
            for turn in episode.turns:
                writer.append(turn)
            if episode.outcome is not None:
                writer.finish(episode.outcome)
    return folder
