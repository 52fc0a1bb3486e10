"""The command line of every entry point of training: Hydra composes, mistakes are told, Ctrl-C is an exit code.

An entry point is a file that calls `main` with the name of its configuration and with what to run. A user's mistake
exits with 2 and no traceback, Ctrl-C with 130.
"""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from echo_env.errors import ConfigError, EchoError, missing_extra

if TYPE_CHECKING:
    from omegaconf import DictConfig
    from pydantic import BaseModel

HERE = Path(__file__).resolve().parent
CONFIGS = HERE.parent / "configs"
# An entry point that is run as a file puts its folder first, and the names in it must not stand in for packages
# (openrlhf).
sys.path[:] = [entry for entry in sys.path if not entry or Path(entry).resolve() != HERE]


def main(name: str, run: Callable[[dict[str, Any]], int], extra: str = "train") -> None:
    """Run a command line.

    Args:
        name: The configuration that it changes.
        run: Takes the composed settings, and returns the exit code.
        extra: What to install where something is missing.
    """
    try:
        import hydra
    except ImportError:
        raise SystemExit(_told(missing_extra("hydra-core", extra))) from None
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


def print_job(job: BaseModel) -> int:
    """Print a resolved job; the exit code."""
    import yaml

    settings = job.model_dump(mode="json")
    sys.stdout.write(yaml.safe_dump(settings, sort_keys=False, allow_unicode=True))
    return 0


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


def check_overrides(overrides: list[str], name: str) -> None:
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


def _told(error: EchoError) -> int:
    """Tell a user's mistake without a traceback; return the exit code."""
    sys.stderr.write(f"error: {error}\n")
    return 2
