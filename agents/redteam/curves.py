"""Searches over many people, their files, and the picture of their curves: best return against judge calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import yaml
from pydantic import ValidationError

from echo_env.agents.redteam.pools import Script
from echo_env.agents.redteam.regression import Regression, write_regression
from echo_env.agents.redteam.search import SearchConfig, SearchResult, best_at, search
from echo_env.build import conversation_seed
from echo_env.errors import RecordError, missing_extra

STEPS = (10, 20, 50)
BARS = "▁▂▃▄▅▆▇█"
LOWEST, HIGHEST = -2.5, 2.0
"""Returns that the lowest and the highest bar stand for."""


def log_points(budget: int) -> list[int]:
    """Return 10, 20, 50, 100, ... up to a budget, the budget itself last."""
    found = [step * 10**power for power in range(12) for step in STEPS]
    return [*(p for p in found if p < budget), budget]


def sparkline(result: SearchResult) -> str:
    """Return the curve as bars at `log_points`, from -2.5 to 2; a dot where no conversation was finished yet."""
    bars = ""
    for calls in log_points(result.config.budget):
        best = best_at(result.curve, calls)
        share = 0.0 if best is None else (min(HIGHEST, max(LOWEST, best)) - LOWEST) / (HIGHEST - LOWEST)
        bars += "·" if best is None else BARS[min(len(BARS) - 1, int(share * len(BARS)))]
    return bars


def searches(
    configs: Sequence[SearchConfig],
    out: Path | None = None,
    *,
    workers: int = 1,
    resume: bool = False,
    overwrite: bool = False,
    tell: Callable[[SearchConfig, int, float | None], None] = lambda config, calls, best: None,
) -> Iterator[SearchResult]:
    """Run searches, and yield and write each result as soon as it is there.

    Args:
        configs: What to search for.
        out: Folder for results and regression files, or None.
        workers: Processes; the results do not depend on it.
        resume: Take over results that are there already.
        overwrite: Replace them.
        tell: Called with the judge calls made and the best return so far: after every turn for one process, after every
            search for several.

    Raises:
        ConfigError: A name is unknown.
        RecordError: A result is there and neither flag was given, or it is of another search.
    """
    waiting = []
    for config in configs:
        known = None if out is None or overwrite else _known(out, config, resume)
        if known is not None:
            tell(config, config.budget, known.best_return)
            yield known
        else:
            waiting.append(config)
    for result in _run(waiting, workers, tell):
        if out is not None:
            write_result(out, result)
        yield result


def _run(
    configs: Sequence[SearchConfig], workers: int, tell: Callable[[SearchConfig, int, float | None], None]
) -> Iterator[SearchResult]:
    if workers == 1 or len(configs) == 1:
        for config in configs:
            result = search(config, lambda calls, best, config=config: tell(config, calls, best))  # type: ignore[misc]
            yield result
            if not result.finished:
                raise KeyboardInterrupt
        return
    with ProcessPoolExecutor(workers) as pool:
        jobs = {pool.submit(search, config): config for config in configs}
        try:
            for done in as_completed(jobs):
                result = done.result()
                tell(jobs[done], result.calls, result.best_return)
                yield result
        except BaseException:  # Ctrl-C, a full disk: what has not begun is not searched
            pool.shutdown(cancel_futures=True)
            raise


def result_path(out: Path, config: SearchConfig) -> Path:
    """Where a search's result is kept."""
    name = config.scenarios[0] if len(config.scenarios) == 1 else f"joint-{len(config.scenarios)}"
    return out / "search" / config.pool / f"{Path(name).stem if name.endswith(('.yaml', '.yml')) else name}.json"


def _known(out: Path, config: SearchConfig, resume: bool) -> SearchResult | None:
    path = result_path(out, config)
    if not path.exists():
        return None
    if not resume:
        raise RecordError(f"{path} holds a result already", "give --resume to keep it, or --overwrite to lose it")
    found = read_result(path)
    if found.config != config:
        raise RecordError(f"{path} is the result of another search", "use another --out, or --overwrite")
    return found if found.finished else None


def read_result(path: Path) -> SearchResult:
    """Read a search's result.

    Raises:
        RecordError: It cannot be read.
    """
    try:
        return SearchResult.model_validate_json(path.read_text(encoding="utf-8"))
    except OSError as e:
        raise RecordError(f"{path} cannot be read: {e.strerror or e}") from None
    except ValidationError as e:
        raise RecordError(f"{path} is no result of a search: {e.errors()[0]['msg']}") from None


def write_result(out: Path, result: SearchResult) -> None:
    """Write a result; of one person also a regression file, of many the script that was found for all of them.

    Raises:
        RecordError: It cannot be written.
    """
    path = result_path(out, result.config)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(result.model_dump_json(indent=1) + "\n", encoding="utf-8")
        if len(result.config.scenarios) > 1 and result.replies:
            data = script_of(result).model_dump(mode="json")
            text = yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=120)
            path.with_suffix(".yaml").write_text(text, encoding="utf-8")
    except OSError as e:
        raise RecordError(f"{path} cannot be written: {e.strerror or e}") from None
    if len(result.config.scenarios) == 1 and result.replies:
        write_regression(out / "regressions" / f"search-{result.config.pool}-{path.stem}.yaml", regression_of(result))


def regression_of(result: SearchResult) -> Regression:
    """Return the best conversation found with one person, to be said again."""
    config = result.config
    return Regression(
        attack=f"search:{config.pool}",
        scenario=config.scenarios[0],
        seed=conversation_seed(config.seed, config.scenarios[0]),
        world=config.world,
        judge=result.judge,
        scorer=result.scorer,
        earned=result.best_return or 0.0,
        end=result.ends[0],
        replies=result.replies,
    )


def script_of(result: SearchResult) -> Script:
    """Return a search's best replies as a script, with the command that found it."""
    config, world = result.config, result.config.world
    options = [f"--search {config.budget}", "--joint", f"--seed {config.seed}"]
    options += [f"--judge {world.judge}"] if world.judge else []
    options += [f"--scorer {world.scorer}"] if world.scorer != "strict" else []
    return Script(
        found_by=" ".join(["echo-env redteam", *options]),
        judge=result.judge,
        scorer=result.scorer,
        judge_calls=result.calls,
        mean_return=round(result.best_return or 0.0, 4),
        replies=result.replies,
    )


def write_plot(path: Path, results: Sequence[SearchResult]) -> None:
    """Write the curves as one self-contained page.

    Raises:
        MissingExtra: plotly is not installed.
        RecordError: The file cannot be written.
    """
    try:
        import plotly.graph_objects as go
    except ImportError:
        raise missing_extra("plotly", "report") from None
    figure = go.Figure()
    for result in results:
        calls = [p.calls for p in result.curve] + ([result.calls] if result.curve else [])
        best = [p.best for p in result.curve] + ([result.curve[-1].best] if result.curve else [])
        name = f"{', '.join(result.config.scenarios[:2])} ({result.config.pool})"
        figure.add_scatter(x=calls, y=best, name=name, mode="lines", line_shape="hv")
    figure.add_hline(y=1.0, line_dash="dot", annotation_text="a success earns more than 1")
    figure.update_layout(
        title="What the searcher finds", xaxis_title="judge calls", yaxis_title="best return", xaxis_type="log"
    )
    try:
        path.write_text(figure.to_html(include_plotlyjs=True), encoding="utf-8")
    except OSError as e:
        raise RecordError(f"{path} cannot be written: {e.strerror or e}") from None
