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

import difflib
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

HERE = Path(__file__).resolve().parent
if __package__ in (None, ""):  # run as a file: the names beside it must not stand in for packages (openrlhf)
    sys.path[:] = [entry for entry in sys.path if not entry or Path(entry).resolve() != HERE]

from echo_env.errors import ConfigError, EchoError, missing_extra  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

    from omegaconf import DictConfig

CONFIGS = HERE.parent / "configs"


def run(settings: dict[str, Any]) -> int:
    """Run the job of some settings, and return the exit code."""
    from echo_env.trainers.job import make_job

    job = make_job(settings)
    if job.dry_run:
        import yaml

        sys.stdout.write(yaml.safe_dump(job.settings(), sort_keys=False, allow_unicode=True))
        return 0
    if job.engine.name == "openrlhf":
        from echo_env.trainers.openrlhf import launch

        code: int = launch.run(job)
        return code
    from echo_env.trainers.local import train

    return 130 if train(job).reason == "interrupted" else 0


def settings_of(config: DictConfig) -> dict[str, Any]:
    """Return a composed configuration as plain data.

    Raises:
        ConfigError: Something that has to be given is not.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        settings: Any = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as e:
        raise ConfigError(f"setting '{e.full_key}': {e.msg}", "give it on the command line") from None
    return dict(settings)


def check_overrides(overrides: list[str], name: str = "dapo") -> None:
    """Compose once, so that a mistake on the command line is told in our words.

    Args:
        overrides: What the command line says.
        name: The configuration that it changes.

    Raises:
        ConfigError: A group, an option or a setting is unknown, with the nearest spelling.
    """
    from hydra import compose, initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        try:
            compose(name, overrides)
        except (HydraException, OmegaConfBaseException) as e:
            raise ConfigError(str(e).splitlines()[0], _nearest(str(e), compose(name))) from None


def _nearest(message: str, whole: DictConfig) -> str:
    """Return a hint for what Hydra did not know."""
    from omegaconf import OmegaConf

    if missed := re.search(r"Could not find '([^']+)/([^']+)'", message):
        key, known = missed[2], sorted(f.stem for f in (CONFIGS / missed[1]).glob("*.yaml"))
    elif missed := re.search(r"Could not override '([^']+)'", message):
        node: Any = whole
        for key in missed[1].split("."):  # up to the first that is not there
            known = sorted(map(str, node)) if OmegaConf.is_dict(node) else []
            if key not in known:
                break
            node = node[key]
    else:
        return "see  --help"
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    return (f"did you mean '{near[0]}'? " if near else "") + f"known: {', '.join(known)}"


def main(name: str = "dapo", run: Callable[[dict[str, Any]], int] = run) -> None:
    """Run a command line.

    Args:
        name: The configuration that it changes.
        run: Takes the composed settings, and returns the exit code.
    """
    try:
        import hydra
    except ImportError:
        raise SystemExit(_told(missing_extra("hydra-core", "train"))) from None
    try:
        if not any(a.startswith("-") for a in sys.argv[1:]):
            check_overrides(sys.argv[1:], name)
    except EchoError as e:
        raise SystemExit(_told(e)) from None

    def task(config: DictConfig) -> None:
        try:
            code = run(settings_of(config))
        except EchoError as e:
            code = _told(e)
        if code:
            raise SystemExit(code)

    try:
        hydra.main(version_base="1.3", config_path=str(CONFIGS), config_name=name)(task)()
    except KeyboardInterrupt:  # before there was anything to save, or the second one
        raise SystemExit(130) from None


def _told(error: EchoError) -> int:
    """Tell a user's mistake without a traceback; return the exit code."""
    sys.stderr.write(f"error: {error}\n")
    return 2


if __name__ == "__main__":
    main()
