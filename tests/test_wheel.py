"""The package as it is shipped: built from what a fresh clone holds, installed outside the checkout, and played."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = {
    "echo_env": "echo_env",
    "agents": "echo_env/agents",
    "trainers": "echo_env/trainers",
    "configs": "echo_env/configs",
    "sim_profiles": "echo_env/sim_profiles",
}
"""Folder of the checkout -> where it is installed."""
SHIPPED = (".py", ".yaml", ".md", ".j2", ".typed")

pytestmark = pytest.mark.slow
pytest.importorskip("build", reason="the package `build` is not installed")

PLAY = """
import math, sys
from pathlib import Path
import gymnasium as gym
import echo_env
from echo_env.profiles import data_root, scenario_ids

home = Path(sys.prefix)
for module in ("echo_env", "echo_env.cli", "echo_env.agents.rollout", "echo_env.trainers"):
    __import__(module)
    assert Path(sys.modules[module].__file__).is_relative_to(home), sys.modules[module].__file__
assert data_root().is_relative_to(home), data_root()
assert len(scenario_ids("benchmark")) == 30
for name in ("echo/Companion-v0", "echo/Strategy-v0"):
    for split in ("benchmark", "train", "dev"):
        env = gym.make(name, split=split)
        env.reset(seed=1)
        for turn in range(1, 46):
            _, reward, terminated, truncated, info = env.step(env.action_space.sample())
            assert math.isfinite(reward)
            if terminated or truncated or split != "benchmark":
                break
    print(name, turn)
"""


class Shipped(NamedTuple):
    """A wheel, and a virtual environment that holds it."""

    wheel: Path
    venv: Path

    def call(self, *command: str) -> str:
        """Run a command of the virtual environment, away from the checkout, and return what it printed."""
        unset = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}
        env = {k: v for k, v in os.environ.items() if k not in unset} | {"PYTHONNOUSERSITE": "1", "PYTHONSAFEPATH": "1"}
        program = str(self.venv / "bin" / command[0])
        done = subprocess.run(
            [program, *command[1:]], cwd=self.venv, env=env, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


def tracked() -> list[str]:
    """Files that a clone of the checkout would hold, new ones included; every file where there is no git."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        return [str(f.relative_to(ROOT)) for f in ROOT.rglob("*") if f.is_file() and "__pycache__" not in f.parts]
    return [f for f in done.stdout.splitlines() if (ROOT / f).is_file()]


def build(source: Path, out: Path) -> Path:
    """Build a wheel, with this environment's setuptools where it is new enough."""
    command = [sys.executable, "-m", "build", "--wheel", "--outdir", str(out), str(source)]
    try:
        recent = int(version("setuptools").partition(".")[0]) >= 77
    except PackageNotFoundError:
        recent = False
    done = subprocess.run(
        [*command, "--no-isolation"] if recent else command, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-2000:]
    return next(out.glob("*.whl"))


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Shipped:
    """Build from the files of a clone; no empty folder, no ignored file, no stale build folder helps."""
    base = tmp_path_factory.mktemp("wheel")
    for name in tracked():
        target = base / "clone" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, target)
    wheel = build(base / "clone", base / "dist")
    shutil.rmtree(base / "clone")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(base / "venv")], check=True, timeout=60)
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(base / "venv" / "bin" / "python"),
        "--disable-pip-version-check",
    ]
    subprocess.run(
        [*pip, "install", "--quiet", "--no-deps", "--no-index", str(wheel)],
        check=True, capture_output=True, timeout=120,
    )  # fmt: skip
    # The dependencies come from this environment. A folder named in a .pth file is searched last, and the .pth files in
    # it, that of an editable install of the checkout for example, are not obeyed.
    site = next((base / "venv" / "lib").glob("python*/site-packages"))
    paths = sysconfig.get_paths()
    (site / "dependencies.pth").write_text("\n".join(sorted({paths["purelib"], paths["platlib"]})) + "\n")
    return Shipped(wheel, base / "venv")


def test_the_wheel_holds_all_of_the_package_and_nothing_else(shipped: Shipped) -> None:
    with zipfile.ZipFile(shipped.wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
        metadata = next(archive.read(n).decode() for n in archive.namelist() if n.endswith("METADATA"))
        scripts = next(archive.read(n).decode() for n in archive.namelist() if n.endswith("entry_points.txt"))
    expected = set()
    for name in tracked():
        folder, _, rest = name.partition("/")
        if folder in FOLDERS and Path(name).suffix in SHIPPED:
            expected.add(f"{FOLDERS[folder]}/{rest}")
    assert sorted(expected - held) == [], "missing from the wheel"
    assert sorted(held - expected) == [], "not of the package"
    for place in ("sim_profiles/benchmark", "sim_profiles/rubrics", "sim_profiles/lexicons", "sim_profiles/voices"):
        assert any(name.startswith(f"echo_env/{place}/") for name in held), place
    assert sum(name.startswith("echo_env/sim_profiles/benchmark/") for name in held) == 30
    assert any(name.startswith("echo_env/sim_profiles/bank/") for name in held)
    assert any(name.startswith("echo_env/agents/prompts/") for name in held)
    assert "echo_env/report.html.j2" in held
    assert "echo_env/py.typed" in held
    assert "echo-env = echo_env.cli:main" in scripts
    extras = {line.split(": ")[1] for line in metadata.splitlines() if line.startswith("Provides-Extra: ")}
    assert {"train", "llm", "rllib", "openrlhf", "dev"} <= extras
    assert "Requires-Python: >=3.11" in metadata
    assert "License-Expression: Apache-2.0" in metadata


def test_episodes_are_played_outside_the_checkout(shipped: Shipped) -> None:
    out = shipped.call("python", "-P", "-c", PLAY).splitlines()
    assert [line.split()[0] for line in out] == ["echo/Companion-v0", "echo/Strategy-v0"]


def test_the_script_works_outside_the_checkout(shipped: Shipped, tmp_path: Path) -> None:
    assert len(shipped.call("echo-env", "list", "scenarios").splitlines()) == 30
    told = shipped.call("echo-env", "run", "--policy", "skilled", "--limit", "1", "--out", str(tmp_path / "runs"))
    assert told.startswith("skilled: 1 of 1")
    header = (tmp_path / "runs" / "skilled" / "run.json").read_text()
    assert '"git_commit": ""' in header, "a wheel has no commit"
    page = tmp_path / "report.html"
    models = shipped.call("echo-env", "report", str(tmp_path / "runs"), "--html", str(page), "--format", "csv")
    assert models.splitlines()[1].startswith("skilled,")
    assert "<html" in page.read_text(encoding="utf-8")
