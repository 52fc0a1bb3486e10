"""Seconds per update with rollouts that run ahead of training (`engine.ahead=1`), against one after the other.

    OMP_WAIT_POLICY=passive python benchmarks/ahead.py [--updates 8] [--repeats 3] [--model FOLDER]

The same conversations in the embedded world, the same tiny model with random weights, one torch thread each: the gain
needs two free cores. A run's first two updates are left out, the first of which loads the world, and its last, which
has nothing beside it. Every repeat times both, side by side, since a shared machine is not equally fast from one minute
to the next; printed are the medians and the median of the ratios.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console

from echo_env.agents.loading import offline
from echo_env.profiles import get_scenario, scenario_ids
from echo_env.trainers.display import Display
from echo_env.trainers.job import make_job
from echo_env.trainers.local import train
from echo_env.trainers.scratch import Shape, make

FIRST = 2
"""Updates of a run that are not counted, beside the last."""


def small(folder: Path) -> Path:
    """Make a small model with random weights, and a tokenizer out of what people bring."""
    texts = [line.say for name in scenario_ids("train")[:50] for _, line in get_scenario(name).items()]
    tokenizer, model = make(Shape(vocab=1024, hidden=192, layers=4, heads=6, feedforward=512), texts, seed=0)
    with offline():  # without its progress bars
        tokenizer.save_pretrained(folder)
        model.save_pretrained(folder)
    return folder


def seconds(model: Path, out: Path, ahead: int, args: argparse.Namespace) -> float:
    """Return the median seconds of an update."""
    settings: dict[str, Any] = {
        "name": "ahead", "out": out, "updates": args.updates, "groups": args.groups,
        "model": {"path": str(model), "system": ""}, "mode": {"reply_tokens": args.reply},
        "world": {"max_turns": args.turns}, "algo": {"name": "dapo", "group": args.group, "score": "distance"},
        "monitor": {"samples": 0, "detectors_every": 0}, "checkpoints": {"every": 0},
        "engine": {"threads": 1, "ahead": ahead},
    }  # fmt: skip
    train(make_job(settings), Display("ahead", args.updates, Console(quiet=True)))
    figures = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return median(line["seconds"] for line in figures[FIRST:-1])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=8, help=f"of each run, at least {FIRST + 2}")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--groups", type=int, default=4)
    parser.add_argument("--group", type=int, default=4)
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--reply", type=int, default=32)
    parser.add_argument("--model", type=Path, help="a folder; else a small model with random weights")
    args = parser.parse_args()
    rows: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        model = args.model or small(Path(folder) / "model")
        for k in range(args.repeats):
            plain, ahead = (seconds(model, Path(folder) / f"{k}-{way}", way, args) for way in (0, 1))
            rows.append((plain, ahead))
    print(f"ahead=0 {median(a for a, _ in rows):6.2f} s per update")
    print(f"ahead=1 {median(b for _, b in rows):6.2f} s per update")
    print(f"one after the other / ahead: {median(a / b for a, b in rows):.2f} x")


if __name__ == "__main__":
    main()
