"""The link between actor and learner, on real Zenoh: weights, agreement, loss, restart, and who is let in."""
# pyright: reportArgumentType=false

import contextlib
import hashlib
import json
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("zenoh", reason="needs Zenoh (extra `link`)")
from robot_rl.human.actor import load_tensors, tensors_of
from robot_rl.human.pieces import ActorBook
from robot_rl.link import ActorLink, LearnerLink, LinkSettings
from robot_rl.link.session import dump_weights, load_weights, open_session, own_token
from robot_rl.policies.human.hil_serl import HilSerl, HilSerlOptions
from robot_rl.policies.human.imitation_sac import ImitationSac, ImitationSacOptions
from robot_rl.policies.human.safe_set import SafeExploration, SafeExplorationOptions
from robot_rl.types import IOSpec

LIKE = {"actor": torch.zeros(10), "normalizer/count": torch.zeros((), dtype=torch.float64)}
IO = IOSpec({"state": ((3,), "float32")}, ("dx", "gripper"), (-1.0, -1.0), (1.0, 1.0), ("m", "1"), 10.0)


def weights(value: float) -> dict[str, torch.Tensor]:
    return {"actor": torch.full((10,), value), "normalizer/count": torch.tensor(value, dtype=torch.float64)}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


class Feed:
    """Numbered rows, one per piece."""

    def __init__(self, count: int):
        self.count = count

    def rows(self, place):
        episode, step = place
        if step >= self.count:
            return None
        return {"episode": episode, "first": step, "count": 1}, bytes([step % 256]), (episode, step + 1)

    def end(self):
        return 0, self.count


@pytest.fixture
def ends():
    """make(actor facts, learner facts, rows, learner options, **settings) -> both ends; closed afterwards."""
    opened = []
    port = free_port()

    def make(
        *,
        theirs=None,
        ours=None,
        rows=0,
        most=256,
        only="both",
        places=None,
        book=None,
        log="a",
        feed=None,
        words=None,
        **more,
    ):
        base = {"endpoint": f"tcp/127.0.0.1:{port}", "heartbeat_s": 0.05, "resend_s": 0.3, "lost_s": 1.0}
        settings = LinkSettings(**{**base, **more})
        pair = []
        if only != "actor":
            admit = {} if book is None else {"admit": book.admit}
            pair.append(LearnerLink(settings, ours or {}, places or {}, most, **admit))
        if only != "learner":
            feed = feed or Feed(rows)
            pair.append(ActorLink(settings, feed.rows, feed.end, LIKE, theirs or {}, log, words))
        opened.extend(pair)
        return pair

    yield make
    for end in opened:
        with contextlib.suppress(Exception):
            end.close()


def until(condition, seconds=10.0):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return False


def receive(learner, wanted, seconds=10.0):
    """Take rows in order as an inbox would, confirm them; returns all that came, repeated ones too."""
    came, place = [], 0
    end = time.monotonic() + seconds
    while place < wanted and time.monotonic() < end:
        for head, body in learner.drain(0.05):
            came.append((head["first"], body))
            place += head["first"] == place
        learner.confirm({0: (0, place)})
    return came, place


def test_what_is_said_about_episodes_travels_with_every_sign_of_life(ends):
    words = {3: (True, False)}
    learner, _ = ends(words=words)
    assert until(lambda: learner.words() == {0: {3: (True, False)}})
    words[3] = False, True
    words[7] = False, False
    assert until(lambda: learner.words() == {0: {3: (False, True), 7: (False, False)}})


def test_rows_arrive_in_order_and_weights_come_back(ends):
    learner, actor = ends(rows=20)
    came, place = receive(learner, 20)
    assert place == 20
    assert [n for n, _ in came][:20] == list(range(20))
    assert came[7][1] == bytes([7])
    assert until(lambda: actor.acked == (0, 20))
    learner.publish(3, weights(0.5))
    learner.publish(4, weights(0.25))
    assert until(lambda: actor.version == 4)
    version, tensors = actor.take()
    assert version == 4
    assert torch.equal(tensors["actor"], weights(0.25)["actor"])
    assert tensors["normalizer/count"].dtype == torch.float64
    assert actor.take() is None  # the newest once
    assert until(learner.is_served)
    actor.done = True
    actor.notify()
    assert until(learner.complete)
    learner.finished = True
    assert until(lambda: actor.finished)


def test_rows_that_found_no_room_come_again(ends):
    """A learner that is busy loses nothing: its queue of four messages overflows, the actor sends them again."""
    learner, actor = ends(rows=60, most=4)
    assert until(lambda: learner.dropped > 0)
    came, place = receive(learner, 60, 20.0)
    assert place == 60
    assert actor.resent > 0
    assert {n for n, _ in came} == set(range(60))


def test_unconfirmed_rows_are_bounded(ends):
    learner, actor = ends(rows=1000, window=50, most=2000)
    assert until(lambda: actor.sent >= 50)
    time.sleep(0.15)
    assert actor.sent == 50
    assert len(learner.drain(0.1)) == 50


def test_fault_learner_dead_is_noticed_and_a_new_one_goes_on_where_the_old_one_was(ends):
    learner, actor = ends(rows=30)
    receive(learner, 10)
    place = 10  # what its disk had when it died
    learner.publish(1, weights(0.1))
    assert until(lambda: actor.version == 1)
    learner.close()
    assert until(lambda: not actor.alive, 5.0)
    assert actor.take()[0] == 1  # the last weights stay
    (second,) = ends(only="learner", places={0: (0, place)})
    came = second.drain(5.0)
    assert came[0][0]["first"] == place
    assert until(lambda: actor.alive)
    second.publish(7, weights(0.7))
    assert until(lambda: actor.version == 7)


def test_fault_actor_dead_is_noticed_and_a_new_one_is_told_what_is_there(ends):
    learner, actor = ends(rows=10)
    receive(learner, 10)
    actor.close()
    assert until(lambda: not learner.alive(), 5.0)
    (_, second) = (None, *ends(only="actor", rows=15))
    assert until(lambda: learner.alive() == [0])
    assert until(lambda: second.sent == 5)
    assert next(head["first"] for head, _ in learner.drain(1.0)) == 10


def test_actor_that_was_started_differently_is_refused_with_the_keys(ends):
    learner, actor = ends(
        theirs={"gamma": 0.97, "policy.critics": 2}, ours={"gamma": 0.99, "policy.critics": 2}, rows=5
    )
    assert until(lambda: actor.refused)
    assert "gamma: 0.97 there, 0.99 here" in actor.refused
    assert "critics" not in actor.refused
    assert learner.drain(0.3) == []


def test_new_run_under_the_number_of_an_old_one_is_refused(ends, tmp_path):
    """agentlace keys by a counter that restarts: the first rows of a new actor are taken for old ones and lost."""
    book = ActorBook(tmp_path / "actors.json")
    learner, first = ends(rows=5, book=book, log="first")
    assert receive(learner, 5)[1] == 5
    first.close()
    learner.close()
    learner, again = ends(rows=8, book=ActorBook(tmp_path / "actors.json"), log="first", places={0: (0, 5)})
    assert until(lambda: again.sent == 3)
    (other,) = ends(only="actor", rows=9, log="second")
    assert until(lambda: other.refused)
    assert "another run" in other.refused
    assert other.sent == 0
    (free,) = ends(only="actor", rows=9, log="second", actor_id=1)
    assert until(lambda: free.sent == 9)


def test_thread_of_the_link_survives_what_goes_wrong_in_it(ends):
    """LeRobot's sender ends its thread at the first error, and the actor goes on with no data flow."""

    class Failing(Feed):
        left = 2

        def rows(self, place):
            self.left -= 1
            if self.left >= 0:
                raise OSError("the disk is away")
            return super().rows(place)

    learner, actor = ends(feed=Failing(4))
    assert until(lambda: "disk is away" in actor.alarm)
    assert receive(learner, 4)[1] == 4


def test_damaged_weights_are_refused_and_the_last_good_ones_stay(ends):
    learner, actor = ends()
    learner.publish(1, weights(0.1))
    assert until(lambda: actor.version == 1)
    good = learner._weights
    learner.publish(2, weights(float("nan")))
    assert until(lambda: actor.rejected == 1)
    assert "not finite" in actor.alarm
    learner.publish(3, {"actor": torch.zeros(11), "normalizer/count": torch.zeros(())})
    assert until(lambda: "policies" in actor.alarm)
    blob = dump_weights(weights(0.4))
    name = hashlib.sha256(blob).hexdigest()
    # damaged before it is announced: after `publish` the actor may have fetched the good weights already
    learner._weights = blob[:-1] + b"x", json.dumps({"version": 4, "hash": name}).encode()
    learner._version, learner._hash = 4, name
    assert until(lambda: "hash" in actor.alarm)
    assert actor.version == 1
    learner._weights = good
    learner.publish(5, weights(0.5))
    assert until(lambda: actor.version == 5)
    assert actor.alarm == ""


def test_nonsense_on_the_wire_is_counted_and_harmless(ends):
    learner, actor = ends(rows=3)
    assert until(lambda: actor.alive)
    session = actor._session
    for payload, attachment in ((b"", b"{"), (b"x", b"[1]"), (b"\x80\x04K\x01.", None)):
        session.put("robot_rl/hil/rows/0", payload, attachment=attachment)
        session.put("robot_rl/hil/actor/zero", payload)
        session.put("robot_rl/hil/learner", payload)
    assert until(lambda: learner.nonsense >= 6)
    assert receive(learner, 3)[1] == 3


def inside_a_safe_set(options: ImitationSacOptions, io: IOSpec, *, seed: int) -> SafeExploration:
    return SafeExploration(
        SafeExplorationOptions(method=lambda io, seed, **_: ImitationSac(options, io, seed=seed), hidden=(8,)),
        io,
        seed=seed,
    )


@pytest.mark.parametrize(
    ("kind", "options"),
    [(ImitationSac, ImitationSacOptions), (HilSerl, HilSerlOptions), (inside_a_safe_set, ImitationSacOptions)],
)
def test_weights_carry_the_policy_but_not_its_noise(kind, options):
    """The learner never acts: with its generator an actor would explore with the same noise in every episode."""
    learner, twin, other = (kind(options(hidden=(8,)), IO, seed=seed) for seed in (1, 2, 2))
    obs = {"state": torch.randn(1, 3).numpy()}
    blob = dump_weights(tensors_of(learner.policy))
    fresh = other.policy
    load_tensors(twin.policy, load_weights(blob, tensors_of(twin.policy)))
    ours, theirs = (p.act(obs, deterministic=True).value for p in (twin.policy, learner.policy))
    assert (ours == theirs).all()
    first = [float(twin.policy.act(obs).value[0, 0]) for _ in range(3)]
    load_tensors(twin.policy, load_weights(blob, tensors_of(twin.policy)))
    assert [float(twin.policy.act(obs).value[0, 0]) for _ in range(3)] != first
    for _ in range(6):
        fresh.act(obs)
    states = (policy.state_dict() for policy in (twin.policy, fresh))
    assert torch.equal(*(state.get("policy", state)["generator"] for state in states))


def test_an_actor_that_comes_while_the_living_are_counted_disturbs_nothing():
    class Settings:
        @property
        def lost_s(self):
            link._actors[len(link._actors)] = time.monotonic(), {}
            return 5.0

    link: Any = LearnerLink.__new__(LearnerLink)
    link.settings, link._actors = Settings(), {0: (time.monotonic(), {})}
    assert link.alive() == [0]


def test_weights_of_anything_else_are_refused():
    with pytest.raises(ValueError, match="safetensors"):
        load_weights(b"\x80\x04K\x01.", LIKE)
    with pytest.raises(ValueError, match="named"):
        load_weights(dump_weights({"actor": torch.zeros(10)}), LIKE)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"endpoint": "tcp/192.168.1.5:7447"}, "unprotected"),
        ({"endpoint": "tcp/0.0.0.0:7447"}, "unprotected"),
        ({"endpoint": "tcp/[::]:7447"}, "unprotected"),
        ({"endpoint": "nonsense"}, "endpoint"),
        ({"name": "a/*"}, "name"),
        ({"user": "me"}, "password"),
        ({"user": "a:b", "password": "c"}, "has a colon"),
        ({"password": " c"}, "white space at its ends"),
        ({"mutual": True, "authority": "ca.pem"}, "speaks no TLS"),
        ({"certificate": "end.pem"}, "speaks no TLS"),
        ({"lost_s": 0.0}, "expected a number above 0"),
    ],
)
def test_settings_refuse_what_is_unsafe_or_nonsense(wrong, message):
    with pytest.raises(ValueError, match=message):
        LinkSettings(**wrong)
    assert LinkSettings(endpoint="tcp/[::1]:7447").name == "hil"


def test_zenoh_file_that_is_none_says_so(tmp_path):
    with pytest.raises(ValueError, match=r"link\.config=.*none.json5 is no Zenoh file: No such file"):
        open_session(LinkSettings(config=str(tmp_path / "none.json5")), listen=True)


def test_without_a_password_both_sides_take_the_token_of_the_user(ends, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "mine"))
    learner, actor = ends(rows=1)
    assert receive(learner, 1)[1] == 1
    assert actor.standing == ""
    token = tmp_path / "mine" / "robot_rl" / "link_token"
    assert token.stat().st_mode & 0o777 == 0o600
    assert len(token.read_text()) >= 32
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "theirs"))  # somebody else on this machine
    (other,) = ends(only="actor", actor_id=1)
    assert until(lambda: "not admitted" in other.standing)
    assert str(tmp_path / "theirs") in other.standing
    assert not until(lambda: other.alive, 1.5)


def test_token_that_others_can_read_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert own_token() == own_token()
    (tmp_path / "robot_rl" / "link_token").chmod(0o644)
    with pytest.raises(ValueError, match="chmod 600"):
        own_token()


def test_actor_says_whether_nobody_is_there_or_does_not_let_it_in(ends):
    (alone,) = ends(only="actor")
    assert until(lambda: "no learner answers" in alone.standing)


def test_taken_port_says_so(ends):
    ends(only="learner")
    with pytest.raises(RuntimeError, match="cannot listen"):
        ends(only="learner")


def certificates(folder: Path) -> dict[str, str]:
    """An authority, and one certificate of it for 127.0.0.1."""
    run = lambda *words: subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)  # noqa: E731
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    run("req", "-x509", *curve, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=authority", "-days", "2")
    run("req", *curve, "-keyout", "end.key", "-out", "end.csr", "-subj", "/CN=end")
    (folder / "ext").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
    run("x509", "-req", "-in", "end.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-out", "end.pem",
        "-days", "2", "-extfile", "ext")  # fmt: skip
    return {"authority": str(folder / "ca.pem"), "certificate": str(folder / "end.pem"), "key": str(folder / "end.key")}


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make certificates")
def test_tls_lets_in_whom_the_authority_signed_and_nobody_else(ends, tmp_path):
    safe = certificates(tmp_path)
    endpoint = f"tls/127.0.0.1:{free_port()}"
    learner, _ = ends(endpoint=endpoint, mutual=True, rows=4, **safe)
    assert receive(learner, 4)[1] == 4
    (tmp_path / "other").mkdir()
    foreign = certificates(tmp_path / "other")
    others = {"endpoint": endpoint, "mutual": True, "rows": 4, "only": "actor"}
    (stranger,) = ends(actor_id=1, **others, **{**foreign, "authority": safe["authority"]})
    (duped,) = ends(actor_id=2, **others, **{**safe, "authority": foreign["authority"]})
    time.sleep(1.5)
    assert not stranger.alive
    assert not duped.alive
    assert learner.alive() == [0]


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make certificates")
def test_tls_alone_admits_nobody_since_it_does_not_say_who_the_actor_is(ends, tmp_path):
    safe = certificates(tmp_path)
    own = {"endpoint": f"tls/127.0.0.1:{free_port()}", **safe}
    with pytest.raises(ValueError, match=r"whoever reaches tls/127\.0\.0\.1.*ROBOT_RL_LINK_PASSWORD"):
        ends(only="learner", **own)
    with pytest.raises(ValueError, match=r"needs link\.authority"):
        ends(only="learner", **{**own, "authority": None, "mutual": True})
    learner, _ = ends(password="secret", rows=2, **own)
    assert receive(learner, 2)[1] == 2
    (stranger,) = ends(only="actor", actor_id=1, endpoint=own["endpoint"], authority=safe["authority"])
    time.sleep(1.0)
    assert not stranger.alive
    assert learner.alive() == [0]


def test_password_is_asked_of_both_sides(ends):
    learner, _ = ends(user="me", password="secret", rows=2)
    assert receive(learner, 2)[1] == 2
    (wrong,) = ends(only="actor", user="me", password="guess", actor_id=1)
    (none,) = ends(only="actor", actor_id=2)
    time.sleep(1.0)
    assert not wrong.alive
    assert not none.alive
    assert learner.alive() == [0]


def test_no_row_is_lost_or_doubled_over_random_kills_and_cuts():
    """`robot-rl bench hil` with few kills; in a process of its own, because it forks."""
    code = "import json; from benchmarks.hil import run; print(json.dumps(run(kills=6, seed=5)['rows'][0]))"
    root = Path(__file__).resolve().parents[1]
    out = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, timeout=200)
    assert out.returncode == 0, out.stderr
    row = json.loads(out.stdout)
    assert row["recorded"] >= 150
    for name in ("lost", "doubled", "unknown", "different", "torn_weights", "backward_weights"):
        assert row[name] == 0, name
    assert row["weights"] > 0
