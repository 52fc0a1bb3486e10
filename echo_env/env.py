"""The Gymnasium edge: `echo/Companion-v0`, text in and text out.

    >>> import gymnasium as gym, echo_env
    >>> env = gym.make("echo/Companion-v0")
    >>> message, info = env.reset(seed=7)
    >>> message, reward, terminated, truncated, info = env.step("What happened then?")

The observation is what the person says. Everything that a policy must not see is in `info`, typed: `epm`, `evidence`,
`reward_parts`, `verdicts`, `direction`, `turn`, and at the end `outcome`.
"""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym

from echo_env.build import WorldConfig, build_session
from echo_env.driving import drive
from echo_env.errors import ConfigError, EpisodeOver
from echo_env.profiles import Scenario, get_scenario, scenario_ids
from echo_env.session import Advance, DialogueSession
from echo_env.spaces import UnicodeText
from echo_env.types import AXES, EpmDelta, Outcome, Turn

MAX_MESSAGE = 4_000
"""Most characters of an observation of one message."""
MAX_TRANSCRIPT = 200_000
"""Most characters of an observation of the whole conversation."""
MAX_ACTION = 20_000
"""Most characters of an action; a longer one is cut for the record, and judged as a monologue long before."""

RESET_OPTIONS = ("scenario",)


class CompanionEnv(gym.Env[str, str]):
    """Talk with a simulated person, one reply a step.

    Args:
        scenario: Id or YAML file of one scenario; None draws one of the split at every reset, by the seed.
        split: "benchmark", "train", "dev" or "chitchat".
        scorer: "strict", "official" or "paper": the EPM rules that end the episode.
        recipe: Name of the reward recipe.
        max_turns: Steps after which the episode is truncated; None leaves it to the person's patience.
        backend: Name of the world; "embedded" needs no key, no network and no GPU.
        judge: Name of another judge than the backend's own.
        recipe_options: Settings of the recipe, {"reference": "adviser"} for example.
        observe: "message" for the person's newest message, "conversation" for the whole transcript.
        render_mode: "ansi" or None.

    Raises:
        ConfigError: An option is unknown; the message names the nearest one.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012  Gymnasium declares it so

    def __init__(
        self,
        scenario: str | None = None,
        split: str = "benchmark",
        scorer: str = "strict",
        recipe: str = "epm",
        max_turns: int | None = None,
        backend: str = "embedded",
        judge: str | None = None,
        recipe_options: dict[str, Any] | None = None,
        observe: str = "message",
        render_mode: str | None = None,
    ) -> None:
        given = {"scenario": scenario, "judge": judge}
        _require_text(
            split=split,
            backend=backend,
            scorer=scorer,
            recipe=recipe,
            **{name: value for name, value in given.items() if value is not None},
        )
        if observe not in ("message", "conversation"):
            raise ConfigError(f"observe must be 'message' or 'conversation', got '{observe}'")
        if render_mode not in (None, "ansi"):
            raise ConfigError(f"render_mode must be 'ansi' or None, got '{render_mode}'")
        if max_turns is not None and (type(max_turns) is not int or max_turns < 1):
            raise ConfigError(f"max_turns must be a whole number from 1, or None, got {max_turns!r}")
        self._world = WorldConfig(
            backend=backend,
            judge=judge,
            scorer=scorer,
            recipe=recipe,
            recipe_options=recipe_options or {},
            max_turns=max_turns,
        )
        ids = tuple(scenario_ids(split))
        self._ids = (scenario,) if scenario is not None else ids
        # a wrong name is an error now, not at the first reset
        build_session(self._world, get_scenario(self._ids[0]), seed=0)
        self._observe = observe
        self.render_mode = render_mode
        self.observation_space = UnicodeText(MAX_MESSAGE if observe == "message" else MAX_TRANSCRIPT)
        self.action_space = UnicodeText(MAX_ACTION)
        self._session: DialogueSession | None = None
        self._turns: list[Turn] = []

    @property
    def session(self) -> DialogueSession:
        """The conversation under way.

        Raises:
            EpisodeOver: `reset` was not called.
        """
        if self._session is None:
            raise EpisodeOver("there is no conversation yet", "call reset() first")
        return self._session

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Meet a person.

        Args:
            seed: Seed of the scenario drawn and of everything said.
            options: {"scenario": id} to meet a certain person this once.

        Returns:
            Their first message, and info: `scenario` and the initial `epm`.
        """
        super().reset(seed=seed)
        drawn = self._ids[int(self.np_random.integers(len(self._ids)))]
        asked = _asked_for(options)
        scenario = get_scenario(drawn if asked is None else asked)
        session = build_session(self._world, scenario, int(self.np_random.integers(2**31)))
        self._session, self._turns = session, []
        drive(session.open(), waiting=session.waits)
        return self._observation(), {"scenario": scenario.id, "epm": _initial(scenario)}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Say something.

        Args:
            action: The reply. `<think>` blocks in it are kept in the record and shown to nobody.

        Returns:
            Their answer; the reward, NaN where the judge failed; terminated; truncated; info.

        Raises:
            TypeError: The action is not a string.
            EpisodeOver: The conversation has ended.
        """
        if not isinstance(action, str):
            raise TypeError(f"an action is the reply as a string, got {type(action).__name__}: {action!r:.80}")
        session = self.session
        advance = drive(session.reply(action[:MAX_ACTION]), waiting=session.waits)
        self._turns.append(advance.turn)
        reward = math.nan if advance.turn.reward is None else advance.turn.reward
        return self._observation(), reward, advance.terminated, advance.truncated, _info(advance, session.scenario)

    def render(self) -> str | None:  # type: ignore[override]
        """Return the conversation so far with the EPM line under each reply; None without a render mode."""
        if self.render_mode is None:
            return None
        session = self.session
        lines = [f"{session.scenario.persona.name}, {session.scenario.id}"]
        for turn in self._turns:
            lines += [f"  user       {turn.user}", f"  companion  {turn.reply}", f"             {epm_line(turn)}"]
        return "\n".join([*lines, f"  user       {self._newest()}"])

    def _newest(self) -> str:
        last = self.session.observation.messages[-1]
        return last.text if last.role == "user" else ""

    def _observation(self) -> str:
        if self._observe == "message":
            return self._newest()[:MAX_MESSAGE]
        return "\n".join(f"{m.role}: {m.text}" for m in self.session.observation.messages)[-MAX_TRANSCRIPT:]


def _require_text(**options: Any) -> None:
    for name, value in options.items():
        if not isinstance(value, str):
            raise ConfigError(f"{name} must be a name, got {value!r:.60}")


def _asked_for(options: dict[str, Any] | None) -> str | None:
    """Return the scenario that reset options ask for; None where they ask for none."""
    if options is None:
        return None
    if not isinstance(options, dict):
        raise ConfigError(f"reset options are a dict, got {options!r:.60}", 'for example  {"scenario": "career-01"}')
    unknown = sorted(set(options) - set(RESET_OPTIONS))
    if unknown:
        raise ConfigError(f"unknown reset option '{unknown[0]}'", f"known: {', '.join(RESET_OPTIONS)}")
    _require_text(**options)
    return options.get("scenario")


def epm_line(turn: Turn) -> str:
    """Return one turn's EPM in a line: position, work, levels."""
    if turn.judgement is None and not turn.failure:
        return f"no EPM  {'  '.join(f'{name} {value:g}' for name, value in turn.reward_parts.items())}"
    if turn.epm is None or turn.judgement is None:
        return f"EPM  not judged ({turn.failure})"
    c, a, p = turn.epm.position
    levels = turn.judgement.levels
    moved = [axis + "".join(f"{x:+d}" for x in levels[2 * k : 2 * k + 2] if x) for k, axis in enumerate(AXES)]
    found = " ".join(m for m in moved if len(m) > 1) or "none"
    return f"EPM  C {c:.0f}  A {a:.0f}  P {p:.0f}   work {turn.epm.work:+.2f}   levels {found}"


def _initial(scenario: Scenario) -> EpmDelta | None:
    if scenario.chitchat:
        return None
    return EpmDelta(
        position=scenario.p0,
        delta=(0.0, 0.0, 0.0),
        work=0.0,
        energy=0.0,
        distance=math.sqrt(sum(x * x for x in scenario.p0)),
        cos=0.0,
        healed=False,
    )


def _info(advance: Advance, scenario: Scenario) -> dict[str, Any]:
    turn = advance.turn
    info: dict[str, Any] = {
        "epm": turn.epm,
        "evidence": turn.judgement.evidence if turn.judgement else (),
        "reward_parts": turn.reward_parts,
        "verdicts": turn.verdicts,
        "direction": turn.direction,
        "turn": turn,
        "judge_failed": turn.reward is None or (turn.judgement is None and not scenario.chitchat),
    }
    outcome: Outcome | None = advance.outcome
    if outcome is not None:
        info["outcome"] = outcome
    return info
