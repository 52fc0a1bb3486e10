"""Train a strategy policy by RLlib's PPO, and measure it against constant strategies and the best fixed sequence.

    python trainers/strategy.py                                   ten minutes, two cores
    python trainers/strategy.py minutes=3 seed=1 out=runs/s1      settings are changed like this
    python trainers/strategy.py resume=true minutes=20            go on with runs/strategy
    python trainers/strategy.py dry_run=true                      print the resolved job
    echo-env run --policy strategy:runs/strategy/policy.npz --out runs/s1-played

Ctrl-C finishes the update, saves a checkpoint and exits with 130; a user's mistake exits with 2.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from echo_env.trainers.commandline import main, print_job

if TYPE_CHECKING:
    from echo_env.trainers.strategyppo import Results


def run(settings: dict[str, Any]) -> int:
    """Run the job of some settings, and return the exit code."""
    from echo_env.trainers.job import checked
    from echo_env.trainers.strategyppo import StrategyJob, train

    job = checked(StrategyJob, settings)
    if job.dry_run:
        return print_job(job)
    results = train(job, lambda line: print(line, file=sys.stderr, flush=True))  # noqa: T201  an entry point's progress
    if results is None:
        return 130
    _show(results)
    return 0


def _show(results: Results) -> None:
    """Print the table of a run."""
    from rich.console import Console
    from rich.table import Table

    table = Table("policy", "strict success", "reward", "turns")
    for row in results.rows:
        share = f"{row.successes} of {row.conversations}  {row.success:.1%}"
        table.add_row(row.name, share, f"{row.reward:+.2f}", f"{row.turns:.1f}")
    Console().print(table)


if __name__ == "__main__":
    main("strategy", run, "rllib")
