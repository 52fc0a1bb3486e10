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
from pathlib import Path
from typing import TYPE_CHECKING, Any

HERE = Path(__file__).resolve().parent
if __package__ in (None, ""):  # run as a file: the names beside it must not stand in for packages
    sys.path[:] = [entry for entry in sys.path if not entry or Path(entry).resolve() != HERE]

from echo_env.errors import EchoError, missing_extra  # noqa: E402

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from echo_env.trainers.strategyppo import Results

CONFIGS = HERE.parent / "configs"


def run(config: DictConfig) -> int:
    """Run the job of a composed configuration, and return the exit code."""
    import yaml
    from omegaconf import OmegaConf

    from echo_env.trainers.job import checked
    from echo_env.trainers.strategyppo import StrategyJob, train

    settings: Any = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    job = checked(StrategyJob, settings)
    if job.dry_run:
        sys.stdout.write(yaml.safe_dump(job.settings(), sort_keys=False, allow_unicode=True))
        return 0
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


def main() -> None:
    """Run the command line."""
    try:
        import hydra
    except ImportError:
        raise SystemExit(_told(missing_extra("hydra-core", "rllib"))) from None

    @hydra.main(version_base="1.3", config_path=str(CONFIGS), config_name="strategy")
    def task(config: DictConfig) -> None:
        try:
            code = run(config)
        except EchoError as e:
            code = _told(e)
        except KeyboardInterrupt:  # while measuring: what was trained is saved
            code = 130
        if code:
            raise SystemExit(code)

    task()


def _told(error: EchoError) -> int:
    """Tell a user's mistake without a traceback; return the exit code."""
    sys.stderr.write(f"error: {error}\n")
    return 2


if __name__ == "__main__":
    main()
