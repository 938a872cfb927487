"""Labels of pictures in two stages, models that give them, and the reward learnt from them."""
# pyright: reportArgumentType=false

from __future__ import annotations

import contextlib
import http.server
import json
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from robot_rl import extras
from robot_rl.policies.nets.picture_labels import ScriptedJudge, TwoStage, read_label
from robot_rl.policies.reward.picture_preference import PictureOptions, PicturePairs, PictureReward
from robot_rl.policies.vla.text_models import ChatEndpoint, EndpointError, open_model, png

GOAL = "make it bright"


def grey(value: int, side: int = 48) -> np.ndarray:
    picture = np.full((side, side, 3), value, np.uint8)
    picture[::2] += 20
    return picture


def bright(picture: np.ndarray, goal: str) -> float:
    return float(picture.mean()) * (1 if goal == GOAL else -1)


class Says:
    """Answers from a list, and remembers what it was asked."""

    def __init__(self, *answers: str) -> None:
        self.answers, self.asked = list(answers), []

    def answer(self, pictures: Sequence[np.ndarray], text: str) -> str:
        self.asked.append((len(pictures), text))
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("0", 0), ("Answer: 1", 1), ("-1", -1), ("one is bright\n\n**1**.\n", 1), ("", None), ("the first", None),
        ("0 or 1", None), ("2", None), ("1\nthe second", None), ("0.5", None), ("picture1", None),
    ],
)  # fmt: skip
def test_one_integer_in_the_last_line_is_read(text: str, label: int | None) -> None:
    assert read_label(text) == label


def test_judge_that_sees_the_truth_is_right_in_any_order() -> None:
    asked = TwoStage(ScriptedJudge(bright), seed=0)
    rng = np.random.default_rng(1)
    for _ in range(40):
        a, b = rng.integers(0, 230, 2)
        wanted = -1 if a == b else int(b > a)
        assert asked.label(grey(a), grey(b), GOAL) == wanted
        assert asked.label(grey(a), grey(b), "make it dark") == (wanted if wanted < 0 else 1 - wanted)
    assert asked.counts.unreadable == 0


def test_order_is_drawn_and_the_answer_turned_back() -> None:
    model = Says("a description", "0")  # then always "0": a model that prefers the first place
    always = TwoStage(Says("0"), seed=3)
    pairs = [(grey(k), grey(250 - k)) for k in range(100)] + [(grey(250 - k), grey(k)) for k in range(100)]
    labels = [always.label(first, second, GOAL) for first, second in pairs]
    assert 70 < sum(labels) < 130  # it prefers no picture
    again = TwoStage(Says("0"), seed=3)  # as after a restart: a pair's order does not depend on those before it
    assert labels[150:] == [again.label(first, second, GOAL) for first, second in pairs[150:]]
    assert labels != [TwoStage(Says("0"), seed=4).label(first, second, GOAL) for first, second in pairs]
    asked = TwoStage(model, seed=0)
    asked.label(grey(10), grey(200), GOAL)
    (first, second) = model.asked
    assert first[0] == 2
    assert second[0] == 0  # the second stage reads, and does not look
    assert "a description" in second[1]
    assert GOAL in first[1]
    assert GOAL in second[1]


def test_pairs_that_show_nothing_are_not_sent_and_unreadable_is_a_tie() -> None:
    model = Says("what?")
    asked = TwoStage(model)
    assert asked.label(grey(5), grey(5), GOAL) == -1
    assert asked.label(np.zeros((48, 48, 3), np.uint8), grey(5), GOAL) == -1
    assert (asked.counts.skipped, asked.counts.asked, len(model.asked)) == (2, 0, 0)
    assert asked.label(grey(5), grey(90), GOAL) == -1
    assert (asked.counts.asked, asked.counts.unreadable, len(model.asked)) == (1, 1, 3)  # asked once more
    again = TwoStage(Says("text", "hm", "-1"))
    assert again.label(grey(5), grey(90), GOAL) == -1
    assert again.counts.unreadable == 0


@pytest.mark.parametrize(
    ("first", "second", "goal", "kind", "words"),
    [
        (grey(1).astype(np.float32), grey(2), GOAL, TypeError, "float32, expected uint8"),
        (grey(1).transpose(2, 0, 1), grey(2), GOAL, ValueError, "expected"),
        (grey(1), grey(2, 24), GOAL, ValueError, "one size"),
        (grey(1), grey(2), " ", ValueError, "goal is empty"),
    ],
)
def test_bad_pictures_are_refused(first: Any, second: Any, goal: str, kind: Any, words: str) -> None:
    with pytest.raises(kind, match=words):
        TwoStage(Says("0")).label(first, second, goal)


def pairs_of(count: int, seed: int = 0) -> PicturePairs:
    """A bright square on a line; goal 0 wants it right, goal 1 left."""
    rng = np.random.default_rng(seed)
    pictures = np.zeros((64, 48, 48, 3), np.uint8) + 40
    place = rng.integers(0, 40, 64)
    for picture, x in zip(pictures, place):
        picture[20:28, x : x + 8] = (220, 60, 60)
    first, second, goal = (torch.from_numpy(rng.integers(0, n, count)) for n in (64, 64, 2))
    gap = torch.from_numpy(place)[second] - torch.from_numpy(place)[first]
    said = torch.where(gap == 0, 0.5, ((gap > 0) ^ (goal == 1)).float())
    return PicturePairs(torch.from_numpy(pictures), first, second, goal, said)


def test_reward_learns_both_goals_and_is_standardised() -> None:
    model = PictureReward(PictureOptions(lr=1e-3, members=2), ["right", "left"], (48, 48))
    pairs, fresh = pairs_of(400), pairs_of(200, seed=0)
    for _ in range(80):
        model.update(pairs)
    clear = fresh.preferred != 0.5
    chance = model.probabilities(fresh).mean(0)
    assert float((((chance > 0.5) == (fresh.preferred > 0.5)) & clear).sum() / clear.sum()) > 0.9
    model.calibrate(fresh.pictures)
    for goal in ("right", "left"):
        reward = model.reward(fresh.pictures, goal)
        assert abs(float(reward.mean())) < 1e-4
        assert 0.5 < float(reward.std()) <= 1.02
    right, left = (model.reward(fresh.pictures, goal) for goal in ("right", "left"))
    assert float(torch.corrcoef(torch.stack([right, left]))[0, 1]) < -0.8


def test_probability_is_bradley_terry_and_members_are_on_one_scale() -> None:
    model = PictureReward(PictureOptions(members=3, combination="wco"), ["g"], (48, 48))
    pairs = pairs_of(10)
    one = PicturePairs(pairs.pictures, pairs.first, pairs.second, torch.zeros(10, dtype=torch.int64), pairs.preferred)
    raw = model._raw(pairs.pictures)[..., 0]
    expected = raw.gather(1, pairs.second.expand(3, -1)).exp() / (
        raw.gather(1, pairs.second.expand(3, -1)).exp() + raw.gather(1, pairs.first.expand(3, -1)).exp()
    )
    torch.testing.assert_close(model.probabilities(one), expected)
    with torch.no_grad():  # one member speaks a thousand times louder
        model._nets[0].head.weight.mul_(1000.0)  # type: ignore[union-attr]
    model.calibrate(pairs.pictures)
    raw = model._raw(pairs.pictures)[..., 0]
    scaled = (raw - raw.mean(1, keepdim=True)) / raw.std(1, keepdim=True, correction=0)
    torch.testing.assert_close(model.reward(pairs.pictures, "g"), scaled.amin(0), atol=1e-4, rtol=1e-4)


def test_reward_continues_exactly_and_refuses_what_does_not_fit() -> None:
    one, other = (PictureReward(PictureOptions(members=2), ["right", "left"], (48, 48), seed=s) for s in (0, 1))
    pairs = pairs_of(50)
    one.update(pairs)
    one.calibrate(pairs.pictures)
    other.load_state_dict(one.state_dict())
    assert one.update(pairs) == other.update(pairs)
    torch.testing.assert_close(one.reward(pairs.pictures, "left"), other.reward(pairs.pictures, "left"))
    assert one.reward(pairs.pictures[:0], "left").shape == (0,)
    with pytest.raises(ValueError, match="knows no goal 'up'; it was trained for: right; left"):
        one.reward(pairs.pictures, "up")
    with pytest.raises(ValueError, match=r"expected \(N, 48, 48, 3\)"):
        one.reward(pairs.pictures[:, :20], "left")
    with pytest.raises(ValueError, match="expected 47 or more"):
        PictureReward(PictureOptions(), ["g"], (32, 32))
    with pytest.raises(ValueError, match="that differ"):
        PictureReward(PictureOptions(), ["g", "g"], (48, 48))


class Handler(http.server.BaseHTTPRequestHandler):
    """Behaves as the path says."""

    calls: list[dict[str, Any]]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.calls.append(body)
        if self.path == "/slow":
            time.sleep(0.6)
        code = {"/busy": 503, "/wrong": 400, "/moved": 302}.get(self.path, 200)
        said: Any = {"choices": [{"message": {"content": "the second\n1"}}]} if self.path != "/odd" else {"x": 1}
        self.send_response(code)
        if code == 302:
            self.send_header("Location", "http://example.invalid/")
        self.end_headers()
        self.wfile.write(json.dumps(said).encode())

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    Handler.calls = []
    made = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=made.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{made.server_address[1]}", Handler.calls
    made.shutdown()


def test_endpoint_on_this_machine_is_asked_with_pictures(server: tuple[str, list[dict[str, Any]]]) -> None:
    url, calls = server
    model = open_model(f"{url}/v1", {"model": "m", "timeout": 5})
    assert model.answer([grey(3), grey(9)], "which?") == "the second\n1"
    assert TwoStage(model, seed=1).label(grey(3), grey(90), GOAL) in (0, 1)
    parts = calls[0]["messages"][0]["content"]
    assert [part["type"] for part in parts] == ["image_url", "image_url", "text"]
    assert parts[0]["image_url"]["url"].startswith("data:image/png;base64,iVBOR")
    assert calls[0]["model"] == "m"


@pytest.mark.parametrize(
    ("path", "words", "asked"),
    [
        ("/slow", "no answer within 0.2 s", 2), ("/busy", "503", 2), ("/wrong", "answered 400", 1),
        ("/odd", "not a chat completion", 1), ("/moved", "302", 1),
    ],
)  # fmt: skip
def test_endpoint_that_fails_is_named(server: Any, path: str, words: str, asked: int) -> None:
    url, calls = server
    with pytest.raises(EndpointError, match=words):
        ChatEndpoint(url + path, timeout=0.2).answer([], "hello")
    assert len(calls) == asked


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (b"SSH-2.0-OpenSSH_9\r\n", "SSH-2.0"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n40\r\nabc", "IncompleteRead"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 50000\r\n\r\n" + b"[" * 50_000, "not a chat completion"),
    ],
)
def test_endpoint_that_speaks_something_else_is_named(reply: bytes, words: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            for _ in range(2):
                with contextlib.suppress(OSError), listener.accept()[0] as call:
                    call.sendall(reply)
                    call.shutdown(socket.SHUT_WR)
                    while call.recv(65536):  # closed with a request unread, the connection would be reset
                        pass

        threading.Thread(target=serve, daemon=True).start()
        with pytest.raises(EndpointError, match=words):
            ChatEndpoint(f"http://127.0.0.1:{listener.getsockname()[1]}/v1", timeout=5).answer([], "x")


def test_models_that_cannot_be_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="another machine"):
        ChatEndpoint("http://example.com/v1")
    assert ChatEndpoint("http://example.com/v1", remote=True).url
    assert ChatEndpoint("http://[::1]:80/v1").url
    with pytest.raises(ValueError, match="no endpoint"):
        ChatEndpoint("ftp://127.0.0.1/")
    with pytest.raises(EndpointError, match="is it running"):
        ChatEndpoint("http://127.0.0.1:9/v1", timeout=1).answer([], "x")
    with pytest.raises(ValueError, match="trust=true"):
        open_model("python:json:JSONDecoder")
    extras.allow("nowhere_at_all:x", "json:nothing", "json:JSONDecoder")
    for name, words in (
        ("python:nowhere_at_all:x", "no module"), ("python:json:nothing", "has no 'nothing'"),
        ("python:json:JSONDecoder", "has no method answer"), ("python:json", "not of the form"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=words):
            open_model(name)
    with pytest.raises(FileNotFoundError, match="expected http"):
        open_model("no/such/folder")
    for name in ("http://127.0.0.1:9/v1", "."):
        with pytest.raises(ValueError, match="model_options has 'token'; did you mean tokens"):
            open_model(name, {"token": 3})
    with pytest.raises(ValueError, match="dtype is 'float8', expected float32"):
        open_model(".", {"dtype": "float8"})


def test_png_is_a_png() -> None:
    pytest.importorskip("PIL")
    import io

    from PIL import Image

    picture = np.random.default_rng(0).integers(0, 256, (5, 7, 3)).astype(np.uint8)
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(png(picture)))), picture)
