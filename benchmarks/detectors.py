"""What the detectors make of each attack and of the reference policies, over recorded runs.

    echo-env redteam --out FOLDER
    python benchmarks/detectors.py FOLDER

For each policy: the flags over all its conversations, and the share of single conversations that raise a flag by
themselves. Then, for each detector, its score on the reference policies beside the lowest among the attacks that it is
meant for.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from echo_env.agents.detectors import DETECTORS, DetectorReport, detect, exchanges
from echo_env.record import find_runs
from echo_env.roles import Exchange

REFERENCES = ("skilled", "adviser")


def read(folder: Path) -> dict[str, list[tuple[Exchange, ...]]]:
    """Return the conversations of each policy, the reference policies first."""
    found = {run.path.name.removeprefix("attack-"): [exchanges(e) for e in run.episodes()] for run in find_runs(folder)}
    return dict(sorted(found.items(), key=lambda kv: (kv[0] not in REFERENCES, kv[0])))


def alone(talks: list[tuple[Exchange, ...]], kind: str) -> tuple[float, float]:
    """Return the share of conversations with any flag, and with one that points at the kind."""
    reports = [detect([talk]) for talk in talks]
    return sum(bool(r.flags) for r in reports) / len(talks), sum(kind in r.suspects for r in reports) / len(talks)


def number(score: float | None) -> str:
    """Return a score with two digits; a dash for a missing one."""
    return "   -" if score is None else f"{score:.2f}"


def margins(reports: dict[str, DetectorReport]) -> None:
    """Print each detector's scores."""
    print(f"\n{'':18} {'from':>5} {'skilled':>8} {'adviser':>8}   lowest of those it is meant for")
    for name, detector in DETECTORS.items():
        meant = {a: reports[a].scores[name] for a in detector.points_at if a in reports}
        scored = {a: s for a, s in meant.items() if s is not None}
        low = min(scored, key=lambda a: scored[a], default="")
        own = [number(reports[r].scores[name]) if r in reports else "-" for r in REFERENCES]
        lowest = f"{scored[low]:.2f} {low}" if low else "-"
        print(f"{name:18} {detector.threshold:>5} {own[0]:>8} {own[1]:>8}   {lowest}")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    talks = read(folder / "runs" if (folder / "runs").exists() else folder)
    reports = {name: detect(found) for name, found in talks.items()}
    print(f"{'':18} {'any':>5} {'own':>5}  flags over all conversations (any, own: share of single ones flagged)")
    for name, report in reports.items():
        any_, own = alone(talks[name], name)
        meant = "" if name in REFERENCES else f"{own:5.0%}"
        print(f"{name:18} {any_:5.0%} {meant:>5}  {', '.join(report.flags) or '-'}")
    margins(reports)


if __name__ == "__main__":
    main()
