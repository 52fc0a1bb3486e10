"""What the README and the docs show is what comes out."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from echo_env.build import WorldConfig, build_policy, build_session, conversation_seed
from echo_env.env import epm_line
from echo_env.profiles import get_scenario

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_transcript_is_a_real_one() -> None:
    async def play() -> str:
        scenario = get_scenario("health-04")
        session = build_session(WorldConfig(), scenario, conversation_seed(0, scenario.id))
        policy, observation, said = build_policy("skilled"), await session.open(), []
        while session.outcome is None:
            advance = await session.reply(await policy.respond(observation))
            observation = advance.observation
            said += [advance.turn.user, advance.turn.reply, epm_line(advance.turn)]
        return " ".join(" ".join(said).split())

    block = README.split("\n\n    Menna ", 1)[1].split("\n\nAbove:")[0]
    shown = " ".join(re.sub(r"^ *(Menna|companion) ", " ", "    Menna " + block, flags=re.MULTILINE).split())
    assert shown in asyncio.run(play())


def test_the_python_example_runs() -> None:
    code = re.search(r"```python\n(.*?)```", README, re.DOTALL)
    assert code is not None
    names: dict[str, object] = {}
    exec(compile(code.group(1), "README.md", "exec"), names)
    assert isinstance(names["message"], str)


@pytest.mark.parametrize("page", ["README.md", *(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md"))])
def test_links_and_named_files_exist(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    linked = [t for t in re.findall(r"\]\(([^)#]+)\)", text) if not t.startswith("http")]
    missing = [t for t in linked if not ((ROOT / page).parent / t).exists()]
    tests = [t for t in re.findall(r"`(test_\w+\.py)`", text) if not (ROOT / "tests" / t).exists()]
    scripts = [t for t in re.findall(r"python (benchmarks/\w+\.py)", text) if not (ROOT / t).exists()]
    assert missing + tests + scripts == []
