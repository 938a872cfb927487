"""Pictures as cameras send them, and as broken cameras send them."""
# pyright: reportArgumentType=false

from types import SimpleNamespace

import numpy as np
import pytest

from robot_rl.real.cameras import Camera, PictureError, compressed_pixels, jpeg_size, raw_pixels, resize_picture


def image(encoding, array, *, pad=0, big=False):
    """A raw image of (H, W[, C]) with `pad` bytes after every row."""
    array = np.asarray(array)
    lines = array.astype(array.dtype.newbyteorder(">" if big else "<")).reshape(len(array), -1).view(np.uint8)
    lines = np.pad(lines.reshape(len(array), -1), ((0, 0), (0, pad)), constant_values=255)
    return SimpleNamespace(
        height=array.shape[0],
        width=array.shape[1],
        encoding=encoding,
        is_bigendian=int(big),
        step=lines.shape[1],
        data=lines.tobytes(),
    )


RNG = np.random.default_rng(0)
COLOUR = RNG.integers(0, 256, (5, 7, 3), dtype=np.uint8)
DEPTH = RNG.integers(0, 65536, (5, 7), dtype=np.uint16)
METRES = RNG.normal(size=(5, 7)).astype(np.float32)


@pytest.mark.parametrize("pad", [0, 5])
@pytest.mark.parametrize("big", [False, True])
@pytest.mark.parametrize(
    ("encoding", "array", "expected"),
    [
        ("rgb8", COLOUR, COLOUR),
        ("bgr8", COLOUR, COLOUR[..., ::-1]),
        ("mono8", COLOUR[..., 0], COLOUR[..., 0]),
        ("16UC1", DEPTH, DEPTH),
        ("32FC1", METRES, METRES),
    ],
)
def test_raw_pixels_honours_step_and_byte_order(encoding, array, expected, pad, big) -> None:
    pixels = raw_pixels(image(encoding, array, pad=pad, big=big))
    assert pixels.dtype == expected.dtype
    np.testing.assert_array_equal(pixels, expected)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"encoding": "yuv422"}, "expected one of rgb8"),
        ({"data": b"short"}, "5 bytes"),
        ({"step": 3}, "step 3"),
        ({"height": 8000, "step": 8000 * 3 * 4}, "at most"),
        ({"width": 0, "step": 0}, "step 0"),
    ],
)
def test_raw_pixels_bad_message_is_refused(change, words) -> None:
    message = image("rgb8", COLOUR)
    vars(message).update(change)
    with pytest.raises(PictureError, match=words):
        raw_pixels(message)


def jpeg(array, quality=95):
    cv2 = pytest.importorskip("cv2")
    return cv2.imencode(".jpg", array[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, quality])[1].tobytes()


def test_compressed_pixels_are_rgb() -> None:
    red = np.zeros((16, 16, 3), np.uint8)
    red[..., 0] = 200
    pixels = compressed_pixels(jpeg(red))
    np.testing.assert_allclose(pixels[8, 8], [200, 0, 0], atol=3)
    assert jpeg_size(jpeg(np.zeros((48, 64, 3), np.uint8))) == (64, 48)


def test_compressed_pixels_garbage_truncated_and_huge_are_refused() -> None:
    pytest.importorskip("cv2")
    with pytest.raises(PictureError, match="neither JPEG nor PNG"):
        compressed_pixels(b"\xff\xd8 not a picture at all")
    with pytest.raises(PictureError, match="0 bytes"):
        compressed_pixels(b"")
    data = bytearray(jpeg(np.zeros((16, 16, 3), np.uint8)))
    place = data.index(b"\xff\xc0")
    data[place + 5 : place + 9] = b"\xff\xff\xff\xff"  # claims 65535 x 65535
    with pytest.raises(PictureError, match="65535 x 65535"):
        compressed_pixels(bytes(data))


def test_39_compressed_pixels_8k_is_decoded() -> None:
    big = np.zeros((4320, 7680, 3), np.uint8)
    assert compressed_pixels(jpeg(big, 10)).shape == (4320, 7680, 3)


def test_resized_grey_and_small() -> None:
    assert resize_picture(np.full((4, 4), 9, np.uint8), 4, 4).tolist() == np.full((4, 4, 3), 9).tolist()
    pytest.importorskip("cv2")
    assert resize_picture(COLOUR, 10, 14).shape == (10, 14, 3)


def camera(**changes):
    return Camera("wrist", raw_pixels, lambda m: m.data, **{"timeout": 0.2, "freeze_time": 1.0, **changes})


def test_camera_ages_and_speaks_up_when_it_stops() -> None:
    c = camera()
    assert c.problem(0.0) == "camera wrist has sent nothing"
    c.take(image("rgb8", COLOUR), 1.0)
    assert c.problem(1.1) == ""
    assert c.age(1.1) == pytest.approx(0.1)
    assert "no usable picture for 0.30 s" in c.problem(1.3)


def test_camera_that_repeats_its_picture_is_frozen_until_it_changes() -> None:
    c = camera()
    for k in range(20):
        c.take(image("rgb8", COLOUR), 0.1 * k)
        assert c.is_frozen(0.1 * k) == (k > 10)
    assert "frozen" in c.problem(1.9)
    c.take(image("rgb8", COLOUR + 1), 2.0)
    assert c.problem(2.0) == ""


def test_39_camera_counts_undecodable_pictures_and_keeps_the_last_good_one() -> None:
    c = camera()
    c.take(image("rgb8", COLOUR), 1.0)
    assert c.picture(1.0) is not None
    for k in range(5):
        c.take(SimpleNamespace(**{**vars(image("rgb8", COLOUR)), "encoding": "nonsense"}), 1.1 + 0.1 * k)
        np.testing.assert_array_equal(c.picture(1.1 + 0.1 * k), COLOUR)
    assert c.errors == 5
    assert "nonsense" in c.problem(1.5)


def test_distances_are_no_colours():
    with pytest.raises(PictureError, match="numbers of type uint16, such as distances, expected 8 bit colours"):
        resize_picture(np.full((4, 4), 300, np.uint16), 4, 4)  # 44 before: the rest of a division by 256
