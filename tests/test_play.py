"""`echo-env play` as a person meets it: on a real terminal, in a pipe, with remote roles, recorded; and the example."""

from __future__ import annotations

import io
import os
import re
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from faultserver import FaultServer

from echo_env import cli
from echo_env.agents.human import printable, read_reply
from echo_env.cli.play import _styled
from echo_env.record import RunFolder, read_episode

pty = pytest.importorskip("pty", reason="no pseudo-terminals on this system")
ROOT = Path(__file__).resolve().parents[1]
PLAY = [sys.executable, "-m", "echo_env.cli", "play"]

REMOTE = """
import asyncio
from echo_env.agents.embedded.actor import EmbeddedActor
from echo_env.agents.embedded.policies import Silent
from echo_env.agents.gated import embedded
from echo_env.errors import RoleFailure

class Lost:
    id = "lost"; rubric = "none"; waits = True
    async def judge(self, view):
        await asyncio.sleep(0)
        raise RoleFailure("no answer within\\n60 s")

class Slow:
    id = "slow"; rubric = "none"; waits = True
    async def judge(self, view):
        await asyncio.sleep(30 if view.exchange.reply == "Wait." else 0)
        return await embedded().judge(view)

class Remote(EmbeddedActor):
    waits = True
    async def speak(self, view):
        await asyncio.sleep(0.3)
        if view.history and view.history[-1].reply == "Goodbye.":
            raise RoleFailure("the server is gone")
        return "\\x1b[31m" + await super().speak(view)

class Mute(EmbeddedActor):
    async def speak(self, view):
        raise RoleFailure("nobody is there")
"""


@pytest.fixture
def remote(tmp_path: Path) -> dict[str, str]:
    """An environment in which a module of remote roles is found."""
    (tmp_path / "remote.py").write_text(REMOTE)
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    return os.environ | {"PYTHONPATH": path}


class Terminal:
    """A pseudo-terminal with a command on it."""

    def __init__(self, *args: str, cwd: Path, env: dict[str, str] | None = None, command: str = "play") -> None:
        self.seen = ""
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(cwd)
            os.execvpe(PLAY[0], [*PLAY[:-1], command, *args], {**(env or os.environ), "TERM": "xterm", "NO_COLOR": ""})

    def until(self, pattern: str, within: float = 60.0) -> str:
        """Return what came up to a pattern, and take it away."""
        end = time.monotonic() + within
        while not (found := re.search(pattern, self.seen, re.DOTALL)):
            assert time.monotonic() < end, f"{pattern!r} did not come; there was {self.seen!r}"
            if select.select([self.fd], [], [], 0.1)[0]:
                try:
                    self.seen += os.read(self.fd, 65536).decode("utf-8", "replace")
                except OSError:  # the other side is gone
                    assert re.search(pattern, self.seen, re.DOTALL), f"{pattern!r} did not come: {self.seen!r}"
        before, self.seen = self.seen[: found.end()], self.seen[found.end() :]
        return before

    def type(self, text: str | bytes) -> None:
        os.write(self.fd, text.encode() if isinstance(text, str) else text)

    def interrupt(self) -> None:
        """Press Ctrl-C, a moment after the prompt: readline is deaf between showing it and waiting for a key."""
        time.sleep(0.5)
        self.type("\x03")

    def end(self) -> int:
        """Wait for the command, and return its exit code."""
        deadline = time.monotonic() + 30
        while True:
            if time.monotonic() > deadline:
                os.kill(self.pid, signal.SIGKILL)
            if select.select([self.fd], [], [], 0.1)[0]:
                try:
                    self.seen += os.read(self.fd, 65536).decode("utf-8", "replace")
                except OSError:
                    break
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def make(*args: str, **options: object) -> Terminal:
        opened.append(Terminal(*args, cwd=tmp_path, **options))  # type: ignore[arg-type]
        return opened[-1]

    yield make
    for one in opened:
        try:
            os.kill(one.pid, signal.SIGKILL)
            os.waitpid(one.pid, 0)
        except (ProcessLookupError, ChildProcessError):
            pass
        os.close(one.fd)


class Ran(NamedTuple):
    """What one call of the command line did."""

    code: int
    out: str
    err: str


Echo = Callable[..., Ran]


@pytest.fixture
def echo(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Echo:
    """Call the command line in this process, in an empty folder, with a pipe as its input."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    def call(*args: str, said: bytes = b"") -> Ran:
        monkeypatch.setattr(sys, "argv", ["echo-env", *args])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(said), encoding="utf-8"))
        capsys.readouterr()
        try:
            sys.exit(cli.main())  # type: ignore[func-returns-value]
        except SystemExit as e:
            code = e.code if isinstance(e.code, int) else 0 if e.code is None else 1
        return Ran(code, *capsys.readouterr())

    return call


# ---- a terminal ----------------------------------------------------------------------------------------------------


def test_a_talk_on_a_terminal(terminal: Callable[..., Terminal], tmp_path: Path) -> None:
    t = terminal("--scenario", "career-01", "--save", "runs")
    start = t.until("you: ")
    assert "Ctrl-D leaves" in start
    assert "at the start  C -19  A -15  P -16" in start
    assert "\x1b[1mArchie:" in start  # in colour
    t.type("\r")
    assert "nothing typed" in t.until("you: ")
    t.type("A first line.\nA second.\nA third.\r")  # pasted, as a terminal without bracketed paste passes it on
    told = t.until(r"EPM.*you: ")
    assert "do they feel met" in told
    t.type("x" * 6000 + " and on\r")  # longer than a terminal's own line
    assert "do they feel met" not in t.until(r"EPM.*you: "), "what C, A and P are is told once"
    t.type(b"caf\xe9 \xff\r")
    t.until(r"EPM.*you: ")
    t.type("y" * 30_000 + "\r")
    assert "cut to the first 20,000" in t.until(r"EPM.*you: ")
    t.type("\x04")
    assert t.end() == 0
    assert "echo-env report runs" in t.seen
    episode = read_episode(tmp_path / "runs/human/episodes/career-01.0.jsonl")
    said = [turn.reply for turn in episode.turns]
    assert said[0] == "A first line.\nA second.\nA third."
    assert said[1] == "x" * 6000 + " and on"
    assert said[2].startswith("caf")
    assert "\ufffd" in said[2]
    assert said[3] == "y" * 20_000
    assert episode.outcome is not None
    assert (episode.outcome.end, episode.outcome.turns) == ("budget", 4)


def test_ctrl_c_leaves_a_record(terminal: Callable[..., Terminal], tmp_path: Path, remote: dict[str, str]) -> None:
    t = terminal("--scenario", "career-01", "--judge", "remote:Slow", "--save", "runs", env=remote)
    t.until("you: ")
    t.type("What happened?\r")
    t.until(r"EPM.*you: ")
    t.type("Wait.\r")
    t.until(r"\.\.\.")
    t.interrupt()
    assert t.end() == 130
    assert "Traceback" not in t.seen
    assert "recorded in runs" in t.seen
    episode = read_episode(tmp_path / "runs/human/episodes/career-01.0.jsonl")
    assert [turn.reply for turn in episode.turns] == ["What happened?"], "the turn that was interrupted is none"
    assert episode.outcome is not None
    assert (episode.outcome.end, episode.outcome.turns) == ("budget", 1)


@pytest.mark.parametrize(
    ("term", "asked", "colour"), [("xterm", "", True), ("dumb", "", False), ("", "", False), ("xterm", "1", False)]
)
def test_colours_are_for_terminals_that_have_them(
    monkeypatch: pytest.MonkeyPatch, term: str, asked: str, colour: bool
) -> None:
    class Screen(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", term)
    monkeypatch.setenv("NO_COLOR", asked)
    monkeypatch.setattr(sys, "stdout", Screen())
    assert (_styled("Archie:", "name") == "Archie:") is not colour
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert _styled("Archie:", "name") == "Archie:"


def test_who_waits_sees_that_they_wait(terminal: Callable[..., Terminal], remote: dict[str, str]) -> None:
    t = terminal("--scenario", "career-01", "--actor", "remote:Remote", env=remote)
    assert "\x1b[31m" not in t.until(r"\.\.\..*\r   \r.*you: "), "a model's words do not command the terminal"
    t.type("Goodbye.\r")
    t.until(r"\.\.\..*\r   \r")
    told = t.until("ended: unreachable after 1 turns")
    assert "(actor: RoleFailure: the server is gone)" in told
    assert t.end() == 0


def test_ctrl_c_and_ctrl_d_in_a_run_by_hand(terminal: Callable[..., Terminal], tmp_path: Path) -> None:
    args = ("--policy", "human", "--out", "runs", "--scenario", "career-01", "--limit", "1")
    t = terminal(*args, command="run")
    t.until("Somebody writes to you.*you: ")
    t.type("One.\r")
    t.until("you: ")
    t.interrupt()
    assert t.end() == 130
    assert "Traceback" not in t.seen
    assert "--resume goes on" in t.seen
    assert [turn.reply for turn in read_episode(tmp_path / "runs/human/episodes/career-01.0.jsonl").turns] == ["One."]


# ---- a pipe --------------------------------------------------------------------------------------------------------


def test_a_talk_in_a_pipe_is_a_whole_transcript(echo: Echo) -> None:
    said = "Tell me.\n\nIt stings.\xe9\n".encode("latin-1")
    done = echo("play", "--scenario", "career-01", said=said)
    assert done.code == 0
    assert done.out.count("EPM  C ") == 3
    assert re.findall(r"^you: (.*)$", done.out, re.MULTILINE) == ["Tell me.", "", "It stings.\ufffd"]
    assert "\x1b" not in done.out + done.err
    assert echo("play", "--scenario", "career-01", said=said).out == done.out
    hidden = echo("play", "--scenario", "career-01", "--hide", said=said)
    assert hidden.code == 0
    assert "EPM" not in hidden.out + hidden.err
    assert "at the start" not in hidden.out
    assert "do they feel met" not in hidden.err
    assert [line for line in hidden.out.splitlines() if "Archie: " in line] == [
        line for line in done.out.splitlines() if "Archie: " in line
    ]


def test_a_screen_that_lacks_signs_and_no_input_at_all(tmp_path: Path) -> None:
    env = os.environ | {"PYTHONIOENCODING": "ascii", "LC_ALL": "C"}
    told = subprocess.run(
        [*PLAY, "--scenario", "career-01"], input="Mm \u2026 \u4f60\u597d\n".encode(), capture_output=True,
        cwd=tmp_path, env=env, timeout=60,
    )  # fmt: skip
    assert told.returncode == 0, told.stderr
    assert b"EPM  C " in told.stdout
    closed = ["sh", "-c", 'exec "$0" "$@" <&-', *PLAY, "--scenario", "career-01"]
    done = subprocess.run(closed, capture_output=True, cwd=tmp_path, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(b"    at the start")


def test_a_chinese_person(echo: Echo) -> None:
    done = echo("play", "--split", "benchmark-zh", said="\u542c\u8d77\u6765\u4f60\u5f88\u7d2f\u3002\n".encode())
    assert done.code == 0, done.err
    assert "you: \u542c\u8d77\u6765\u4f60\u5f88\u7d2f\u3002" in done.out


def test_a_run_by_hand_is_interrupted_and_goes_on(echo: Echo, tmp_path: Path) -> None:
    run = ("run", "--policy", "human", "--out", "runs", "--max-turns", "3")
    run += ("--scenario", "career-01", "--scenario", "career-02")
    done = echo(*run, said=b"One.\nTwo.\n")
    assert done.code == 130
    assert done.err.count("Somebody writes to you.") == 1, "one talk at a time"
    done = echo(*run, "--resume", said=b"Three.\nFour.\nFive.\nSix.\n")
    assert done.code == 0
    replies = [[turn.reply for turn in e.turns] for e in RunFolder(tmp_path / "runs/human").episodes()]
    assert replies == [["One.", "Two.", "Three."], ["Four.", "Five.", "Six."]]


# ---- remote roles, records -----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("remote")
def test_a_lost_judge_is_told_in_a_line_and_the_talk_goes_on(echo: Echo) -> None:
    done = echo("play", "--judge", "remote:Lost", "--scenario", "career-01", said=b"One.\nTwo.\n")
    assert done.code == 0
    assert done.out.count("    EPM  not judged\n") == 2
    assert done.err.count("    (judge: RoleFailure: no answer within 60 s)\n") == 2
    assert done.out.count("Archie: ") == 3
    done = echo("play", "--judge", "remote:Lost", "--scenario", "career-01", "--hide", said=b"One.\n")
    assert "EPM" not in done.out
    assert "no answer within 60 s" in done.err


def test_a_world_of_language_models_ends_cleanly(tmp_path: Path) -> None:
    """A process of its own: what hangs on the loop of remote roles must be closed when it ends."""
    env = os.environ | {"ECHO_ENV_CACHE": str(tmp_path)}
    with FaultServer() as server:
        command = [*PLAY, "--scenario", "career-01", "--backend", f"llm:hosted_vllm/any@{server.url}"]
        done = subprocess.run(command, input=b"Go on.\n", capture_output=True, cwd=tmp_path, env=env, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(b"Archie: I hear you.") == 2
    assert b"    EPM  C " in done.stdout
    assert b"Traceback" not in done.stderr
    assert b"Exception ignored" not in done.stderr


def test_chit_chat_has_no_state_to_show(echo: Echo) -> None:
    done = echo("play", "--split", "chitchat", "--recipe", "humanlike", said=b"Ha! Was it cold?\n")
    assert done.code == 0, done.err
    assert re.search(r"^    humanlike  [01]\.\d\d$", done.out, re.MULTILINE)
    assert "EPM" not in done.out
    assert "do they feel met" not in done.err


@pytest.mark.usefixtures("remote")
def test_nobody_at_the_other_end(echo: Echo, tmp_path: Path) -> None:
    done = echo("play", "--actor", "remote:Mute", "--save", "runs", said=b"One.\n")
    assert done.code == 1
    assert done.err.endswith("error: nobody is there\n")
    assert not list(tmp_path.rglob("*.jsonl"))


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["--backend", "embeded"], "did you mean 'embedded'"),
        (["--recipe", "emp"], "did you mean 'epm'"),
        (["--judge", "secnd"], "did you mean 'second'"),
        (["--scenario", "career-1"], "unknown scenario"),
        (["--split", "trian"], "did you mean 'train'"),
    ],
)
def test_a_mistake_is_told_before_anything_is_typed(echo: Echo, tmp_path: Path, args: list[str], told: str) -> None:
    done = echo("play", *args, "--save", "runs", said=b"One.\n")
    assert done.code == 1
    assert told in done.err
    assert not done.out
    assert not list(tmp_path.rglob("*.jsonl"))


def test_recorded_talks_add_up_and_can_be_scored_and_judged_anew(echo: Echo, tmp_path: Path) -> None:
    for name in ("career-01", "career-01", "leisure-04"):
        assert echo("play", "--scenario", name, "--save", "runs", said=b"Who was there?\nGo on.\n").code == 0
    assert echo("play", "--scenario", "health-04", "--save", "runs").code == 0  # nothing said, nothing recorded
    found = list(RunFolder(tmp_path / "runs" / "human").episodes())
    assert [e.header.episode_id for e in found] == ["career-01.0", "career-01.1", "leisure-04.0"]
    assert len({e.header.seed for e in found}) == 3
    again = ("score", "runs", "--judge", "deaf", "--out", "anew")
    for command in (("report", "runs"), ("score", "runs", "--scorer", "official"), again):
        done = echo(*command)
        assert done.code == 0, done.err
        assert "human" in done.out
        assert "3 episodes" in done.out
    done = echo("play", "--scenario", "health-04", "--save", "runs", "--judge", "deaf", said=b"Oh.\n")
    assert done.code == 1, "another world is another run"
    assert "holds another run; different: world.judge" in done.err


def test_a_watched_policy_is_recorded_as_a_run_would(echo: Echo, tmp_path: Path) -> None:
    assert echo("play", "--policy", "lecturer", "--scenario", "career-02", "--save", "runs").code == 0
    assert echo("run", "--policy", "lecturer", "--scenario", "career-02", "--out", "others").code == 0
    one, other = (tmp_path / f"{f}/lecturer/episodes/career-02.0.jsonl" for f in ("runs", "others"))
    assert one.read_bytes() == other.read_bytes()


# ---- parts ---------------------------------------------------------------------------------------------------------


def test_what_a_terminal_would_obey_is_left_out() -> None:
    assert printable("\x1b[31mred\x07\n\ttab \u4f60 \x9b1m") == "[31mred\n\ttab \u4f60 1m"


def test_a_closed_input_ends_the_talk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(EOFError):
        read_reply()


def example(tmp_path: Path, **settings: str) -> str:
    env = {k: v for k, v in os.environ.items() if k != "ECHO_ENV_MODELS"} | settings
    command = [sys.executable, str(ROOT / "docs" / "example.py")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=env, timeout=120)
    assert done.returncode == 0, done.stderr
    assert not list(tmp_path.iterdir()), "it leaves nothing behind where it is run"
    return done.stdout


def test_the_example_runs_from_anywhere(tmp_path: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    told = example(tmp_path)
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before < 30
    assert told.startswith("them: ")
    assert re.search(r"^[CAP] [+-][12]  [CAP]\.\w+\.\d\.\w+  \u201c.+\u201d$", told, re.MULTILINE)
    assert re.search(r"^skilled +[1-3] of 3 succeeded, return \+", told, re.MULTILINE)
    assert re.search(r"^template +0 of 3 succeeded, return -", told, re.MULTILINE)
    assert told.splitlines()[-1].startswith(("skilled", "not judged anew"))


def test_the_example_takes_a_model(tmp_path: Path) -> None:
    pytest.importorskip("echo_env.agents.judge", reason="no judge played by a language model here")
    assert "not judged anew: nowhere.yaml: there is no such file" in example(tmp_path, ECHO_ENV_MODELS="nowhere.yaml")
