# ruff: noqa: T201
"""A first look at echo-env, cell by cell: run it whole (`python docs/example.py`), or in an editor that knows `# %%`.

No key, no network, no GPU; half a minute at most. With ECHO_ENV_MODELS set to a models file, MODEL or MODEL@URL, a
language model judges the last cell; without it a second judge of ours does, where its weights are installed.
"""

# %% Meet somebody. What they say is all that a companion sees.
import os
import tempfile
from pathlib import Path

import gymnasium as gym

import echo_env  # noqa: F401  registers echo/Companion-v0
from echo_env.errors import EchoError

env = gym.make("echo/Companion-v0", scenario="leisure-04")
message, info = env.reset(seed=0)
print("them:", message)

# %% Talk a few turns. C, A, P: do they make sense of it, feel met, trust their own strength? 0 is balance.
for reply in (
    "Forty panes and every bean: no wonder you are angry with them. What was it like to find it?",
    "Who was with you when you saw it?",  # takes up nothing of what was said
    "You built that greenhouse yourself, and it shows how much you can do. What would help you now?",
):
    message, reward, terminated, truncated, info = env.step(reply)
    c, a, p = info["epm"].position
    print(f"you:  {reply}\n      C {c:.0f}  A {a:.0f}  P {p:.0f}   reward {reward:+.3f}\nthem: {message}")

# %% Read the evidence: every level has a quote of the reply, and the anchor of the rubric that it shows.
for found in info["evidence"]:
    print(f"{found.axis} {found.level:+d}  {found.anchor}  “{found.quote}”")

# %% Let two policies meet the same three people, and score them.
from echo_env.agents.rollout import RunConfig, run  # noqa: E402
from echo_env.build import WorldConfig  # noqa: E402
from echo_env.report import collect  # noqa: E402


def table(folder: Path) -> None:
    """Print what each model of a folder of runs came to."""
    for model in collect(folder).models:
        s = model.summary
        print(f"{s.model:10} {s.successes} of {s.n} succeeded, return {model.mean_return or 0:+.2f}")


people = ("leisure-04", "health-04", "career-01")
runs = Path(tempfile.mkdtemp()) / "runs"
for policy in ("skilled", "template"):
    run(RunConfig(policy=policy, scenarios=people), runs)
table(runs)

# %% The same, steered by another judge.
name = os.environ.get("ECHO_ENV_MODELS")
world = WorldConfig(judge=f"llm:{name}" if name else "second", max_turns=6)
try:
    run(RunConfig(policy="skilled", scenarios=people, world=world), runs.with_name("judged"))
    table(runs.with_name("judged"))
except EchoError as error:
    print("not judged anew:", error)
