"""The layers of the package, held by reading its source: who may import whom, and what an import may cost."""

from __future__ import annotations

import ast
import re
import resource
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from statistics import median
from typing import NamedTuple

import pytest

from echo_env import registry
from echo_env.errors import ConfigError, MissingExtra

ROOT = Path(__file__).resolve().parents[1]
LAYERS = {"echo_env": "echo_env", "agents": "echo_env.agents", "trainers": "echo_env.trainers"}
"""Folder -> the name it is installed under. Imports go from the right to the left, never back."""

HEAVY = {"torch", "transformers", "safetensors", "gguf", "peft", "ray", "vllm", "openrlhf", "litellm", "wandb", "hydra"}
AT_TOP = {
    "echo_env": {"numpy", "pydantic", "yaml", "gymnasium"},
    "agents": {"numpy", "pydantic", "yaml", "wordllama", "snowballstemmer"},
    "echo_env.cli": {"typer"},
    "echo_env.tables": {"rich"},
}
"""What a layer, or a single module, may import when it is imported; anything else comes lazily, inside functions."""
PURE = ("epm", "scorers", "rewards", "metrics", "significance", "session", "roles", "types", "spaces", "levels")
"""Modules that must not read a clock or the system. (`levels` reads the file it is given.)"""


class Import(NamedTuple):
    """One import statement."""

    module: str
    lazy: bool
    """Inside a function, or for the type checker only."""
    line: int


class Source(NamedTuple):
    """A module's source."""

    layer: str
    name: str
    """As it is imported."""
    path: Path

    @property
    def tree(self) -> ast.Module:
        return ast.parse(self.path.read_text(encoding="utf-8"))


@cache
def sources() -> tuple[Source, ...]:
    found = []
    for layer, package in LAYERS.items():
        for path in sorted((ROOT / layer).rglob("*.py")):
            parts = path.relative_to(ROOT / layer).with_suffix("").parts
            name = ".".join([package, *(p for p in parts if p != "__init__")])
            found.append(Source(layer, name, path))
    return tuple(found)


each_source = pytest.mark.parametrize("source", sources(), ids=lambda s: s.name)


def imports(tree: ast.AST, lazy: bool = False) -> Iterator[Import]:
    """Every import of a module, relative ones with their dots."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (Import(a.name, lazy, node.lineno) for a in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            yield Import(base, lazy, node.lineno)
            yield from (Import(f"{base}.{a.name}", lazy, node.lineno) for a in node.names)
        else:
            inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            typing = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
            yield from imports(node, lazy or inside or typing)


def within(module: str, *packages: str) -> bool:
    return any(module == p or module.startswith(p + ".") for p in packages)


def test_the_walk_sees_the_tree() -> None:
    names = {s.name for s in sources()}
    assert {"echo_env", "echo_env.session", "echo_env.agents.rollout", "echo_env.agents.embedded.judge"} <= names
    assert len(names) == len(sources()) > 30


@each_source
def test_imports_go_one_way(source: Source) -> None:
    above = {
        "echo_env": ("echo_env.agents", "echo_env.trainers", "agents", "trainers"),
        "agents": ("echo_env.trainers", "trainers", "agents"),
        "trainers": ("agents", "trainers"),  # only under their installed names: PyPI owns `agents`
    }[source.layer]
    wrong = [i for i in imports(source.tree) if within(i.module, *above)]
    if within(source.name, "echo_env.cli"):  # the edges
        wrong = [i for i in wrong if not (i.lazy and within(i.module, "echo_env.agents"))]
    assert not wrong, f"{source.name} imports from a layer above it"
    assert not [i for i in imports(source.tree) if i.module.startswith(".")], "relative import"


@each_source
def test_heavy_packages_are_imported_inside_functions(source: Source) -> None:
    if source.layer == "trainers":
        pytest.skip("torch lives here")
    at_top = {i.module.partition(".")[0]: i.line for i in imports(source.tree) if not i.lazy}
    assert not HEAVY & set(at_top)
    edge = "echo_env.cli" if within(source.name, "echo_env.cli") else source.name
    known = {*AT_TOP[source.layer], *AT_TOP.get(edge, ()), "echo_env", *sys.stdlib_module_names}
    assert set(at_top) <= known, "import it in a function, or add it to the dependencies and to AT_TOP"
    edges = ("echo_env.page", "echo_env.tables", *(() if edge == "echo_env.cli" else ("echo_env.cli",)))
    brought = [i.module for i in imports(source.tree) if not i.lazy and within(i.module, *edges)]
    assert source.name == "echo_env.page" or not brought, "these are imported lazily, for what they bring along"


@pytest.mark.parametrize("name", PURE)
def test_pure_modules_read_no_clock_and_no_system(name: str) -> None:
    source = next(s for s in sources() if s.name == f"echo_env.{name}")
    system = {"os", "sys", "time", "datetime", "subprocess", "random", "shutil", "socket", "pathlib"}
    allowed = {"pathlib"} if name == "levels" else set()
    assert not {i.module.partition(".")[0] for i in imports(source.tree)} & (system - allowed)


@each_source
def test_there_is_no_global_random_state(source: Source) -> None:
    if source.name == "echo_env.trainers.checkpoints":
        pytest.skip("a resumed run puts back what others may have drawn from")
    wrong = []
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if re.fullmatch(r"random\.(?!Random$)\w+|(np|numpy)\.random\.(?!default_rng$|Generator$)\w+", called):
                wrong.append((called, node.lineno))
    if source.name == "echo_env.trainers.checkpoints":  # keeps for a resumed run what libraries may draw from
        wrong = [(called, line) for called, line in wrong if not re.search(r"\.[gs]et_?state$", called)]
    assert not wrong


@each_source
def test_nothing_is_printed(source: Source) -> None:
    if source.layer == "trainers":
        pytest.skip("entry points may print")
    calls = [n for n in ast.walk(source.tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)]
    assert not [n.lineno for n in calls if n.func.id == "print"]  # type: ignore[attr-defined]


def undocumented(node: ast.AST, name: str) -> Iterator[str]:
    if not ast.get_docstring(node):  # type: ignore[arg-type]
        yield name
    for child in ast.iter_child_nodes(node):
        kinds = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        if isinstance(child, kinds) and not child.name.startswith("_"):
            if any("setter" in ast.unparse(d) or "overload" in ast.unparse(d) for d in child.decorator_list):
                continue
            if isinstance(node, ast.Module | ast.ClassDef):
                yield from undocumented(child, f"{name}.{child.name}")


@each_source
def test_everything_public_has_a_docstring(source: Source) -> None:
    assert not list(undocumented(source.tree, source.name))


# ---- what an import costs ------------------------------------------------------------------------------------------


def modules_after(code: str, cwd: Path) -> tuple[set[str], float]:
    """Modules loaded by a piece of code in a fresh interpreter, and the CPU seconds it took, start included."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print(*sys.modules)"],
        capture_output=True, text=True, cwd=cwd, check=True, timeout=60,
    )  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return set(done.stdout.split()), spent


def test_importing_the_package_is_quick_and_loads_nothing_else(tmp_path: Path) -> None:
    """CPU seconds, interpreter included: wall time depends on what else the machine is doing."""
    runs = [modules_after("import echo_env", tmp_path) for _ in range(5)]
    assert median(seconds for _, seconds in runs) < 0.5, [seconds for _, seconds in runs]
    loaded = {m.partition(".")[0] for m in runs[0][0]}
    assert not loaded & {*HEAVY, "wordllama", "rich", "typer", "yaml", "pydantic", "plotly", "jinja2", "tokenizers"}
    assert {m for m in runs[0][0] if within(m, "echo_env")} == {"echo_env", "echo_env.version"}


def test_an_environment_needs_no_heavy_package(tmp_path: Path) -> None:
    code = (
        "import gymnasium as gym, echo_env\n"
        "for name in ('echo/Companion-v0', 'echo/Strategy-v0'):\n"
        "    env = gym.make(name)\n    env.reset(seed=0)\n    env.step(env.action_space.sample())"
    )
    loaded = {m.partition(".")[0] for m in modules_after(code, tmp_path)[0]}
    assert not loaded & {*HEAVY, "rich", "typer", "plotly", "jinja2"} - {
        "safetensors"
    }  # wordllama reads its weights so


# ---- names ---------------------------------------------------------------------------------------------------------


def needs_an_extra(error: BaseException) -> bool:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, MissingExtra):
            return True
        if isinstance(cause, ModuleNotFoundError):
            return not within(str(cause.name), "echo_env")
        cause = cause.__cause__
    return False


@pytest.mark.parametrize(("kind", "name"), [(k, n) for k in registry.KINDS for n in registry.names(k)])
def test_every_registered_name_resolves(kind: registry.RegisteredKind, name: str) -> None:
    try:
        found = registry.resolve(kind, name)
    except (ConfigError, MissingExtra) as e:
        if needs_an_extra(e):
            pytest.skip(f"an extra is missing: {e}")
        raise
    assert callable(found)


def targets() -> list[str]:
    """Every "module:attribute" in the source of the lowest layer: the only way in which it names the others."""
    text = {s.path.read_text(encoding="utf-8") for s in sources() if s.layer == "echo_env"}
    modules = {m for t in text for m in re.findall(r'^_MODULE = "([\w.]+)"', t, re.M)}
    whole = {m for t in text for m in re.findall(r'"(echo_env\.[\w.]+:\w+)"', t)}
    attributes = {a for t in text for a in re.findall(r'f"\{_MODULE\}:(\w+)"', t)}
    return sorted(whole | {f"{m}:{a}" for m in modules for a in attributes})


@pytest.mark.parametrize("target", targets())
def test_every_target_in_the_source_exists(target: str) -> None:
    try:
        assert registry.load(target) is not None
    except ImportError as e:
        if not needs_an_extra(e):
            raise
        pytest.skip(f"an extra is missing: {e}")


# ---- the project file ----------------------------------------------------------------------------------------------


def test_every_folder_of_the_package_is_installed() -> None:
    """Packages are listed by hand, because the folders map to other names: none may be forgotten."""
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    listed = set(tool["packages"])
    needed = set()
    for folder in ("echo_env", "agents", "trainers", "configs", "sim_profiles"):
        files = [f for f in (ROOT / folder).rglob("*") if f.suffix in (".py", ".yaml", ".md", ".j2")]
        for file in files:
            if "__pycache__" not in file.parts:
                inner = file.parent.relative_to(ROOT / folder).parts
                needed.add(".".join([LAYERS.get(folder, f"echo_env.{folder}"), *inner]))
    assert needed <= listed
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if tracked.returncode == 0 and tracked.stdout:
        folders = {Path(f).parent.as_posix() for f in tracked.stdout.splitlines()}
        mapping = tool["package-dir"]
        for package in listed:
            base = next(p for p in sorted(mapping, key=len, reverse=True) if within(package, p))
            place = "/".join([mapping[base], *package[len(base) + 1 :].split(".")]).rstrip("/")
            assert any(f == place or f.startswith(place + "/") for f in folders), f"{place}/ is not in a fresh clone"
