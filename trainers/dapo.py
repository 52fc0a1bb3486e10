"""Train a policy by DAPO or another algorithm of its kind.

    python trainers/dapo.py                                       SmolLM2-135M, multi-turn, in the embedded world
    python trainers/dapo.py algo=grpo mode=pseudo updates=50      groups and settings are changed like this
    python trainers/dapo.py model=folder model.path=FOLDER engine.device=cuda logger=wandb
    python trainers/dapo.py name=dapo resume=true                 go on with runs/dapo
    python trainers/dapo.py dry_run=true                          print the resolved job
    python trainers/dapo.py --help                                all groups and settings

Ctrl-C saves a checkpoint and exits with 130; a user's mistake exits with 2.
"""

from __future__ import annotations

from typing import Any

from echo_env.trainers.commandline import main, print_job


def run(settings: dict[str, Any]) -> int:
    """Run the job of some settings, and return the exit code."""
    from echo_env.trainers.job import make_job

    job = make_job(settings)
    if job.dry_run:
        return print_job(job)
    if job.engine.name == "openrlhf":
        from echo_env.trainers.openrlhf import launch

        code: int = launch.run(job)
        return code
    from echo_env.trainers.local import train

    return 130 if train(job).reason == "interrupted" else 0


if __name__ == "__main__":
    main("dapo", run)
